"""Recordings of one thread whose code is a large ELF file with names and lines of source: of
`elf-little` hardly anything runs, of `elf-whole` everything does once.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path

from rtit.packets import encode
from rtit.perfdata import Writer

TEXT = 0x1000
"""Where the code begins, in the file and by its addresses."""
_LOADED = 1 << 32
_FUNCTION = (
    b"\x0f\x1f\x40\x00" * 13  # nop
    + b"\x75\x00"  # jne to the next instruction, and so does the jmp
    + b"\xeb\x00"
    + b"\x90\x90\x90"
    + b"\xe9\0\0\0\0"  # jmp to the next function
)
FUNCTION = len(_FUNCTION)
INSTRUCTIONS = 19
"""Of each function."""
_UNIT = 1 << 16
"""Bytes of code of each file of source; _LINE of each line."""
_LINE = 8
_ABBREVIATIONS = bytes([1, 0x11, 0, 3, 8, 0x10, 0x17, 0x11, 1, 0x12, 7, 0, 0, 0])
"""A compile unit without children: name, stmt_list, low_pc, high_pc."""
_LINE_BASE, _LINE_RANGE, _OPCODE_BASE = -3, 12, 13


def _line_program(start: int, size: int, name: bytes) -> bytes:
    """DWARF 4, 6.2.4: lines from 1 on, one every `_LINE` bytes."""
    header = struct.pack("<BBBbBB", 1, 1, 1, _LINE_BASE, _LINE_RANGE, _OPCODE_BASE)
    header += bytes([0, 1, 1, 1, 1, 0, 0, 0, 1, 0, 0, 1])
    header += b"\0" + name + b"\0\0\0\0\0"
    onward = 1 - _LINE_BASE + _LINE_RANGE * _LINE + _OPCODE_BASE
    rows = b"\0\x09\x02" + struct.pack("<Q", start)  # DW_LNE_set_address
    rows += b"\x01" + bytes([onward]) * (size // _LINE - 1)  # DW_LNS_copy, special opcodes
    rows += b"\x02" + bytes([_LINE]) + b"\0\x01\x01"  # DW_LNS_advance_pc, DW_LNE_end_sequence
    body = struct.pack("<HI", 4, len(header)) + header + rows
    return struct.pack("<I", len(body)) + body


_OF_RANGES = bytes([1, 0x11, 0, 3, 8, 0x10, 0x17, 0x55, 0x17, 0x11, 1, 0, 0, 0])
"""The same with ranges, and low_pc."""


def _dwarf(size: int) -> tuple[bytes, bytes]:
    """`.debug_info` and `.debug_line` of so many bytes of code."""
    info, lines = bytearray(), bytearray()
    for number, at in enumerate(range(0, size, _UNIT)):
        here = min(_UNIT, size - at)
        name = b"/nowhere/source%d.c" % number
        entry = b"\x01" + name + b"\0" + struct.pack("<IQQ", len(lines), TEXT + at, here)
        info += struct.pack("<IHIB", 7 + len(entry), 4, 0, 8) + entry
        lines += _line_program(TEXT + at, here, name)
    return bytes(info), bytes(lines)


def _symbols(size: int, aliases: int) -> tuple[bytes, bytes]:
    """`.symtab` and `.strtab`: each function has so many names."""
    names, entries = bytearray(1), bytearray(24)
    for number, at in enumerate(range(0, size, FUNCTION)):
        for alias in range(aliases):
            # of C++: Flood<number>::with_a_name_of_usual_length
            own = b"Flood%d_%d" % (number, alias)
            name = b"_ZN%d%s27with_a_name_of_usual_lengthEv" % (len(own), own)
            entries += struct.pack("<IBBHQQ", len(names), 0x12, 0, 1, TEXT + at, FUNCTION)
            names += name + b"\0"
    return bytes(entries), bytes(names)


def elf(size: int, aliases: int = 2, ranges: int = 0) -> bytes:
    """A shared object of about `size` bytes of code. A damaged one says of all its code so many
    times that it is that of one unit, with 65,536 bytes of it.
    """
    size -= size % FUNCTION
    symbols, names = _symbols(size, aliases)
    info, lines = _dwarf(size)
    abbreviations, pairs = _ABBREVIATIONS, b""
    if ranges:
        abbreviations, lines = _OF_RANGES, _line_program(TEXT, _UNIT, b"source.c")
        info = struct.pack("<IHIB", 33, 4, 0, 8) + b"\x01source.c\0" + struct.pack("<IIQ", 0, 0, 0)
        info = struct.pack("<I", len(info) - 4) + info[4:]
        pairs = struct.pack("<QQ", TEXT, TEXT + _UNIT) * ranges + bytes(16)
    sections = {
        ".symtab": symbols,
        ".strtab": names,
        ".debug_info": info,
        ".debug_line": lines,
        ".debug_abbrev": abbreviations,
        ".debug_ranges": pairs,
    }
    return with_sections(code(size), sections)


def code(size: int) -> bytes:
    """As many functions as there are whole ones in so many bytes."""
    return _FUNCTION * (size // FUNCTION)


def with_sections(text: bytes, sections: dict[str, bytes]) -> bytes:
    """A shared object of this code, at TEXT; a .strtab is that of the section before it."""
    titles = [".text", *sections, ".shstrtab"]
    bodies = [text, *sections.values(), b"\0" + b"\0".join(map(str.encode, titles)) + b"\0"]
    kinds = {".symtab": 2, ".strtab": 3, ".shstrtab": 3}
    body, headers, title = bytearray(), [bytes(64)], 1
    for index, (name, data) in enumerate(zip(titles, bodies, strict=True)):
        kind = kinds.get(name, 1)
        address, flags = (TEXT, 6) if index == 0 else (0, 0)
        place = TEXT + len(body)
        link, entry = (index + 2, 24) if kind == 2 else (0, 0)
        row = (title, kind, flags, address, place, len(data), link, 1, 1, entry)
        headers.append(struct.pack("<IIQQQQIIQQ", *row))
        title += len(name) + 1
        body += data
    identity = b"\x7fELF\x02\x01\x01" + bytes(9)
    table = TEXT + len(body)
    header = struct.pack(
        "<16sHHIQQQIHHHHHH", identity, 3, 62, 1, TEXT, 64, table, 0, 64, 56, 1, 64,
        len(headers), len(headers) - 1,
    )  # fmt: skip
    size = len(text)
    segment = struct.pack("<IIQQQQQQ", 1, 5, TEXT, TEXT, TEXT, size, size, 0x1000)
    return (header + segment).ljust(TEXT, b"\0") + bytes(body) + b"".join(headers)


def _packets(functions: int) -> Iterator[bytes]:
    yield encode("PSB")
    yield encode("TSC", tsc=1 << 20)
    yield encode("MODE.Exec", csl=1, csd=0, iflag=0)
    yield encode("FUP", ip_bytes=6, payload=_LOADED)
    yield encode("PSBEND")
    # six branches a packet, taken or not by turns
    yield from [b"\xaa"] * (functions // 6)


KINDS = ("elf-little", "elf-whole")


def recorded(path: Path, size: int, aliases: int = 2) -> Path:
    """Writes a recording of `size` bytes of code, with the file beside it; its name without the
    suffix is one of KINDS.
    """
    data = elf(size, aliases)
    size -= size % FUNCTION
    return recorded_with(path, data, size, size // FUNCTION if path.stem == KINDS[1] else 60)


def recorded_with(path: Path, data: bytes, size: int, ran: int) -> Path:
    """The same of the first functions of a file that has `size` bytes of code."""
    file = path.with_suffix(".so")
    file.write_bytes(data)
    with Writer(path, config=0x2601, cpuid="GenuineIntel,6,94,3") as out:
        out.comm(1, 1, 1, file.name, by_exec=True)
        out.mmap2(1, 1, 1, _LOADED, -(-size // 4096) * 4096, TEXT, 5, 2, 8, 1, 4711, 0, str(file))
        out.itrace_start(1, 1, 2)
        out.auxtrace(1, 1, b"".join(_packets(ran)), None, 3)
    return path
