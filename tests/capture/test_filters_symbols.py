"""Address filters by function name, against what nm prints."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from rtit.capture.filters import parse_filters
from rtit.errors import UsageError
from rtit.perfdata.filters import AddressFilter

pytest.importorskip("rtit._core", reason="the native module is not built")

FIRST = """
__attribute__((noinline)) static int work(int x) { return x * 7 + 1; }
__attribute__((noinline)) int first(int x) { return work(x); }
int main(int argc, char **argv) { extern int second(int); return first(argc) + second(argc); }
"""
SECOND = """
__attribute__((noinline)) static int work(int x) { return x * 5 + 2; }
__attribute__((noinline)) int second(int x) { return work(x); }
"""


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    for name in ("gcc", "nm", "readelf"):
        if shutil.which(name) is None:
            pytest.skip(f"{name} is not installed")
    folder = tmp_path_factory.mktemp("filters")
    (folder / "a.c").write_text(FIRST)
    (folder / "b.c").write_text(SECOND)
    # Addresses differ from file offsets here, as they do in most programs.
    command = ["gcc", "-O1", "-fno-inline", "-no-pie", "-o", "program", "a.c", "b.c"]
    subprocess.run(command, cwd=folder, check=True)
    return folder / "program"


def ranges(program: Path, name: str) -> list[tuple[int, int]]:
    """(file offset, size) of every symbol `name`, in order of address, by nm and readelf."""
    listed = subprocess.run(["nm", "-nS", program], check=True, capture_output=True, text=True)
    table = subprocess.run(["readelf", "-lW", program], check=True, capture_output=True, text=True)
    load = re.search(r"LOAD +(\w+) (\w+) \w+ \w+ \w+ R E", table.stdout)
    assert load is not None
    shift = int(load[2], 16) - int(load[1], 16)
    rows = re.findall(rf"^(\w+) (\w+) [tT] {name}$", listed.stdout, re.M)
    return [(int(value, 16) - shift, int(size, 16)) for value, size in rows]


def resolve_filter(text: str, program: Path) -> tuple[int, int]:
    (found,) = parse_filters(text, program=program)
    return found.offset, found.size


@pytest.mark.parametrize("name", ["main", "first", "second"])
def test_function_filter_covers_its_bytes(program: Path, name: str) -> None:
    (expected,) = ranges(program, name)
    assert resolve_filter(f"filter {name}", program) == expected
    assert resolve_filter(f"filter {name} #g @ {program}", program) == expected
    assert resolve_filter(f"filter {name} #1 @{program}", program) == expected
    assert resolve_filter(f"tracestop {name} / 0x10 @ {program}", program) == (expected[0], 0x10)


def test_range_from_one_function_to_the_end_of_another(program: Path) -> None:
    (first,), (second,) = ranges(program, "first"), ranges(program, "second")
    whole = (first[0], second[0] + second[1] - first[0])
    assert resolve_filter("filter first / second", program) == whole
    assert resolve_filter(f"stop {first[0]:#x} / second", program) == whole
    with pytest.raises(UsageError, match="ends before second begins"):
        resolve_filter("filter second / first", program)


def test_number_selects_among_functions_of_one_name(program: Path) -> None:
    both = ranges(program, "work")
    assert len(both) == 2
    assert [resolve_filter(f"filter work #{n}", program) for n in (1, 2)] == both
    assert resolve_filter("filter work#2", program) == both[1]
    assert (
        resolve_filter("filter work #1 / work #2", program)[1]
        == both[1][0] + both[1][1] - both[0][0]
    )
    with pytest.raises(UsageError) as caught:
        resolve_filter("filter work", program)
    for number, (offset, _) in enumerate(both, 1):
        assert f"#{number} {offset:#x} local work" in caught.value.hint
    for selection, message in (("#g", "no global function"), ("#3", "no function number 3")):
        with pytest.raises(UsageError, match=message):
            resolve_filter(f"filter work {selection}", program)


def test_unknown_function_error_lists_similar_names(program: Path) -> None:
    with pytest.raises(UsageError, match=r"no function named 'secnd'; similar names: .*second"):
        resolve_filter("filter secnd", program)
    with pytest.raises(UsageError, match="put white space around names"):
        resolve_filter(f"filter main@{program}", program)
    with pytest.raises(UsageError, match="# must be followed by a number"):
        resolve_filter("filter main #x", program)


def test_text_file_has_no_functions(tmp_path: Path) -> None:
    path = tmp_path / "script"
    path.write_text("#!/bin/sh\n")
    with pytest.raises(Exception, match="not an ELF file"):
        parse_filters("filter main", program=path)


def test_star_covers_the_whole_file(program: Path) -> None:
    size = program.stat().st_size
    real = str(program.resolve())
    assert parse_filters(f"filter * @ {program}") == [AddressFilter("filter", real, 0, size)]
