"""Counts of annotated functions equal those of gcov by line, and of callgrind by instruction.

The exceptions are those of `docs/howto/annotate.md`.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from coverage.test_gcov import INLINED, LAMBDA, NOT_IN_GCOV, build_plain, counts_of_gcov
from programs.build import SOURCES
from rtit.annotation import AnnotatedFunction, annotate_functions
from rtit.coverage import coverage, source_files
from rtit.profile.builder import build_profile
from rtit.trace import Trace
from support.callgrind import read_costs, run_callgrind
from support.profiles import record_program
from support.recordings import Recorder

ProgramBuilder = Callable[[str], Path]


def annotate_all(data: Path) -> Iterator[AnnotatedFunction]:
    """Return every function of the recorded program."""
    with Trace(data) as trace:
        profile = build_profile(trace, trace.streams)
        assert profile.main is not None
        functions = {each.offset: each for each in reversed(profile.main.symbols.functions)}
        yield from annotate_functions(profile, profile.main, [*functions.values()])


def lines_of_all_functions(data: Path, source: Path) -> Counter[int]:
    """Return the count of each line of a source file, added up over all functions."""
    counts: Counter[int] = Counter()
    for function in annotate_all(data):
        for each in function.lines:
            if each.file == str(source) and each.count is not None:
                counts[each.line] += each.count
    return counts


@pytest.mark.parametrize("name", ["profiled.c", "inlined.c", "lambdas.cpp"])
def test_line_counts_of_all_functions_add_up_to_those_of_gcov(name: str, tmp_path: Path) -> None:
    source = SOURCES / name
    data = record_program(build_plain(source, "-O0"), tmp_path).data
    ours = lines_of_all_functions(data, source)
    text = ["", *(line.strip() for line in source.read_text().splitlines())]
    theirs = {
        line: count
        for line, count in counts_of_gcov(source, tmp_path).items()
        if not re.fullmatch(f"{INLINED}|{LAMBDA}", text[line])
    }
    assert {line: ours.get(line) for line in theirs} == theirs
    assert len(theirs) > 5
    for line in ours.keys() - theirs.keys():
        assert re.fullmatch(f"{NOT_IN_GCOV}|{LAMBDA}", text[line])


@pytest.mark.parametrize("name", ["inlined.c", "templates.cpp", "lambdas.cpp"])
def test_line_counts_of_optimized_functions_add_up_to_those_of_coverage(
    name: str, tmp_path: Path
) -> None:
    """Coverage counts lines of whole files."""
    source = SOURCES / name
    data = record_program(build_plain(source, "-O2"), tmp_path).data
    with Trace(data) as trace:
        found = source_files(coverage([(trace, trace.streams)]))
    [wanted] = [each.lines for each in found if each.path == str(source)]
    assert lines_of_all_functions(data, source) == Counter(wanted)
    assert len(wanted) > 5


@pytest.mark.parametrize("name", ["pointers", "recursion", "branch_next", "rep"])
def test_counts_of_instructions_equal_callgrind(
    name: str, program: ProgramBuilder, record: Recorder, tmp_path: Path
) -> None:
    options = "--dump-instr=yes", "--compress-pos=no", "--collect-jumps=yes"
    text = run_callgrind(program(name), tmp_path, *options).read_text()
    theirs, _, _ = read_costs(text)
    data = record([program(name)]).data
    ours: Counter[int] = Counter()
    taken: Counter[int] = Counter()
    repeated = set()
    for function in annotate_all(data):
        for each in function.instructions:
            ours[each.address] += each.count
            if each.text.startswith("rep"):
                repeated.add(each.address)
            # for callgrind, a branch to the next instruction is no jump
            if each.taken and each.target != each.address + len(each.code):
                taken[each.address] += each.taken
    with Trace(data) as trace:
        [stream] = trace.streams
        executed = stream.instructions().columns()["ip"].tolist()
    for address in repeated:
        assert theirs[address] >= ours.pop(address) > 0
        del theirs[address]
    # callgrind counts a block at its end, which the last block does not reach
    last = Counter(executed[-(ours - theirs).total() :])
    assert ours - theirs == last
    assert 0 < last.total() < 20
    assert not theirs - ours
    assert bool(repeated) == (name == "rep")
    taken_theirs = taken_branches(text)
    assert taken == Counter({at: taken_theirs[at] for at in taken_theirs if at not in repeated})
    assert taken


def taken_branches(text: str) -> Counter[int]:
    """Return how often each conditional branch of a callgrind file was taken."""
    found: Counter[int] = Counter()
    for count, address in re.findall(r"^jcnd=(\d+)/.*\n(0x\w+)", text, re.MULTILINE):
        found[int(address, 16)] += int(count)
    return found
