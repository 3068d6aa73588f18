"""Small ELF files that ask for much memory or time."""

from __future__ import annotations

import struct
import subprocess
import sys
from pathlib import Path

import pytest

from support.elf import CODE_AT, NOTE, PROGBITS, STRTAB, build_elf, elf_with_symbols, section_header

core = pytest.importorskip("rtit._core", reason="the native module is not built")


def names_of(path: Path) -> list[str]:
    _, _, names, _ = core.ElfFile(path).symbols()
    return list(names)


def megabytes(expression: str, path: Path) -> int:
    """What a process takes that evaluates `expression` of the file `elf`."""
    # The resource module's figure would tell of the process that started it, too.
    script = (
        "import resource, sys; resource.setrlimit(resource.RLIMIT_CPU, (60, 60))\n"
        "from rtit._core import ElfFile; elf = ElfFile(sys.argv[1]); "
        f"{expression}; words = open('/proc/self/status').read().split(); "
        "print(int(words[words.index('VmHWM:') + 1]) // 1024)"
    )
    command = [sys.executable, "-c", script, str(path)]
    return int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def test_long_symbol_name_is_dropped(tmp_path: Path) -> None:
    long = b"n" * (1 << 20)
    path = tmp_path / "p"
    path.write_bytes(elf_with_symbols(b"\0" + long + b"\0short\0", [1, len(long) + 2]))
    assert names_of(path) == ["short"]


def test_symbols_that_share_a_name_stay_within_bounds(tmp_path: Path) -> None:
    """40,000 symbols, 1 MB, with names of 16 KB: 640 MB if all were taken."""
    long = b"n" * ((1 << 14) - 2)
    path = tmp_path / "p"
    path.write_bytes(elf_with_symbols(b"\0" + long + b"\0", [1] * 40_000))
    # All names of a file are held to its size and a megabyte.
    assert megabytes("elf.symbols()", path) < 60
    assert 0 < len(names_of(path)) < 200


def test_many_large_notes_are_not_read(tmp_path: Path) -> None:
    """Sections may lie over each other: 2000 notes of 1 MB in a file of 1 MB."""
    build_id = struct.pack("<III4s20s", 4, 20, 3, b"GNU\0", b"x" * 20)
    padding = struct.pack("<III4s", 4, (1 << 20) - 16, 9, b"XYZ\0") + bytes((1 << 20) - 16)
    small = build_elf([(NOTE, build_id, 0, 0)])
    path = tmp_path / "p"
    path.write_bytes(small)
    assert core.ElfFile(path).build_id == b"x" * 20
    large = build_elf([(NOTE, padding + build_id, 0, 0)])
    count = 2000
    table = struct.unpack_from("<Q", large, 40)[0]
    null, note, names = (large[table + at : table + at + 64] for at in (0, 64, 128))
    patched = bytearray(large[:table] + null + note * count + names)
    struct.pack_into("<HH", patched, 60, count + 2, count + 1)
    path.write_bytes(patched)
    assert core.ElfFile(path).build_id is None
    assert megabytes("elf.build_id", path) < 150


def linked(copies: int, slots: int) -> bytes:
    """`copies` relocation sections that are one, and as many .plt sections that are one."""
    names = b"\0.plt\0" + b"f" * 1000 + b"\0"
    symbols = bytes(24) + struct.pack("<IBBHQQ", 6, 0x12, 0, 0, 0, 0)
    got = 0x100000
    rows, stubs = b"", b""
    for number in range(slots):
        rows += struct.pack("<QQq", got + 8 * number, 1 << 32 | 7, 0)
        address = CODE_AT + 16 * number
        stubs += b"\xff\x25" + struct.pack("<i", got + 8 * number - address - 6) + bytes(10)
    parts, at = [], 64
    for data in (names, symbols, rows, stubs):
        parts.append((at, len(data)))
        at += len(data)
    (name_at, name_size), (symbol_at, symbol_size), (row_at, row_size), (stub_at, stub_size) = parts
    headers = [
        bytes(64),
        section_header(STRTAB, name_at, name_size),
        section_header(11, symbol_at, symbol_size, 1, 24),
        *[section_header(4, row_at, row_size, 2, 24)] * copies,
        *[struct.pack("<I", 1) + section_header(PROGBITS, stub_at, stub_size, 0, 16)[4:]] * copies,
    ]
    identity = b"\x7fELF\x02\x01\x01" + bytes(9)
    header = struct.pack(
        "<16sHHIQQQIHHHHHH", identity, 3, 62, 1, CODE_AT, 0, at, 0, 64, 56, 0, 64, len(headers), 1
    )
    return header + names + symbols + rows + stubs + b"".join(headers)


def test_overlapping_linkage_tables_are_bounded(tmp_path: Path) -> None:
    """As products of sections they would be 10^9 stubs, and gigabytes of names."""
    path = tmp_path / "p"
    path.write_bytes(linked(1, 100))
    assert names_of(path) == ["f" * 1000 + "@plt"] * 100
    path.write_bytes(linked(1000, 2000))
    assert path.stat().st_size < 300_000
    assert megabytes("elf.symbols()", path) < 60
    # What there is of names beside the file's own size is a megabyte.
    assert 0 < len(names_of(path)) <= 1300


def test_tables_in_sparse_file_are_bounded(tmp_path: Path) -> None:
    """A symbol table of a gigabyte, and nothing of it on disk."""
    path = tmp_path / "p"
    table = struct.unpack_from("<Q", small := elf_with_symbols(b"\0name\0", [1]), 40)[0]
    huge = bytearray(small)
    struct.pack_into("<Q", huge, table + 2 * 64 + 32, (1 << 30) // 24 * 24)
    path.write_bytes(huge)
    with path.open("r+b") as file:
        file.truncate(2 << 30)
    assert megabytes("elf.symbols()", path) < 60


def test_many_segments_are_read_in_bounded_time(tmp_path: Path) -> None:
    """Each symbol is looked for in a few of them."""
    symbols = elf_with_symbols(b"\0name\0", [1] * 2000)
    count = 65_000
    segment = struct.pack("<IIQQQQQQ", 1, 5, 64, 1 << 40, 0, 16, 16, 1)
    patched = bytearray(symbols) + segment * count
    struct.pack_into("<Q", patched, 32, len(symbols))
    struct.pack_into("<H", patched, 56, count)
    path = tmp_path / "p"
    path.write_bytes(patched)
    assert megabytes("from rtit._core import Functions; Functions(elf).columns()", path) < 100
