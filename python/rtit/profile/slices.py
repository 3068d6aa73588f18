"""The totals of a stream, cut where the same addresses begin to mean something else."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from rtit.image.regions import reused
from rtit.trace import EdgeTotals, RunTotals, Totals
from rtit.trace.sums import Sums

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
    each time between changes, which takes as long as its rows do. Of more places than the trace has
    counts of those of the first times are there; the first slice tells of the others.
    """
    if not reused(mappings):
        yield Slice(stream.totals(), mappings)
        return
    borders = sorted({each.since for each in mappings} | {each.until for each in mappings})
    cuts = np.array(borders, np.uint64)

    def when(times: Any) -> Any:
        return np.searchsorted(cuts, times, "right").astype(np.uint32)

    runs, edges = Sums("u4 u8 u4", stream.places), Sums("u4 u8 u8 u1", stream.places)
    for branches in stream.branches():
        edges.add(when(branches.time), branches.source, branches.target, branches.kind)
    for rows in stream.rows():
        runs.add(when(rows.time), rows.start, rows.instructions)
    ran, taken = runs.columns(), edges.columns()
    others = runs.others, edges.others
    for number in np.union1d(ran[0], taken[0]).tolist():
        totals = Totals(
            RunTotals(*_during(number, ran)).replaced(others=others[0]),
            EdgeTotals(*_during(number, taken)).replaced(others=others[1]),
        )
        others = 0, 0
        time = borders[number - 1] if number else 0
        yield Slice(totals, [each for each in mappings if each.since <= time < each.until])


def _during(number: int, columns: list[Any]) -> list[Any]:
    """The rows of one time, of columns sorted by its number."""
    begin, end = np.searchsorted(columns[0], np.array([number, number + 1], np.uint32)).tolist()
    return [column[begin:end] for column in columns[1:]]
