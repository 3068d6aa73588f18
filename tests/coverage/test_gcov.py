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


LOOP = r"for \(.*"
"""A compiler that optimizes tests the condition of a loop at its end, and less often."""
OPTIMIZED_DIFFERENTLY = {
    "profiled.c": [
        LOOP,
        # The function saves registers only if it calls itself, which is its first line. One
        # comparison, or one instruction of the return, serves both cases.
        r"__attribute__.* int fibonacci\(int n\) \{|if \(n < 2\)|return n;",
    ],
    # The only instruction of this line runs if the loop does not.
    "inlined.c": [LOOP, r"return sum;"],
    "linkage_stubs.c": [LOOP],
    # The instances of `largest` run on constants, and unrolled loops have no count of iterations.
    "templates.cpp": [LOOP, r"if \(all\[i\] > best\)", r"sum \+= derived\.value .*"],
    # Inlined copies are merged with one another. Instructions without a condition take the place of
    # `if`: those of `found++` and `x--` always run.
    "lambdas.cpp": [
        LOOP,
        r"items\[next % N\] = item;|int found = 0;|if \(accepts\(items\[i\]\)\)|found\+\+;|x--;",
        r"sum \+= many\.count\(.*",
    ],
}
"""Lines of which an optimizing compiler leaves fewer or more executions than the source has; gcov
counts those of the source.
"""


def counts_of_gcov(source: Path, folder: Path, level: str = "-O0") -> dict[int, int]:
    """Build a program for gcov, run it, and return the counts of its lines."""
    compiler = shutil.which("g++" if source.suffix == ".cpp" else "gcc")
    if compiler is None or shutil.which("gcov") is None:
        pytest.skip("gcov is not installed")
    # without inlining: gcov counts other lines twice that have inlined calls
    flags = [level, "-g", "--coverage", "-DINLINE=static inline", "-o", "instrumented"]
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


@pytest.mark.slow
@pytest.mark.parametrize("level", ["-O1", "-O2"])
@pytest.mark.parametrize("name", OPTIMIZED_DIFFERENTLY)
def test_line_counts_of_optimized_code_equal_gcov(name: str, level: str, tmp_path: Path) -> None:
    """Lines without code of their own have no count; gcov counts them before the optimization."""
    source = SOURCES / name
    ours = record_coverage(source, tmp_path, level).lines
    theirs = counts_of_gcov(source, tmp_path, level)
    with_code = lines_with_code(build_plain(source, level), source)
    assert ours.keys() == with_code
    text = ["", *(line.strip() for line in source.read_text().splitlines())]
    patterns = "|".join(OPTIMIZED_DIFFERENTLY[name])
    differ = {
        f"{line}: {text[line]}": (ours[line], theirs[line])
        for line in ours.keys() & theirs.keys()
        if ours[line] != theirs[line] and not re.fullmatch(patterns, text[line])
    }
    assert not differ
    for line in ours.keys() - theirs.keys():
        assert re.fullmatch(f"{NOT_IN_GCOV}|{patterns}", text[line])
    assert len(ours.keys() & theirs.keys()) > 5


def lines_with_code(program: Path, source: Path) -> set[int]:
    """Return the lines of a source that `objdump` shows at an instruction."""
    if shutil.which("objdump") is None:
        pytest.skip("objdump is not installed")
    said = subprocess.run(
        ["objdump", "--dwarf=decodedline", program], check=True, capture_output=True, text=True
    ).stdout
    found: set[int] = set()
    file, line, address = "", 0, -1
    for words in map(str.split, said.splitlines()):
        if len(words) < 3 or not words[2].startswith("0x"):
            continue
        # of several rows at one address, the last has the instruction
        if int(words[2], 16) != address and file == source.name and line:
            found.add(line)
        file, address = words[0], int(words[2], 16)
        line = int(words[1]) if words[1].isdigit() else 0
    return found


def build_plain(source: Path, level: str) -> Path:
    """Build a program without instrumentation. At -O0, its functions are inlined by request."""
    language = "c++" if source.suffix == ".cpp" else "c"
    inline = "static inline __attribute__((always_inline))" if level == "-O0" else "static inline"
    flags = [level, "-g", f"-DINLINE={inline}"]
    try:
        return compiled(f"plain-{source.stem}", [str(source)], language=language, flags=flags)
    except CannotBuildError as error:
        pytest.skip(str(error))


def record_coverage(source: Path, folder: Path, level: str = "-O0") -> SourceFile:
    """Build a program, and return the coverage of its source."""
    program = build_plain(source, level)
    with Trace(record_program(program, folder).data) as trace:
        found = source_files(coverage([(trace, trace.streams)]))
    (one,) = (each for each in found if each.path == str(source))
    return one


def test_constructor_with_two_symbols_is_one_function(tmp_path: Path) -> None:
    """A complete-object constructor is often another symbol of the base-object constructor."""
    functions = record_coverage(SOURCES / "templates.cpp", tmp_path).functions
    names = [each.name for each in functions if each.name in ("Base::Base", "Derived::Derived")]
    assert sorted(names) == ["Base::Base", "Derived::Derived"]
