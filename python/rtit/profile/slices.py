"""The totals of a stream, cut where the same addresses begin to mean something else."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from rtit.image.regions import reused
from rtit.trace import EdgeTotals, RunTotals, Totals
from rtit.trace.tables import Sums

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
    runs: dict[int, Sums] = {}
    edges: dict[int, Sums] = {}
    for branches in stream.branches():
        columns = branches.source, branches.target, branches.kind
        _sort_in(edges, "u8 u8 u1", borders, branches.time, columns)
    for rows in stream.rows():
        _sort_in(runs, "u8 u4", borders, rows.time, (rows.start, rows.instructions))
    for number in sorted(runs.keys() | edges.keys()):
        ran, taken = runs.pop(number, Sums("u8 u4")), edges.pop(number, Sums("u8 u8 u1"))
        totals = Totals(
            RunTotals(*ran.columns).replaced(others=ran.others),
            EdgeTotals(*taken.columns).replaced(others=taken.others),
        )
        time = borders[number - 1] if number else 0
        yield Slice(totals, [each for each in mappings if each.since <= time < each.until])


def _sort_in(
    sums: dict[int, Sums], dtypes: str, borders: list[int], times: Any, columns: tuple[Any, ...]
) -> None:
    which = np.searchsorted(np.array(borders, np.uint64), times, "right")
    cuts = [0, *(np.flatnonzero(which[1:] != which[:-1]) + 1).tolist(), len(which)]
    for begin, end in pairwise(cuts):
        if begin < end:
            number = int(which[begin])
            if number not in sums:
                sums[number] = Sums(dtypes)
            sums[number].add(*(column[begin:end] for column in columns))
