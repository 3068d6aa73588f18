"""Functions that came to the same addresses one after the other, sorted out."""

from __future__ import annotations

import itertools
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Sequence

_PAGE = 4096


class Generations:
    """Of functions at `addresses`, of `sizes` bytes, taken in `order`: `number` of each is 0 for
    one that came to where none was before, else one more than the largest of those under it, so
    that no two of a number overlap.
    """

    def __init__(
        self, addresses: Sequence[int], sizes: Sequence[int], order: Sequence[int]
    ) -> None:
        self.number = array("L", bytes(len(addresses) * array("L").itemsize))
        by_address = sorted(order, key=addresses.__getitem__)
        pairs = itertools.pairwise(by_address)
        if any(addresses[one] + sizes[one] > addresses[two] for one, two in pairs):
            self._tell_apart(addresses, sizes, order)
        self._starts, self._ends = array("Q"), array("Q")
        for row in by_address:
            start, end = addresses[row], addresses[row] + sizes[row]
            if self.number[row]:
                continue
            # between neighbours less than a page apart nothing else can be mapped
            if self._ends and start - self._ends[-1] < _PAGE:
                self._ends[-1] = max(end, self._ends[-1])
            else:
                self._starts.append(start)
                self._ends.append(end)

    def around(self, address: int) -> tuple[int, int]:
        """From where to where the neighbours of number 0 reach, of one that is among them."""
        place = bisect_right(self._starts, address) - 1
        return self._starts[place], self._ends[place]

    def members(self) -> list[list[int]]:
        """The functions of each number, from 0 on."""
        found: list[list[int]] = [[] for _ in range(max(self.number, default=-1) + 1)]
        for row, number in enumerate(self.number):
            found[number].append(row)
        return found

    def _tell_apart(
        self, addresses: Sequence[int], sizes: Sequence[int], order: Sequence[int]
    ) -> None:
        starts: list[int] = []
        pieces: list[tuple[int, int]] = []  # where each ends, and its number
        for row in order:
            start, end = addresses[row], addresses[row] + sizes[row]
            first = bisect_right(starts, start)
            if first and pieces[first - 1][0] > start:
                first -= 1
            last = bisect_left(starts, end, first)
            under = pieces[first:last]
            self.number[row] = 1 + max((number for _, number in under), default=-1)
            left = (
                [(starts[first], (start, under[0][1]))] if under and starts[first] < start else []
            )
            right = [(end, under[-1])] if under and under[-1][0] > end else []
            now = [*left, (start, (end, self.number[row])), *right]
            starts[first:last] = [at for at, _ in now]
            pieces[first:last] = [piece for _, piece in now]
