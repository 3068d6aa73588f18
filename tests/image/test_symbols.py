"""Symbol names for addresses at a time."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from rtit.image import FileSymbols, Images, SymbolLocation, Symbols

pytest.importorskip("rtit._core", reason="the native module is not built")

BASE = 0x7F00_0000_0000
SOURCE = """
#include <cstdio>
namespace shapes { __attribute__((noinline)) int area(int x) { return x * x; } }
extern "C" __attribute__((noinline)) int plain(int x) { return shapes::area(x) + 1; }
int main(int argc, char **argv) { std::puts(argv[0]); return plain(argc); }
"""


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    for name in ("g++", "nm", "objcopy", "strip"):
        if shutil.which(name) is None:
            pytest.skip(f"{name} is not installed")
    folder = tmp_path_factory.mktemp("symbols")
    (folder / "p.cpp").write_text(SOURCE)
    command = ["g++", "-O1", "-pie", "-fPIE", "-o", "program", "p.cpp"]
    subprocess.run(command, cwd=folder, check=True)
    shutil.copy(folder / "program", folder / "stripped")
    subprocess.run(["strip", "stripped"], cwd=folder, check=True)
    command = ["objcopy", "-R", ".eh_frame", "-R", ".eh_frame_hdr", "stripped", "bare"]
    subprocess.run(command, cwd=folder, check=True)
    return folder / "program"


def mapped(path: Path) -> tuple[Images, int]:
    """The executable segment of `path` mapped as the kernel does; and what to add to addresses."""
    elf = FileSymbols(path).elf
    offset, address, size = next(row[:3] for row in elf.segments if row[4] & 1)
    low = offset & ~0xFFF
    images = Images()
    length = (offset + size - low + 0xFFF) & ~0xFFF
    images.mmap(100, 7, 7, BASE + address - (offset - low), length, low, str(path))
    assert not images.problems
    return images, BASE


def addresses(path: Path) -> dict[str, tuple[int, int]]:
    printed = subprocess.run(["nm", "-nS", path], check=True, capture_output=True, text=True)
    rows = re.findall(r"^(\w+) (\w+) [tT] (\S+)$", printed.stdout, re.M)
    return {name: (int(value, 16), int(size, 16)) for value, size, name in rows}


def test_symbols_match_nm(program: Path) -> None:
    images, base = mapped(program)
    symbols = Symbols(images)
    listed = addresses(program)
    for name, shown in (
        ("main", "main"),
        ("plain", "plain"),
        ("_ZN6shapes4areaEi", "shapes::area"),
    ):
        value, size = listed[name]
        assert symbols.lookup(7, 200, base + value) == SymbolLocation(shown, 0, str(program))
        last = symbols.lookup(7, 200, base + value + size - 1)
        assert last == SymbolLocation(shown, size - 1, str(program))
        assert str(last) == f"{shown}+{size - 1:#x}"
    raw = Symbols(images, demangle=False)
    value, _ = listed["_ZN6shapes4areaEi"]
    assert raw.lookup(7, 200, base + value).name == "_ZN6shapes4areaEi"


def test_a_stripped_file_names_functions_by_address(program: Path) -> None:
    value, _ = addresses(program)["plain"]
    images, base = mapped(program.with_name("stripped"))
    found = Symbols(images).lookup(7, 200, base + value)
    assert (found.name, found.offset) == (f"stripped+{value:#x}", 0)
    assert str(found) == f"stripped+{value:#x}"
    images, base = mapped(program.with_name("bare"))
    found = Symbols(images).lookup(7, 200, base + value)
    assert (found.name, found.offset) == ("", value)
    assert str(found) == f"bare+{value:#x}"
    stubs = [f for f in FileSymbols(program).functions if f.name == "puts@plt"]
    assert str(Symbols(images).lookup(7, 200, base + stubs[0].address)) == "puts@plt"


def test_unmapped_address_has_no_name(program: Path) -> None:
    images, _ = mapped(program)
    symbols = Symbols(images)
    for tid, ip in ((7, 0x1234), (99, BASE), (7, (1 << 64) - 1)):
        assert symbols.lookup(tid, 200, ip) == SymbolLocation("", ip, "")
    assert str(symbols.lookup(7, 200, 0x1234)) == "0x1234"


def test_reused_address_has_names_by_time(program: Path) -> None:
    images, base = mapped(program)
    value, _ = addresses(program)["main"]
    images.mmap(500, 7, 7, base, 1 << 20, 0, "//anon")
    images.exec(900, 7, 7)
    symbols = Symbols(images)
    found = [symbols.lookup(7, time, base + value) for time in (0, 499, 500, 899, 900)]
    assert [(each.name, each.module) for each in found] == [
        ("main", str(program)),
        ("main", str(program)),
        ("", "//anon"),
        ("", "//anon"),
        ("", ""),
    ]


def test_changed_file_gives_no_names(program: Path) -> None:
    images = Images()
    images.mmap(0, 7, 7, BASE, 1 << 12, 0x1000, str(program), build_id=b"\1")
    assert Symbols(images).lookup(7, 0, BASE + 4) == SymbolLocation("", 0x1004, str(program))


def test_arrays_give_what_single_lookups_give(program: Path) -> None:
    images, base = mapped(program)
    images.mmap(500, 7, 7, base + 0x1000, 0x200, 0, "//anon")
    images.mmap(600, 7, 7, base + 0x10000, 0x1000, 0, "/missing")
    images.fork(700, 8, 7, 8, 7)
    images.exec(900, 7, 7)
    random = np.random.default_rng(1)
    ips = base + random.integers(0xE00, 0x2200, 4000).astype(np.uint64)
    ips[:50] += np.uint64(0xF000)
    times = random.integers(0, 1000, len(ips)).astype(np.uint64)
    for tid in (7, 8, 9):
        symbols = Symbols(images)
        numbers, offsets = symbols.lookup_many(tid, times, ips)
        assert numbers.dtype == np.dtype(np.uint32)
        assert offsets.dtype == np.dtype(np.uint64)
        for number, offset, time, ip in zip(numbers, offsets, times, ips, strict=True):
            found = symbols.lookup(tid, int(time), int(ip))
            assert (*symbols.table[number], int(offset)) == (found.name, found.module, found.offset)
    assert symbols.table[0] == ("", "")


def test_lookup_of_empty_arrays_gives_empty_arrays(program: Path) -> None:
    numbers, offsets = Symbols(mapped(program)[0]).lookup_many(7, [], [])
    assert (len(numbers), len(offsets)) == (0, 0)
