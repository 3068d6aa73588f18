"""Stretches of a binary that ran as one, and how often the program went on from one to the next."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from rtit.trace import End
from rtit.x86 import Class

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from rtit.profile.table import Binary

_LEAVES = [Class.JUMP, Class.INDIRECT_JUMP, Class.RETURN, Class.FAR_TRANSFER]
_CALLS = [Class.CALL, Class.INDIRECT_CALL]


class Stretches:
    """The instructions of a binary, joined.

    A stretch is made of instructions of one function that follow each other in memory, of which
    each ran as often as the first and went on to the next each time, through calls that return, as
    well. `first` and `last` are rows of the binary's columns.
    """

    def __init__(self, binary: Binary) -> None:
        self._binary = binary
        joined = self._followed & (self.onward[:-1] == binary.count[1:])
        joined &= self.onward[:-1] == binary.count[:-1]
        begins = np.ones(len(binary.offset), bool)
        begins[1:] = ~joined
        self.first = np.flatnonzero(begins)
        self.last = np.append(self.first[1:], len(binary.offset)) - 1
        self.last = self.last[: len(self.first)]
        self.count = binary.count[self.first]

    @cached_property
    def onward(self) -> NDArray[np.uint64]:
        """How often each instruction was followed by the one behind it in memory; a call by what it
        returns to.
        """
        binary = self._binary
        onward = binary.count.copy()
        onward[np.isin(binary.kind, _LEAVES)] = 0
        conditional = binary.kind == Class.CONDITIONAL
        edges = binary.edges
        not_taken = (edges.source_in == binary.number) & (edges.kind == End.CUT)
        counted = _sums(edges.source[not_taken], edges.count[not_taken], binary.offset)
        onward[conditional] = counted[conditional]
        returns = (edges.target_in == binary.number) & (edges.kind == End.RETURN)
        behind = binary.offset + binary.length
        counted = _sums(edges.target[returns], edges.count[returns], behind)
        calls = np.isin(binary.kind, _CALLS)
        onward[calls] = np.minimum(counted, binary.count)[calls]
        return onward

    @cached_property
    def _followed(self) -> NDArray[np.bool_]:
        """Whether the next row is the next instruction in memory, of the same function."""
        binary = self._binary
        adjacent = binary.offset[:-1] + binary.length[:-1] == binary.offset[1:]
        starts, _ends, _owners = binary.symbols.columns
        piece = np.searchsorted(starts, binary.offset, "right")
        return np.asarray(adjacent & (piece[1:] == piece[:-1]))

    def falls(self) -> tuple[NDArray[np.intp], NDArray[np.uint64]]:
        """The rows behind which another stretch begins that was gone on to, and how often."""
        rows = self.last[:-1]
        count = np.minimum(self.onward[rows], self._binary.count[rows + 1])
        went = self._followed[rows] & (count > 0)
        return rows[went], count[went]


def _sums(
    keys: NDArray[np.uint64], counts: NDArray[np.uint64], wanted: NDArray[np.uint64]
) -> NDArray[np.uint64]:
    """For each of `wanted` the sum of the counts of its key."""
    known, places = np.unique(keys, return_inverse=True)
    sums = np.zeros(len(known) + 1, np.uint64)
    np.add.at(sums, places, counts)
    at = np.searchsorted(known, wanted)
    found = at < len(known)
    found[found] = known[at[found]] == wanted[found]
    return np.where(found, sums[np.minimum(at, len(known))], np.uint64(0))
