"""Sideband records in order of time. Each CPU's are in order; those of several CPUs are not."""

from __future__ import annotations

from array import array
from collections.abc import Iterator

from rtit.perfdata import PerfData
from rtit.perfdata.records import Record

_KEPT = 1 << 16
"""Records that are kept while they are sorted; of more only the places are, and they are read
again.
"""


def in_order(data: PerfData) -> Iterator[tuple[int, Record]]:
    """All records with their times in TSC ticks; 0 for what carries no time, or where the file does
    not say how to convert. Records of one time stay in the order of the file.
    """
    kept: list[tuple[int, Record]] = []
    for pair in _timed(data):
        kept.append(pair)
        if len(kept) > _KEPT:
            break
    else:
        kept.sort(key=lambda pair: pair[0])
        yield from kept
        return
    kept.clear()
    yield from _read_again(data)


def _timed(data: PerfData) -> Iterator[tuple[int, Record]]:
    convert = data.time_conversion
    for record in data.records():
        when = record.sample_id.time if record.sample_id else None
        yield convert.to_tsc(when) if convert is not None and when else 0, record


def _read_again(data: PerfData) -> Iterator[tuple[int, Record]]:
    times = array("Q")
    sorted_already = True
    for ticks, _ in _timed(data):
        time = min(max(ticks, 0), (1 << 64) - 1)
        sorted_already = sorted_already and (not times or times[-1] <= time)
        times.append(time)
    if sorted_already:
        yield from _timed(data)
        return
    import numpy as np

    offsets = np.fromiter((record.offset for record in data.records()), np.uint64, len(times))
    ends = np.cumsum(data.counts_of_parts())
    order = np.argsort(np.frombuffer(times, np.uint64), kind="stable")
    for index in order:
        part = int(np.searchsorted(ends, index, "right"))
        yield times[index], data.record_at(part, int(offsets[index]))
