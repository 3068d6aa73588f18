"""Natural loops of small control-flow graphs."""

from __future__ import annotations

import pytest

from rtit.annotation.function_code import CodeInstruction
from rtit.annotation.loops import FoundLoop, find_loops
from rtit.x86 import InstructionClass

OTHER, CONDITIONAL, JUMP = (
    InstructionClass.OTHER,
    InstructionClass.CONDITIONAL,
    InstructionClass.JUMP,
)
RETURN, INDIRECT_JUMP = InstructionClass.RETURN, InstructionClass.INDIRECT_JUMP


def code_of(*rows: tuple[InstructionClass, int | None]) -> list[CodeInstruction]:
    """Return instructions of one byte from offset 0 on, with classes and targets."""
    return [
        CodeInstruction(offset, b"\x90", kind, target) for offset, (kind, target) in enumerate(rows)
    ]


NEXT = OTHER, None
END = RETURN, None


def test_loop_with_its_test_at_the_end() -> None:
    code = code_of(NEXT, NEXT, (CONDITIONAL, 1), END)
    assert find_loops(code, {}) == [FoundLoop(1, frozenset({1, 2}), frozenset({2}), 1)]


def test_loop_that_is_entered_at_its_test_begins_there() -> None:
    code = code_of((JUMP, 2), NEXT, NEXT, (CONDITIONAL, 1), END)
    assert find_loops(code, {}) == [FoundLoop(2, frozenset({1, 2, 3}), frozenset({1}), 1)]


def test_loop_in_a_loop_has_depth_2() -> None:
    code = code_of(NEXT, NEXT, (CONDITIONAL, 1), (CONDITIONAL, 0), END)
    assert find_loops(code, {}) == [
        FoundLoop(0, frozenset({0, 1, 2, 3}), frozenset({3}), 1),
        FoundLoop(1, frozenset({1, 2}), frozenset({2}), 2),
    ]


def test_loop_that_continues_at_two_places_is_one_loop() -> None:
    code = code_of(NEXT, (CONDITIONAL, 0), NEXT, (JUMP, 0), END)
    assert find_loops(code, {}) == [FoundLoop(0, frozenset({0, 1, 2, 3}), frozenset({1, 3}), 1)]


def test_code_that_is_entered_in_the_middle_is_no_loop() -> None:
    code = code_of((CONDITIONAL, 3), NEXT, NEXT, NEXT, (CONDITIONAL, 1), END)
    assert find_loops(code, {}) == []


def test_code_that_nothing_reaches_does_not_hide_a_loop() -> None:
    code = code_of(NEXT, NEXT, (CONDITIONAL, 0), END, (JUMP, 1))
    assert [each.header for each in find_loops(code, {})] == [0]


@pytest.mark.parametrize(("targets", "headers"), [({}, []), ({3: [0, 4]}, [0])])
def test_indirect_jump_continues_a_loop_if_it_went_there(
    targets: dict[int, list[int]], headers: list[int]
) -> None:
    code = code_of(NEXT, NEXT, NEXT, (INDIRECT_JUMP, None), END)
    assert [each.header for each in find_loops(code, targets)] == headers
