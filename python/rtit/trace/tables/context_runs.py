"""Runs of instructions by calling context, and the instructions that they consist of."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

_ROWS_AT_ONCE = 1 << 18
"""Instructions of runs that are added up at a time."""


class ContextRuns(NamedTuple):
    """How often consecutive instructions ran in a context.

    Columns: context, binary (NO_BINARY for none), offset of the first instruction, number of
    instructions, and count.
    """

    context: Any
    binary: Any
    offset: Any
    instructions: Any
    count: Any

    @classmethod
    def empty(cls) -> ContextRuns:
        """Return no runs."""
        return cls(*(np.empty(0, kind) for kind in ("i8", "i4", "u8", "u4", "u8")))


def runs_of_binary(runs: ContextRuns, binary: int) -> Iterator[ContextRuns]:
    """Iterate over the runs of a binary, some of them at a time."""
    of_binary = np.flatnonzero(runs.binary == binary)
    sizes = np.cumsum(runs.instructions[of_binary])
    begin = 0
    while begin < len(of_binary):
        read = int(sizes[begin - 1]) if begin else 0
        end = max(int(np.searchsorted(sizes, read + _ROWS_AT_ONCE)), begin + 1)
        rows = of_binary[begin:end]
        yield ContextRuns(*(each[rows] for each in runs))
        begin = end


def instructions_of_runs(
    runs: ContextRuns, offset: NDArray[np.uint64], length: NDArray[np.uint8]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the instructions of runs of one binary: the run, and the row of the instruction.

    `offset` and `length` are columns of the instructions that ran in the binary, sorted by offset.
    """
    first = np.searchsorted(offset, runs.offset)
    is_known = first < len(offset)
    is_known[is_known] = offset[first[is_known]] == runs.offset[is_known]
    size = np.where(is_known, runs.instructions, 0).astype(np.int64)
    ends = np.cumsum(size)
    run = np.repeat(np.arange(len(size)), size)
    row = first[run] + np.arange(len(run)) - (ends - size)[run]
    inside = row < len(offset)
    # instructions of a run follow each other
    inside[1:] &= (run[1:] != run[:-1]) | (
        offset[row[1:] % len(offset)] == (offset + length)[row[:-1] % len(offset)]
    )
    return run[inside], row[inside]


def add_up_by_context(
    context: NDArray[np.int64], key: NDArray[np.int64], count: NDArray[np.uint64]
) -> NDArray[np.int64]:
    """Return the sums of counts of equal context and key: columns context, key and sum, sorted
    by the first two.
    """
    order = np.lexsort((key, context))
    context, key, summands = context[order], key[order], count[order].astype(np.int64)
    begins = np.ones(len(context), bool)
    begins[1:] = (context[1:] != context[:-1]) | (key[1:] != key[:-1])
    at = np.flatnonzero(begins)
    sums = np.add.reduceat(summands, at) if len(at) else summands
    return np.stack([context[at], key[at], sums])
