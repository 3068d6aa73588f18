"""The totals of a stream, by process, cut where the same addresses begin to mean something else."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from rtit.image.regions import reused
from rtit.trace import EdgeTotals, RunTotals, Totals
from rtit.trace.sums import Sums

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from rtit.image import Images, Mapping
    from rtit.trace import Rows, Stream
    from rtit.trace.batch import Batch


class Slice(NamedTuple):
    """What ran while these were mapped; they do not overlap, but where they show the same."""

    totals: Totals
    mappings: list[Mapping]


class _Lives:
    """When the same addresses begin to mean something else, of every process."""

    def __init__(self, images: Images) -> None:
        self._images = images
        self._cuts: dict[int, NDArray[np.uint64]] = {}

    def epochs(self, pids: NDArray[np.int32], times: NDArray[np.uint64]) -> NDArray[np.uint32]:
        """In how many-th of its process's times each row is: 0 before the first change."""
        found = np.zeros(len(pids), np.uint32)
        for pid in np.unique(pids).tolist():
            cuts = self._cuts_of(pid)
            if len(cuts):
                own = pids == pid
                found[own] = np.searchsorted(cuts, times[own], "right")
        return found

    def mappings(self, pid: int, epoch: int) -> list[Mapping]:
        """What was mapped then."""
        cuts, found = self._cuts_of(pid), list(self._images.mappings(pid))
        if not len(cuts):
            return found
        time = int(cuts[epoch - 1]) if epoch else 0
        return [each for each in found if each.since <= time < each.until]

    def _cuts_of(self, pid: int) -> NDArray[np.uint64]:
        cuts = self._cuts.get(pid)
        if cuts is None:
            found = list(self._images.mappings(pid))
            times = {time for each in found for time in (each.since, each.until)}
            cuts = np.array(sorted(times) if reused(found) else [], np.uint64)
            self._cuts[pid] = cuts
        return cuts


def slices(stream: Stream, images: Images, ran: Counter[int]) -> Iterator[Slice]:
    """All that ran in a stream. A process that never maps another thing at addresses that it used
    before is one slice, added up while it is decoded; one that does (exec, dlclose) has a slice for
    each time between changes, which takes as long as its rows do, and so do those of a stream of
    several threads, of which `ran` is told how many instructions each had. Of more places than the
    trace has counts of those of the first times are there; the first slice tells of the others.
    """
    several = stream.has_several
    if not several:
        mappings = list(images.mappings(stream.tid))
        if not reused(mappings):
            yield Slice(stream.totals(), mappings)
            return
    lives = _Lives(images)

    def whose(batch: Batch, times: NDArray[np.uint64]) -> tuple[Any, Any]:
        pids = batch.more["pid"] if several else np.full(len(batch), stream.tid, np.int32)
        return pids, lives.epochs(pids, times)

    runs = Sums("i4 u4 u8 u4", stream.places)
    edges = Sums("i4 u4 u8 u8 u1", stream.places, kind=4)
    for branches in stream.branches():
        found = whose(branches, branches.time)
        edges.add(*found, branches.source, branches.target, branches.kind)
    for rows in stream.rows():
        runs.add(*whose(rows, rows.time), rows.start, rows.instructions)
        if several:
            _count(ran, rows)
    sums = _Parts(runs), _Parts(edges)
    others: tuple[int, dict[int, int]] = runs.others, edges.others_of
    for key in np.union1d(sums[0].keys, sums[1].keys).tolist():
        totals = Totals(
            RunTotals(*sums[0].of(key)).replaced(others=others[0]),
            EdgeTotals(*sums[1].of(key)).replaced(others_of=others[1]),
        )
        others = 0, {}
        yield Slice(totals, lives.mappings(key >> 32, key & 0xFFFF_FFFF))


class _Parts:
    """Sums by process and time."""

    def __init__(self, sums: Sums) -> None:
        pids, epochs, *self._columns = sums.columns()
        self.keys = pids.astype(np.int64) << 32 | epochs.astype(np.int64)

    def of(self, key: int) -> list[Any]:
        """The rows of one."""
        begin, end = np.searchsorted(self.keys, [key, key + 1]).tolist()
        return [column[begin:end] for column in self._columns]


def _count(ran: Counter[int], rows: Rows) -> None:
    tids, places = np.unique(rows.more["tid"], return_inverse=True)
    counts = np.bincount(places, rows.instructions, len(tids))
    for tid, count in zip(tids.tolist(), counts.tolist(), strict=True):
        ran[tid] += int(count)
