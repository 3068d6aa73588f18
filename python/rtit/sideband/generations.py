"""Functions that came to the same addresses one after the other, sorted out."""

from __future__ import annotations

import itertools
from array import array
from bisect import bisect_right
from collections.abc import Sequence

from rtit.image.mappings import Touched

_PAGE = 4096


class Generations:
    """Of functions at `addresses`, of `sizes` bytes, taken in `order`: `is_first` of each is 1 for
    one that came to where none was before, else 0. No two of those overlap.
    """

    def __init__(
        self, addresses: Sequence[int], sizes: Sequence[int], order: Sequence[int]
    ) -> None:
        self.is_first = bytearray(b"\1") * len(addresses)
        by_address = sorted(order, key=addresses.__getitem__)
        pairs = itertools.pairwise(by_address)
        if any(addresses[one] + sizes[one] > addresses[two] for one, two in pairs):
            touched = Touched()
            for row in order:
                start = addresses[row]
                self.is_first[row] = not touched.touch(start, start + sizes[row])
        self._starts, self._ends = array("Q"), array("Q")
        for row in by_address:
            start, end = addresses[row], addresses[row] + sizes[row]
            if not self.is_first[row]:
                continue
            # between neighbours less than a page apart nothing else can be mapped
            if self._ends and start - self._ends[-1] < _PAGE:
                self._ends[-1] = max(end, self._ends[-1])
            else:
                self._starts.append(start)
                self._ends.append(end)

    def around(self, address: int) -> tuple[int, int]:
        """From where to where the neighbours of a first one reach, which is at `address`."""
        place = bisect_right(self._starts, address) - 1
        return self._starts[place], self._ends[place]
