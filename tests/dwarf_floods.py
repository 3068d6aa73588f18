"""Recordings of one thread whose code is an ELF file with DWARF that asks for too much: of tables
that many share, each is as large as all who share it.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable
from pathlib import Path

import elf_floods
from elf_floods import TEXT

_UNIT = 0x11
_NAME, _LINES, _LOW, _HIGH, _RANGES, _FOLDER = 0x03, 0x10, 0x11, 0x12, 0x55, 0x1B
_ADDRESS, _SIZE, _STRING, _OFFSET = 0x01, 0x07, 0x08, 0x17
ONE_LINE_ON = 1 + 3 + 12 + 13
"""The special opcode of `elf_floods` for a byte and a line more."""


def _declared(code: bytes, *attributes: int) -> bytes:
    """An abbreviation of a unit without children, of attributes and forms."""
    return code + bytes([_UNIT, 0, *attributes, 0, 0])


def _uleb(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def _units(entry: bytes, size: int) -> bytes:
    """As many units of this root as there is room for."""
    unit = struct.pack("<IHIB", 7 + len(entry), 4, 0, 8) + entry
    return unit * max(size // len(unit), 1)


def program(rows: bytes, files: bytes = b"source.c\0\0\0\0") -> bytes:
    """DWARF 4, 6.2.4; the state of `elf_floods`."""
    header = struct.pack("<BBBbBB", 1, 1, 1, -3, 12, 13)
    header += bytes([0, 1, 1, 1, 1, 0, 0, 0, 1, 0, 0, 1]) + b"\0" + files + b"\0"
    body = struct.pack("<HI", 4, len(header)) + header + rows
    return struct.pack("<I", len(body)) + body


def _at(address: int) -> bytes:
    return b"\0\x09\x02" + struct.pack("<Q", address)


_END = b"\x02\x01\0\x01\x01"
"""A byte more, and the sequence ends."""


def _lines(size: int) -> dict[str, bytes]:
    """A line for each byte of the code, and for each again."""
    code = _code(size)
    sequence = _at(TEXT) + b"\x01" + bytes([ONE_LINE_ON]) * (code - 1) + _END
    lines = program((sequence * (size // len(sequence) + 1))[:size] + _END)
    root = b"\x01source.c\0" + struct.pack("<IQQ", 0, TEXT, code)
    declared = _declared(b"\x01", _NAME, _STRING, _LINES, _OFFSET, _LOW, _ADDRESS, _HIGH, _SIZE)
    return _sections(_units(root, 0), declared, lines)


def _least_units(size: int) -> dict[str, bytes]:
    return _sections(_units(b"\x01", size), _declared(b"\x01"))


def _abbreviations(size: int) -> dict[str, bytes]:
    """All units have the last abbreviation of one table, which begins elsewhere for each."""
    other = _declared(b"\x02")
    table = other * (size // 2 // len(other)) + _declared(b"\x01")
    unit = struct.Struct("<IHIBB")
    units = b"".join(
        unit.pack(8, 4, number * len(other), 8, 1) for number in range(size // 2 // unit.size)
    )
    return _sections(units, table)


def _ranges(size: int) -> dict[str, bytes]:
    """All units have the same ranges, of no two of which the code is the same."""
    code = _code(size)
    pairs = b"".join(
        struct.pack("<QQ", at % code + TEXT, at % code + TEXT + 1) for at in range(0, size // 16, 2)
    )
    root = b"\x01" + struct.pack("<IIQ", 0, 0, 0)
    declared = _declared(b"\x01", _RANGES, _OFFSET, _LINES, _OFFSET, _LOW, _ADDRESS)
    lines = program(_at(TEXT) + b"\x01" + _END)
    return _sections(_units(root, size // 2), declared, lines, pairs + bytes(16))


def _files(size: int) -> dict[str, bytes]:
    """All units have one table of files."""
    lines = program(_at(TEXT) + b"\x01" + _END, b"a\0\0\0\0" * (size // 10))
    root = b"\x01" + struct.pack("<I", 0)
    return _sections(_units(root, size // 2), _declared(b"\x01", _LINES, _OFFSET), lines)


def _names(size: int) -> dict[str, bytes]:
    """All units have one table of files, each in a folder with a long name."""
    folder = b"/" + b"x" * 4000
    files = [b"%d\0\0\0\0" % number for number in range(size // 24)]
    rows = b"".join(
        _at(TEXT + number) + b"\x04" + _uleb(number + 1) + b"\x01" + _END
        for number in range(size // 60)
    )
    root = b"\x01" + folder + b"\0" + struct.pack("<I", 0)
    declared = _declared(b"\x01", _FOLDER, _STRING, _LINES, _OFFSET)
    return _sections(_units(root, size // 4), declared, program(rows, b"".join(files)))


def _programs(size: int) -> dict[str, bytes]:
    """All units have the same lines."""
    rows = _at(TEXT) + b"\x01" + bytes([ONE_LINE_ON]) * (size // 2) + _END
    root = b"\x01" + struct.pack("<I", 0)
    declared = _declared(b"\x01", _LINES, _OFFSET)
    return _sections(_units(root, size // 2), declared, program(rows))


def _bomb(size: int) -> dict[str, bytes]:
    """Sections that are a thousandth of what is in them."""
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


KINDS: dict[str, Callable[[int], dict[str, bytes]]] = {
    "dwarf-lines": _lines,
    "dwarf-units": _least_units,
    "dwarf-abbreviations": _abbreviations,
    "dwarf-ranges": _ranges,
    "dwarf-files": _files,
    "dwarf-names": _names,
    "dwarf-programs": _programs,
    "dwarf-bomb": _bomb,
}


def _code(size: int) -> int:
    """Bytes of code of a file with so many bytes of DWARF."""
    return max(size // 2 // elf_floods.FUNCTION, 1) * elf_floods.FUNCTION


def elf(kind: str, size: int) -> bytes:
    """A shared object with about so many bytes of DWARF."""
    return elf_floods.with_sections(elf_floods.code(_code(size)), KINDS[kind](size))


def recorded(path: Path, size: int) -> Path:
    """Writes a recording of code with `size` bytes of DWARF, with the file beside it; its name
    without the suffix is one of KINDS. Hardly anything of the code runs.
    """
    return elf_floods.recorded_with(path, elf(path.stem, size), _code(size), 60)
