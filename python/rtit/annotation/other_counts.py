"""The counts of a function in another recording, beside those of the first."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import PurePath
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rtit.annotation.annotated_function import (
        AnnotatedFunction,
        AnnotatedInstruction,
        AnnotatedLine,
        Loop,
    )


@dataclass(frozen=True, slots=True)
class OtherCounts:
    """The same function in another recording.

    `instructions` and `loops` are by address in the first recording. They are empty if the other
    build of the function has other machine code.
    """

    function: AnnotatedFunction
    has_same_code: bool
    instructions: dict[int, AnnotatedInstruction]
    loops: dict[int, Loop]
    _lines: dict[tuple[str, int], int]

    def count_of_line(self, line: AnnotatedLine) -> int | None:
        """Return the count of a line in the other recording; None if it has no code there."""
        return self._lines.get(_line_key(line))


def match_counts(first: AnnotatedFunction, other: AnnotatedFunction) -> OtherCounts:
    """Return the counts of `other` for the instructions, loops and lines of `first`.

    Instructions are matched if both functions have the same sequence of instruction lengths and
    classes, which addresses and constants do not change. Lines are matched by the name of the
    source file and the line number.
    """
    layouts = [[(len(i.code), i.kind) for i in each.instructions] for each in (first, other)]
    has_same_code = layouts[0] == layouts[1]
    addresses = {}
    if has_same_code:
        pairs = zip(first.instructions, other.instructions, strict=True)
        addresses = {theirs.address: ours.address for ours, theirs in pairs}
    return OtherCounts(
        other,
        has_same_code,
        {addresses[each.address]: each for each in other.instructions if has_same_code},
        {addresses[each.start]: each for each in other.loops if has_same_code},
        {_line_key(each): each.count for each in other.lines if each.count is not None},
    )


def _line_key(line: AnnotatedLine) -> tuple[str, int]:
    return PurePath(line.file).name, line.line
