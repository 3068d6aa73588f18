"""Source lines from DWARF, also from compressed sections."""

from __future__ import annotations

import shutil
import struct
import subprocess
import zlib
from itertools import pairwise
from pathlib import Path

import pytest

from rtit.image import FileSymbols

core = pytest.importorskip("rtit._core", reason="the native module is not built")

SOURCE = "int one(int x)\n{\n  return x + 1;\n}\nint two(int x)\n{\n  return x * 2;\n}\n"
SHF_COMPRESSED = 1 << 11
ZLIB, ZSTD = 1, 2


def made(folder: Path, kind: str) -> Path:
    """A library with the functions, its DWARF stored so: none, zlib or zstd."""
    compiler = shutil.which("gcc")
    if compiler is None:
        pytest.skip("gcc is not installed")
    (folder / "two.c").write_text(SOURCE)
    library = folder / "two.so"
    how = "-gz=none" if kind == "none" else "-gz=zlib"
    subprocess.run(
        [compiler, "-g", "-O0", how, "-shared", "-o", str(library), "two.c"], cwd=folder, check=True
    )
    if kind == "zstd":
        library.write_bytes(with_zstd(library.read_bytes()))
    return library


def with_zstd(data: bytes) -> bytes:
    """The file with its zlib sections as zstd ones (RFC 8878): a frame of raw blocks each."""
    new = bytearray(data)
    for at, place, _, _ in compressed(data):
        [size] = struct.unpack_from("<Q", data, at + 0x20)
        plain = zlib.decompress(data[place + 24 : place + size])
        frame = struct.pack("<IBI", 0xFD2FB528, 0xA0, len(plain))  # one segment, a size of 4 bytes
        blocks = [plain[part : part + 0x8000] for part in range(0, len(plain), 0x8000)]
        for number, block in enumerate(blocks, 1):
            frame += (len(block) << 3 | (number == len(blocks))).to_bytes(3, "little") + block
        stored = struct.pack("<IIQQ", ZSTD, 0, len(plain), 1) + frame
        struct.pack_into("<QQ", new, at + 0x18, len(new), len(stored))
        new += stored
    return bytes(new)


def compressed(data: bytes) -> list[tuple[int, int, int, int]]:
    """Of each compressed section: where its section header and its own header are, the kind, the
    size that it tells.
    """
    table, size, count = (
        struct.unpack_from("<Q", data, 0x28)[0],
        *struct.unpack_from("<HH", data, 0x3A),
    )
    found = []
    for at in range(table, table + size * count, size):
        flags, _, place = struct.unpack_from("<QQQ", data, at + 8)
        if flags & SHF_COMPRESSED:
            kind, _, whole = struct.unpack_from("<IIQ", data, place)
            found.append((at, place, kind, whole))
    return found


def lines(library: Path) -> list[tuple[str, int] | None]:
    symbols = FileSymbols(library)
    places = [symbols.find_by_name(name)[0] for name in ("one", "two")]
    found = [symbols.native.line(place.offset) for place in places]
    return [(Path(each[0]).name, each[1]) if each is not None else None for each in found]


@pytest.mark.parametrize(("kind", "number"), [("none", None), ("zlib", ZLIB), ("zstd", ZSTD)])
def test_source_lines_match_addr2line(kind: str, number: int | None, tmp_path: Path) -> None:
    library = made(tmp_path, kind)
    kinds = {each[2] for each in compressed(library.read_bytes())}
    assert kinds == (set() if number is None else {number})
    assert lines(library) == [("two.c", 2), ("two.c", 6)]


@pytest.mark.parametrize("kind", ["zlib", "zstd"])
@pytest.mark.parametrize("size", [0, 1, 1 << 27, 1 << 40, (1 << 64) - 1])
def test_invalid_sections_have_no_lines(kind: str, size: int, tmp_path: Path) -> None:
    library = made(tmp_path, kind)
    data = bytearray(library.read_bytes())
    for _, place, _, _ in compressed(bytes(data)):
        struct.pack_into("<Q", data, place + 8, size)
    library.write_bytes(data)
    assert lines(library) == [None, None]


@pytest.mark.parametrize("kind", ["zlib", "zstd"])
def test_broken_bytes_have_no_lines(kind: str, tmp_path: Path) -> None:
    library = made(tmp_path, kind)
    data = bytearray(library.read_bytes())
    for _, place, _, _ in compressed(bytes(data)):
        data[place + 24 : place + 32] = bytes(8)
    library.write_bytes(data)
    assert lines(library) == [None, None]


@pytest.mark.parametrize("kind", ["none", "zlib"])
def test_all_lines_match_single_lookups(kind: str, tmp_path: Path) -> None:
    symbols = FileSymbols(made(tmp_path, kind))
    *columns, files, following, is_incomplete = symbols.native.lines()
    assert (following, is_incomplete) == (None, False)
    rows = [*zip(*columns, strict=True)]
    assert {row[3] for row in rows} >= {2, 6}
    assert all(start < end for start, end, _, _ in rows)
    assert all(row[1] <= after[0] for row, after in pairwise(rows))
    for function in symbols.functions:
        for address in range(function.address, function.address + function.size):
            offset = function.offset + address - function.address
            at = [(files[file], line) for start, end, file, line in rows if start <= address < end]
            known = symbols.native.line(offset)
            assert at == ([known] if known is not None else [])
