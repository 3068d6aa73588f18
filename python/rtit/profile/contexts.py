"""What ran in a function itself, by all the calls that it was called within."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping, Sequence

NONE = (1 << 64) - 1
"""Stands for what there is not, in columns of native code."""


class Contexts:
    """Calls within calls, as a tree of numbers: of each context the one that it was made in, its
    call, and how many instructions the called function itself ran. A tree and no stacks: there may
    be a million, each within thousands.
    """

    def __init__(self) -> None:
        self._parents = array("q")
        self._calls = array("Q")
        self._own = array("Q")
        # in the order in which their counts were known
        self._ran = array("Q")
        # of (number of the parent + 1) << 64 | call; made for the second part
        self._numbers: dict[int, int] = {}

    def add(self, columns: Mapping[str, memoryview], calls: Sequence[int]) -> None:
        """The contexts of a stream, as `_core.calls` has them; `calls` has the numbers here of the
        calls there.
        """
        if self._calls and not self._numbers:
            known = zip(self._parents, self._calls, strict=True)
            self._numbers = {_key(*row): number for number, row in enumerate(known)}
        merges = bool(self._calls) or len({*calls}) < len(calls)
        here = array("q")
        rows = zip(columns["parent"], columns["call"], columns["own"], strict=True)
        for parent, call, own in rows:
            above = here[parent] if parent != NONE else -1
            number = self._number(above, calls[call], merges=merges)
            here.append(number)
            if own and not self._own[number]:
                self._ran.append(number)
            self._own[number] += own

    def _number(self, parent: int, call: int, *, merges: bool) -> int:
        number = len(self._calls)
        if merges:
            known = self._numbers.setdefault(_key(parent, call), number)
            if known != number:
                return known
        self._parents.append(parent)
        self._calls.append(call)
        self._own.append(0)
        return number

    def __len__(self) -> int:
        return len(self._calls)

    def __iter__(self) -> Iterator[tuple[int, int]]:
        """Contexts in which something ran, and how many instructions."""
        return ((number, self._own[number]) for number in self._ran)

    def calls(self, context: int) -> Iterator[tuple[int, int]]:
        """A context and those that it is within, the innermost first, with the call of each."""
        while context >= 0:
            yield context, self._calls[context]
            context = self._parents[context]


def _key(parent: int, call: int) -> int:
    return parent + 1 << 64 | call
