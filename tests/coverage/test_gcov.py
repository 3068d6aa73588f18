"""Counts of lines equal those of gcov, which instruments the program."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from programs.build import SOURCES, CannotBuildError, compiled
from rtit.coverage import coverage, source_files
from rtit.coverage.source_coverage import SourceFile
from rtit.trace import Trace
from support.profiles import record_program

LAMBDA = r".*\[\]\(.*|\}\);"
"""First and last lines of a lambda: gcov leaves out the calls of the lambda."""
INLINED = r"INLINE int \w+\(int x\) \{"
"""First lines of inlined functions: they have no code."""
NOT_IN_GCOV = r"\}|\};|\}\);|(struct|class) \w+ (: \w+ )?\{"
"""Lines with code to which gcov gives no count: the end of a function, and of one that only its
class declares.
"""


def counts_of_gcov(source: Path, folder: Path) -> dict[int, int]:
    """Build a program for gcov, run it, and return the counts of its lines."""
    compiler = shutil.which("g++" if source.suffix == ".cpp" else "gcc")
    if compiler is None or shutil.which("gcov") is None:
        pytest.skip("gcov is not installed")
    # without inlining: gcov counts other lines twice that have inlined calls
    flags = ["-O0", "-g", "--coverage", "-DINLINE=static inline", "-o", "instrumented"]
    subprocess.run([compiler, *flags, source], cwd=folder, check=True)
    subprocess.run([folder / "instrumented"], cwd=folder, check=False, capture_output=True)
    notes = next(folder.glob("*.gcno")).name
    said = subprocess.run(
        ["gcov", "-t", notes], cwd=folder, check=True, capture_output=True, text=True
    ).stdout
    of_source = said.partition(f"Source:{source}\n")[2].partition("0:Source:")[0]
    counts: dict[int, int] = {}
    for line in of_source.splitlines():
        match = re.match(r" *(\d+|[#=]+)\*?: *(\d+):", line)
        # instances of a template follow the sum
        if match and match[2] != "0":
            counts.setdefault(int(match[2]), int(match[1]) if match[1].isdigit() else 0)
    return counts


@pytest.mark.parametrize(
    "name", ["profiled.c", "inlined.c", "linkage_stubs.c", "templates.cpp", "lambdas.cpp"]
)
def test_line_counts_equal_gcov(name: str, tmp_path: Path) -> None:
    source = SOURCES / name
    ours = record_coverage(source, tmp_path).lines
    theirs = counts_of_gcov(source, tmp_path)
    text = ["", *(line.strip() for line in source.read_text().splitlines())]
    for line in theirs:
        if re.fullmatch(LAMBDA, text[line]):
            assert ours[line] > theirs[line]
            theirs[line] = ours[line]
    theirs = {
        line: count for line, count in theirs.items() if not re.fullmatch(INLINED, text[line])
    }
    assert {line: ours.get(line) for line in theirs} == theirs
    assert len(theirs) > 5
    for line in ours.keys() - theirs.keys():
        assert re.fullmatch(NOT_IN_GCOV, text[line])


def record_coverage(source: Path, folder: Path) -> SourceFile:
    """Build a program with inlined calls, and return the coverage of its source."""
    language = "c++" if source.suffix == ".cpp" else "c"
    flags = ["-O0", "-g", "-DINLINE=static inline __attribute__((always_inline))"]
    try:
        program = compiled(f"plain-{source.stem}", [str(source)], language=language, flags=flags)
    except CannotBuildError as error:
        pytest.skip(str(error))
    with Trace(record_program(program, folder).data) as trace:
        found = source_files(coverage([(trace, trace.streams)]))
    (one,) = (each for each in found if each.path == str(source))
    return one


def test_constructor_with_two_symbols_is_one_function(tmp_path: Path) -> None:
    """A complete-object constructor is often another symbol of the base-object constructor."""
    functions = record_coverage(SOURCES / "templates.cpp", tmp_path).functions
    names = [each.name for each in functions if each.name in ("Base::Base", "Derived::Derived")]
    assert sorted(names) == ["Base::Base", "Derived::Derived"]
