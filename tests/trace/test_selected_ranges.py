"""Address ranges of selected functions: those of nm, moved to the mappings."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from rtit.errors import UsageError
from rtit.image import FileSymbols, Images
from rtit.trace import SelectedRange, SelectedRanges, Selection
from rtit.trace.tables.selection import LATEST

BASE = 0x7F00_0000_0000
SOURCE = """
namespace shapes { __attribute__((noinline)) int area(int x) { return x * x; } }
extern "C" __attribute__((noinline)) int plain(int x) { return shapes::area(x) + 1; }
extern "C" int same(int) __attribute__((alias("plain")));
int main(int argc, char **) { return plain(argc); }
"""


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    for name in ("g++", "nm"):
        if shutil.which(name) is None:
            pytest.skip(f"{name} is not installed")
    folder = tmp_path_factory.mktemp("places")
    (folder / "p.cpp").write_text(SOURCE)
    command = ["g++", "-O1", "-pie", "-fPIE", "-o", "program", "p.cpp"]
    subprocess.run(command, cwd=folder, check=True)
    return folder / "program"


@pytest.fixture(scope="module")
def nm_ranges(program: Path) -> dict[str, tuple[int, int]]:
    """Return the range of each function by nm: first address and end."""
    printed = subprocess.run(["nm", "-nS", program], check=True, capture_output=True, text=True)
    rows = re.findall(r"^(\w+) (\w+) [tT] (\S+)$", printed.stdout, re.M)
    return {name: (int(at, 16), int(at, 16) + int(size, 16)) for at, size, name in rows}


@pytest.fixture
def images(program: Path) -> Images:
    """Process 7 has the program at BASE from 100 on, elsewhere after an exec at 500; 8 nothing."""
    elf = FileSymbols(program).elf
    offset, address, size = next(row[:3] for row in elf.segments if row[4] & 1)
    low = offset & ~0xFFF
    length = (offset + size - low + 0xFFF) & ~0xFFF
    images = Images()
    for time, base in ((100, BASE), (500, 2 * BASE)):
        images.exec(time, 7)
        images.mmap(time, 7, 7, base + address - (offset - low), length, low, str(program))
    assert not images.problems
    return images


def find_ranges(images: Images, *functions: str, pid: int = 7) -> list[SelectedRange]:
    ranges = SelectedRanges(Selection(functions=functions), images).in_processes(pid)
    assert ranges is not None
    return ranges


def test_function_has_range_in_each_mapping(
    images: Images, nm_ranges: dict[str, tuple[int, int]]
) -> None:
    start, end = nm_ranges["plain"]
    expected = [
        SelectedRange(BASE + start, BASE + end, 100, 500),
        SelectedRange(2 * BASE + start, 2 * BASE + end, 500, LATEST),
    ]
    assert find_ranges(images, "plain") == expected
    assert find_ranges(images, "plain@program") == expected
    assert find_ranges(images, "same") == expected
    assert find_ranges(images, "plain@other") == []
    assert find_ranges(images, "plain", pid=8) == []


def test_cpp_names_match_mangled_and_demangled(
    images: Images, nm_ranges: dict[str, tuple[int, int]], program: Path
) -> None:
    start, end = nm_ranges["_ZN6shapes4areaEi"]
    for name in ("shapes::area", "_ZN6shapes4areaEi", f"shapes::area@{program}"):
        assert find_ranges(images, name)[0] == (BASE + start, BASE + end, 100, 500)


def test_functions_and_ranges_are_selected_together(
    images: Images, nm_ranges: dict[str, tuple[int, int]]
) -> None:
    selection = Selection(functions=("main", "plain"), ranges=((0x10, 0x20),))
    ranges = SelectedRanges(selection, images).in_processes(7)
    assert ranges is not None
    assert ranges[0] == SelectedRange(0x10, 0x20)
    assert {one_range[:2] for one_range in ranges if one_range.since == 100} == {
        (BASE + start, BASE + end) for start, end in (nm_ranges["main"], nm_ranges["plain"])
    }
    assert SelectedRanges(selection, images).in_processes(8) == [SelectedRange(0x10, 0x20)]
    assert SelectedRanges(Selection(), images).in_processes(7) is None


def test_file_name_selects_code_outside_functions(
    images: Images, nm_ranges: dict[str, tuple[int, int]], program: Path
) -> None:
    nameless = [one_range for one_range in find_ranges(images, "program") if one_range.since == 100]
    assert nameless == [
        one_range for one_range in find_ranges(images, str(program)) if one_range.since == 100
    ]
    assert nameless
    for start, end in nm_ranges.values():
        assert not any(
            one_range.start < BASE + end and BASE + start < one_range.end for one_range in nameless
        )


def test_anonymous_memory_is_selected_by_name(images: Images) -> None:
    images.mmap(600, 7, 7, 0x1000, 0x1000, 0, "[vdso]")
    assert find_ranges(images, "[vdso]") == [SelectedRange(0x1000, 0x2000, 500, LATEST)]


def test_unknown_function_raises_usage_error(images: Images) -> None:
    ranges = SelectedRanges(Selection(functions=("main", "plian")), images)
    with pytest.raises(UsageError, match=r"--function plian: .*similar names: .*plain"):
        ranges.check_functions_exist([7])
    SelectedRanges(Selection(functions=("main",)), images).check_functions_exist([7])
    with pytest.raises(UsageError, match="main"):
        SelectedRanges(Selection(functions=("main",)), images).check_functions_exist([8])
