"""Branches and loops of a program that counts its own branches and loop iterations."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

from programs.build import SOURCES, CannotBuildError, compiled
from rtit.annotation import AnnotatedFunction, annotate
from rtit.trace import Trace
from rtit.x86 import InstructionClass
from support.profiles import record_program


@dataclass(frozen=True)
class SelfCountingProgram:
    """A recording, and the counts that the program printed, by function."""

    data: Path
    printed: dict[str, list[int]]

    def annotate(self, name: str, *, loop_bounds: bool = False) -> AnnotatedFunction:
        with Trace(self.data) as trace:
            return annotate(trace, name, loop_bounds=loop_bounds)


@pytest.fixture(scope="module", params=["-O0", "-O1"])
def counted(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> SelfCountingProgram:
    flags = ["-g", "-static", request.param]
    source = str(SOURCES / "counting_itself.c")
    try:
        program = compiled("counting_itself", [source], language="c", flags=flags)
    except CannotBuildError as error:
        pytest.skip(str(error))
    ended = subprocess.run([program], capture_output=True, text=True, check=True)
    rows = [line.split() for line in ended.stdout.splitlines()]
    data = record_program(program, tmp_path_factory.mktemp("counting_itself")).data
    return SelfCountingProgram(data, {name: [*map(int, words)] for name, *words in rows})


@pytest.mark.parametrize("name", ["search", "walk", "find_pairs", "countdown"])
def test_innermost_loop_has_the_iterations_that_the_program_counted(
    name: str, counted: SelfCountingProgram
) -> None:
    loops = counted.annotate(name, loop_bounds=True).loops
    loop = max(loops, key=lambda each: each.depth)
    entries, iterations, least, most = counted.printed[name]
    assert [loop.entries, loop.iterations, loop.least, loop.most] == counted.printed[name]
    assert counted.annotate(name).calls == (1 if name == "find_pairs" else entries)
    assert loop.mean == iterations / entries
    assert least < loop.mean < most
    assert len(loops) == loop.depth == (2 if name == "find_pairs" else 1)


def test_bounds_of_a_loop_that_was_entered_once_need_no_order(
    counted: SelfCountingProgram,
) -> None:
    outer, inner = sorted(counted.annotate("find_pairs").loops, key=lambda each: each.depth)
    assert (outer.entries, outer.least, outer.mean, outer.most) == (1, 100, 100, 100)
    assert (inner.least, inner.most) == (None, None)
    assert set(inner.addresses) < set(outer.addresses)


def test_conditional_branch_has_the_outcomes_that_the_program_counted(
    counted: SelfCountingProgram,
) -> None:
    instructions = counted.annotate("divide").instructions
    [branch] = [each for each in instructions if each.taken is not None]
    assert sorted([branch.taken or 0, branch.not_taken or 0]) == sorted(counted.printed["divide"])


def test_indirect_call_has_the_targets_that_the_program_counted(
    counted: SelfCountingProgram,
) -> None:
    instructions = counted.annotate("call").instructions
    [call] = [each for each in instructions if each.kind == InstructionClass.INDIRECT_CALL]
    names = ["twice", "square", "negate"]
    wanted = dict(zip(names, counted.printed["call"], strict=True))
    assert {each.name: each.count for each in call.targets} == wanted
    assert call.targets[0].name == "twice"


def test_indirect_jump_has_the_cases_that_the_program_counted(
    counted: SelfCountingProgram,
) -> None:
    function = counted.annotate("jump")
    [jump] = [each for each in function.instructions if each.targets]
    assert jump.kind == InstructionClass.INDIRECT_JUMP
    *cases, _ = counted.printed["jump"]  # the last case needs no table
    assert sorted(each.count for each in jump.targets) == sorted(cases)
    assert {each.address for each in jump.targets} < {
        each.address for each in function.instructions
    }
