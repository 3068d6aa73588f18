"""Source lines from all forms and locations of DWARF."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from programs.build import SOURCES
from rtit.capture.backends import start_recording
from rtit.capture.request import RecordRequest
from rtit.coverage import SourceFile, coverage, source_files
from rtit.diff.diff_traces import diff_traces
from rtit.trace import Trace
from support.recordings import record_to_end, require_backend

SOURCE = SOURCES / "builds.c"
NUMBERS = [5, 3, 9, 1, 7, 2, 8, 6, 4, 0]
Built = Callable[[str], Path]

FLAGS = {
    "dwarf 4": ["-gdwarf-4"],
    "dwarf 5": ["-gdwarf-5"],
    "split 4": ["-gdwarf-4", "-gsplit-dwarf"],
    "split 5": ["-gdwarf-5", "-gsplit-dwarf"],
    "compressed": ["-gdwarf-5", "-gz=zlib"],
    "separate": ["-gdwarf-5"],
    "separate and compressed": ["-gdwarf-5", "-gz=zlib"],
}


def line_of(text: str) -> int:
    [number] = [n for n, each in enumerate(SOURCE.read_text().splitlines(), 1) if text in each]
    return number


def sorted_by_hand(*, less: bool) -> tuple[int, int]:
    """Return the comparisons of the sort, and how many are true, by its source."""
    numbers, comparisons, yes = [*NUMBERS], 0, 0
    for i in range(1, len(numbers)):
        at = i
        while at > 0:
            comparisons += 1
            if (numbers[at] < numbers[at - 1]) != less:
                break
            yes += 1
            numbers[at], numbers[at - 1] = numbers[at - 1], numbers[at]
            at -= 1
    return comparisons, yes


def build_program_with_dwarf(folder: Path, form: str, *flags: str) -> Path:
    """Compile and link the program in its own folder, for split DWARF beside it."""
    tools = {name: shutil.which(name) for name in ("gcc", "objcopy")}
    if missing := [name for name, path in tools.items() if path is None]:
        pytest.skip(f"{missing[0]} is not installed")
    folder.mkdir()
    gcc = ["gcc", "-O1", *FLAGS[form], *flags]
    subprocess.run([*gcc, "-c", "-o", "builds.o", str(SOURCE)], cwd=folder, check=True)
    subprocess.run([*gcc, "-static", "-o", "builds", "builds.o"], cwd=folder, check=True)
    program = folder / "builds"
    if form.startswith("separate"):
        for options in (
            ["--only-keep-debug", "builds", "builds.debug"],
            ["--strip-debug", "builds"],
            ["--add-gnu-debuglink=builds.debug", "builds"],
        ):
            subprocess.run(["objcopy", *options], cwd=folder, check=True)
    assert (folder / "builds.dwo").exists() == form.startswith("split")
    return program


def record_program(program: Path) -> Path:
    require_backend("qemu")
    data = program.with_name("data")
    record_to_end(
        start_recording(
            RecordRequest([str(program)], backend="qemu", output=data, env={"PATH": "/bin"})
        )
    )
    return data


def of_program(data: Path) -> SourceFile:
    with Trace(data) as trace:
        found = coverage([(trace, trace.streams)])
        [source] = [each for each in source_files(found) if each.path.endswith(SOURCE.name)]
        return source


@pytest.mark.parametrize("form", FLAGS)
def test_line_and_branch_counts_for_each_dwarf_form(form: str, tmp_path: Path) -> None:
    source = of_program(record_program(build_program_with_dwarf(tmp_path / "one", form)))
    comparisons, yes = sorted_by_hand(less=True)
    compared = line_of("if (a LESS b) {")
    assert source.lines[compared] == comparisons
    assert source.lines[line_of("so that it is a branch")] == yes
    assert source.lines[line_of("return sum ^ 1;")] == len(NUMBERS)
    [branch] = [each for each in source.branches if each.line == compared]
    assert {branch.taken, branch.not_taken} == {yes, comparisons - yes}
    counts = {each.name: each.count for each in source.functions}
    assert counts["before"] == comparisons
    assert counts["mixed"] == counts["twice"] == len(NUMBERS)
    assert counts["main"] == 1


@pytest.mark.parametrize("form", FLAGS)
def test_divergence_has_source_line_for_each_dwarf_form(form: str, tmp_path: Path) -> None:
    one = record_program(build_program_with_dwarf(tmp_path / "one", form))
    other = record_program(build_program_with_dwarf(tmp_path / "two", form, "-DLESS=>"))
    with Trace(one) as left, Trace(other) as right:
        [thread] = diff_traces(left, right).threads
    assert thread.before[-1].source == f"{SOURCE.name}:{line_of('if (a LESS b) {')}"
    sides = {each[0].source for each in thread.after}
    assert f"{SOURCE.name}:{line_of('so that it is a branch')}" in sides


def test_debug_file_of_another_build_is_ignored(tmp_path: Path) -> None:
    """Its lines belong to other code."""
    program = build_program_with_dwarf(tmp_path / "one", "separate")
    other = build_program_with_dwarf(tmp_path / "two", "separate", "-DMORE")
    shutil.copy(other.with_name("builds.debug"), program.with_name("builds.debug"))
    data = record_program(program)
    with Trace(data) as trace:
        found = source_files(coverage([(trace, trace.streams)]))
    assert not [each for each in found if each.path.endswith(SOURCE.name)]
