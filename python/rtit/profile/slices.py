"""The totals of a stream, cut where the same addresses begin to mean something else."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from rtit.image.regions import reused
from rtit.trace import EdgeTotals, RunTotals, Totals

if TYPE_CHECKING:
    from rtit.image import Mapping
    from rtit.trace import Stream


class Slice(NamedTuple):
    """What ran while these were mapped; they do not overlap, but where they show the same."""

    totals: Totals
    mappings: list[Mapping]


def slices(stream: Stream, mappings: list[Mapping]) -> Iterator[Slice]:
    """All that ran in a stream. A process that never maps another thing at addresses that it used
    before is one slice, added up while it is decoded; one that does (exec, dlclose) has a slice for
    each time between changes, which takes as long as its rows do.
    """
    if not reused(mappings):
        yield Slice(stream.totals(), mappings)
        return
    borders = sorted({each.since for each in mappings} | {each.until for each in mappings})
    runs: dict[int, _Sums] = {}
    edges: dict[int, _Sums] = {}
    for branches in stream.branches():
        columns = branches.source, branches.target, branches.kind.astype(np.uint64)
        _sort_in(edges, borders, branches.time, columns)
    for rows in stream.rows():
        _sort_in(runs, borders, rows.time, (rows.start, rows.instructions.astype(np.uint64)))
    for number in sorted(runs.keys() | edges.keys()):
        start, instructions, count = runs.get(number, _Sums(2)).columns()
        source, target, kind, times = edges.get(number, _Sums(3)).columns()
        totals = Totals(
            RunTotals(start, instructions.astype(np.uint32), count),
            EdgeTotals(source, target, kind.astype(np.uint8), times),
        )
        time = borders[number - 1] if number else 0
        yield Slice(totals, [each for each in mappings if each.since <= time < each.until])


def _sort_in(
    sums: dict[int, _Sums], borders: list[int], times: Any, columns: tuple[Any, ...]
) -> None:
    which = np.searchsorted(np.array(borders, np.uint64), times, "right")
    cuts = [0, *(np.flatnonzero(which[1:] != which[:-1]) + 1).tolist(), len(which)]
    for begin, end in pairwise(cuts):
        if begin < end:
            part = tuple(column[begin:end] for column in columns)
            sums.setdefault(int(which[begin]), _Sums(len(columns))).add(part)


class _Sums:
    """How often each row of some columns occurs."""

    def __init__(self, width: int) -> None:
        self._width = width
        self._counts: dict[tuple[int, ...], int] = {}

    def add(self, columns: tuple[Any, ...]) -> None:
        rows, counts = np.unique(np.stack(columns, axis=1), axis=0, return_counts=True)
        for row, count in zip(map(tuple, rows.tolist()), counts.tolist(), strict=True):
            self._counts[row] = self._counts.get(row, 0) + count

    def columns(self) -> tuple[Any, ...]:
        keys = np.array(list(self._counts), np.uint64).reshape(-1, self._width)
        counts = np.array(list(self._counts.values()), np.uint64)
        return *(keys[:, index].copy() for index in range(self._width)), counts
