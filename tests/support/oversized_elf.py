"""ELF files with much code, many symbols or much DWARF, and recordings of them.

Tables of DWARF that many units share are each as large as all the units that share them.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

from rtit.packets import encode
from rtit.perfdata import Writer

TEXT = 0x1000
"""Offset and address of the code."""
_LOADED = 1 << 32
_FUNCTION = (
    b"\x0f\x1f\x40\x00" * 13  # nop
    + b"\x75\x00"  # jne to the next instruction, and so does the jmp
    + b"\xeb\x00"
    + b"\x90\x90\x90"
    + b"\xe9\0\0\0\0"  # jmp to the next function
)
FUNCTION_SIZE = len(_FUNCTION)
FUNCTION_INSTRUCTIONS = 19
_UNIT_SIZE = 1 << 16
"""Bytes of code of each source file."""
_LINE_SIZE = 8
"""Bytes of code of each line."""
_ABBREVIATIONS = bytes([1, 0x11, 0, 3, 8, 0x10, 0x17, 0x11, 1, 0x12, 7, 0, 0, 0])
"""A compile unit without children: name, stmt_list, low_pc, high_pc."""
_LINE_BASE, _LINE_RANGE, _OPCODE_BASE = -3, 12, 13


def _lines_of_unit(start: int, size: int, name: bytes) -> bytes:
    """Return the line program of a source file: from line 1 on, one every `_LINE_SIZE` bytes."""
    onward = 1 - _LINE_BASE + _LINE_RANGE * _LINE_SIZE + _OPCODE_BASE
    rows = b"\0\x09\x02" + struct.pack("<Q", start)  # DW_LNE_set_address
    rows += b"\x01" + bytes([onward]) * (size // _LINE_SIZE - 1)  # DW_LNS_copy, special opcodes
    rows += b"\x02" + bytes([_LINE_SIZE]) + b"\0\x01\x01"  # DW_LNS_advance_pc, DW_LNE_end_sequence
    return line_program(rows, name + b"\0\0\0\0")


_ABBREVIATIONS_OF_RANGES = bytes([1, 0x11, 0, 3, 8, 0x10, 0x17, 0x55, 0x17, 0x11, 1, 0, 0, 0])
"""The same with ranges, and low_pc."""


def _dwarf(size: int) -> tuple[bytes, bytes]:
    """Return `.debug_info` and `.debug_line` of `size` bytes of code."""
    info, lines = bytearray(), bytearray()
    for number, at in enumerate(range(0, size, _UNIT_SIZE)):
        here = min(_UNIT_SIZE, size - at)
        name = b"/nowhere/source%d.c" % number
        entry = b"\x01" + name + b"\0" + struct.pack("<IQQ", len(lines), TEXT + at, here)
        info += struct.pack("<IHIB", 7 + len(entry), 4, 0, 8) + entry
        lines += _lines_of_unit(TEXT + at, here, name)
    return bytes(info), bytes(lines)


def _symbols(size: int, aliases: int) -> tuple[bytes, bytes]:
    """Return `.symtab` and `.strtab`, with `aliases` names for each function."""
    names, entries = bytearray(1), bytearray(24)
    for number, at in enumerate(range(0, size, FUNCTION_SIZE)):
        for alias in range(aliases):
            # C++: Flood<number>::with_a_name_of_usual_length
            own = b"Flood%d_%d" % (number, alias)
            name = b"_ZN%d%s27with_a_name_of_usual_lengthEv" % (len(own), own)
            entries += struct.pack("<IBBHQQ", len(names), 0x12, 0, 1, TEXT + at, FUNCTION_SIZE)
            names += name + b"\0"
    return bytes(entries), bytes(names)


def build_large_elf(size: int, aliases: int = 2, ranges: int = 0) -> bytes:
    """Return a shared object of about `size` bytes of code, with symbols and lines.

    With `ranges` the only unit claims the same 65,536 bytes of code that many times.
    """
    size -= size % FUNCTION_SIZE
    symbols, names = _symbols(size, aliases)
    info, lines = _dwarf(size)
    abbreviations, pairs = _ABBREVIATIONS, b""
    if ranges:
        abbreviations, lines = (
            _ABBREVIATIONS_OF_RANGES,
            _lines_of_unit(TEXT, _UNIT_SIZE, b"source.c"),
        )
        info = struct.pack("<IHIB", 33, 4, 0, 8) + b"\x01source.c\0" + struct.pack("<IIQ", 0, 0, 0)
        info = struct.pack("<I", len(info) - 4) + info[4:]
        pairs = struct.pack("<QQ", TEXT, TEXT + _UNIT_SIZE) * ranges + bytes(16)
    sections = {
        ".symtab": symbols,
        ".strtab": names,
        ".debug_info": info,
        ".debug_line": lines,
        ".debug_abbrev": abbreviations,
        ".debug_ranges": pairs,
    }
    return shared_object(repeated_functions(size), sections)


def repeated_functions(size: int) -> bytes:
    """Return as many whole functions as fit into `size` bytes."""
    return _FUNCTION * (size // FUNCTION_SIZE)


def shared_object(text: bytes, sections: dict[str, bytes]) -> bytes:
    """Return a shared object of code at TEXT; a `.strtab` belongs to the section before it."""
    titles = [".text", *sections, ".shstrtab"]
    bodies = [text, *sections.values(), b"\0" + b"\0".join(map(str.encode, titles)) + b"\0"]
    kinds = {".symtab": 2, ".strtab": 3, ".shstrtab": 3}
    body, headers, title = bytearray(), [bytes(64)], 1
    for index, (name, data) in enumerate(zip(titles, bodies, strict=True)):
        kind = kinds.get(name, 1)
        address, flags = (TEXT, 6) if index == 0 else (0, 0)
        file_offset = TEXT + len(body)
        link, entry = (index + 2, 24) if kind == 2 else (0, 0)
        row = (title, kind, flags, address, file_offset, len(data), link, 1, 1, entry)
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
    # six branches a packet, alternately taken and not taken
    yield from [b"\xaa"] * (functions // 6)


_TAG_UNIT = 0x11
_NAME, _LINES, _LOW, _HIGH, _RANGES, _FOLDER = 0x03, 0x10, 0x11, 0x12, 0x55, 0x1B
_ADDRESS, _SIZE, _STRING, _OFFSET = 0x01, 0x07, 0x08, 0x17
NEXT_LINE = 1 - _LINE_BASE + _LINE_RANGE + _OPCODE_BASE
"""The special opcode for the next byte and the next line."""


def _declared(code: bytes, *attributes: int) -> bytes:
    """Return an abbreviation of a unit without children, of attributes and forms."""
    return code + bytes([_TAG_UNIT, 0, *attributes, 0, 0])


def _uleb(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def _units(entry: bytes, size: int) -> bytes:
    """Return as many units of this root as fit into `size` bytes."""
    unit = struct.pack("<IHIB", 7 + len(entry), 4, 0, 8) + entry
    return unit * max(size // len(unit), 1)


def line_program(rows: bytes, files: bytes = b"source.c\0\0\0\0") -> bytes:
    """Return a line program (DWARF 4, 6.2.4)."""
    header = struct.pack("<BBBbBB", 1, 1, 1, _LINE_BASE, _LINE_RANGE, _OPCODE_BASE)
    header += bytes([0, 1, 1, 1, 1, 0, 0, 0, 1, 0, 0, 1]) + b"\0" + files + b"\0"
    body = struct.pack("<HI", 4, len(header)) + header + rows
    return struct.pack("<I", len(body)) + body


def _at(address: int) -> bytes:
    return b"\0\x09\x02" + struct.pack("<Q", address)


_END = b"\x02\x01\0\x01\x01"
"""Advance by a byte and end the sequence."""


def _lines(size: int) -> dict[str, bytes]:
    """A line for each byte of the code, repeated."""
    code = _code_size(size)
    sequence = _at(TEXT) + b"\x01" + bytes([NEXT_LINE]) * (code - 1) + _END
    lines = line_program((sequence * (size // len(sequence) + 1))[:size] + _END)
    root = b"\x01source.c\0" + struct.pack("<IQQ", 0, TEXT, code)
    declared = _declared(b"\x01", _NAME, _STRING, _LINES, _OFFSET, _LOW, _ADDRESS, _HIGH, _SIZE)
    return _sections(_units(root, 0), declared, lines)


def _least_units(size: int) -> dict[str, bytes]:
    return _sections(_units(b"\x01", size), _declared(b"\x01"))


def _abbreviations(size: int) -> dict[str, bytes]:
    """All units have the last abbreviation of one table, but begin the table elsewhere."""
    other = _declared(b"\x02")
    table = other * (size // 2 // len(other)) + _declared(b"\x01")
    unit = struct.Struct("<IHIBB")
    units = b"".join(
        unit.pack(8, 4, number * len(other), 8, 1) for number in range(size // 2 // unit.size)
    )
    return _sections(units, table)


def _ranges(size: int) -> dict[str, bytes]:
    """All units have the same disjoint ranges."""
    code = _code_size(size)
    pairs = b"".join(
        struct.pack("<QQ", at % code + TEXT, at % code + TEXT + 1) for at in range(0, size // 16, 2)
    )
    root = b"\x01" + struct.pack("<IIQ", 0, 0, 0)
    declared = _declared(b"\x01", _RANGES, _OFFSET, _LINES, _OFFSET, _LOW, _ADDRESS)
    lines = line_program(_at(TEXT) + b"\x01" + _END)
    return _sections(_units(root, size // 2), declared, lines, pairs + bytes(16))


def _files(size: int) -> dict[str, bytes]:
    """All units share a table of files."""
    lines = line_program(_at(TEXT) + b"\x01" + _END, b"a\0\0\0\0" * (size // 10))
    root = b"\x01" + struct.pack("<I", 0)
    return _sections(_units(root, size // 2), _declared(b"\x01", _LINES, _OFFSET), lines)


def _names(size: int) -> dict[str, bytes]:
    """All units share a table of files, each in a folder with a long name."""
    folder = b"/" + b"x" * 4000
    files = [b"%d\0\0\0\0" % number for number in range(size // 24)]
    rows = b"".join(
        _at(TEXT + number) + b"\x04" + _uleb(number + 1) + b"\x01" + _END
        for number in range(size // 60)
    )
    root = b"\x01" + folder + b"\0" + struct.pack("<I", 0)
    declared = _declared(b"\x01", _FOLDER, _STRING, _LINES, _OFFSET)
    return _sections(_units(root, size // 4), declared, line_program(rows, b"".join(files)))


def _programs(size: int) -> dict[str, bytes]:
    """All units share a line program."""
    rows = _at(TEXT) + b"\x01" + bytes([NEXT_LINE]) * (size // 2) + _END
    root = b"\x01" + struct.pack("<I", 0)
    declared = _declared(b"\x01", _LINES, _OFFSET)
    return _sections(_units(root, size // 2), declared, line_program(rows))


def _bomb(size: int) -> dict[str, bytes]:
    """Sections that unpack to a thousand times their size."""
    zeros = zlib.compress(bytes(size), 9)
    packed = b"ZLIB" + struct.pack(">Q", size) + zeros
    lines = _lines(1 << 10)
    return {**lines, ".zdebug_str": packed, ".zdebug_line_str": packed}


def _sections(
    units: bytes, abbreviations: bytes, lines: bytes = b"", ranges: bytes = b""
) -> dict[str, bytes]:
    return {
        ".debug_info": units,
        ".debug_abbrev": abbreviations + b"\0",
        ".debug_line": lines,
        ".debug_ranges": ranges,
    }


DWARF_KINDS: dict[str, Callable[[int], dict[str, bytes]]] = {
    "dwarf-lines": _lines,
    "dwarf-units": _least_units,
    "dwarf-abbreviations": _abbreviations,
    "dwarf-ranges": _ranges,
    "dwarf-files": _files,
    "dwarf-names": _names,
    "dwarf-programs": _programs,
    "dwarf-bomb": _bomb,
}


def _code_size(size: int) -> int:
    """Return the bytes of code of a file with `size` bytes of DWARF."""
    return max(size // 2 // FUNCTION_SIZE, 1) * FUNCTION_SIZE


def build_dwarf_elf(kind: str, size: int) -> bytes:
    """Return a shared object with about `size` bytes of DWARF of one of `DWARF_KINDS`."""
    return shared_object(repeated_functions(_code_size(size)), DWARF_KINDS[kind](size))


ELF_KINDS = ("elf-little", "elf-whole")
"""Of the first 60 functions run, of the other all functions run once."""


def write_elf_recording(path: Path, kind: str, size: int) -> None:
    """Write a recording of one thread whose code is in a large ELF file beside the recording.

    `kind` is one of `ELF_KINDS` (`size` bytes of code) or of `DWARF_KINDS` (`size` bytes of DWARF;
    60 functions run).
    """
    if kind in ELF_KINDS:
        data, size = build_large_elf(size), size - size % FUNCTION_SIZE
    else:
        data, size = build_dwarf_elf(kind, size), _code_size(size)
    executed = size // FUNCTION_SIZE if kind == "elf-whole" else 60
    file = path.with_suffix(".so")
    file.write_bytes(data)
    with Writer(path, config=0x2601, cpuid="GenuineIntel,6,94,3") as out:
        out.comm(1, 1, 1, file.name, by_exec=True)
        out.mmap2(1, 1, 1, _LOADED, -(-size // 4096) * 4096, TEXT, 5, 2, 8, 1, 4711, 0, str(file))
        out.itrace_start(1, 1, 2)
        out.auxtrace(1, 1, b"".join(_packets(executed)), None, 3)
