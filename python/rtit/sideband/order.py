"""Sideband records in order of time. Each CPU's are in order; those of several CPUs are not."""

from __future__ import annotations

from array import array
from collections.abc import Iterator

from rtit.perfdata import PerfData
from rtit.perfdata.records import FIRST_USER_TYPE, Record

_KEPT = 1 << 16
"""Records that are kept while they are sorted; of more only the places are, and they are read
again.
"""


_AT_ONCE = 1 << 12
"""Of records that are read again the pages of so many stay in memory."""


def in_order(data: PerfData) -> Iterator[tuple[int, Record]]:
    """The kernel's records with their times in TSC ticks; 0 for what carries no time, or where the
    file does not say how to convert. Records of one time stay in the order of the file.
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
    return ((_ticks(data, record), record) for record in data.records() if _has_time(record))


def _has_time(record: Record) -> bool:
    """Those that perf adds, AUXTRACE among them, have none, and would break the order."""
    return record.type < FIRST_USER_TYPE


def _ticks(data: PerfData, record: Record) -> int:
    convert = data.time_conversion
    when = record.sample_id.time if record.sample_id else None
    return convert.to_tsc(when) if convert is not None and when else 0


def _read_again(data: PerfData) -> Iterator[tuple[int, Record]]:
    times, offsets, numbers = array("Q"), array("Q"), array("Q")
    sorted_already = True
    for number, record in enumerate(data.records()):
        if not _has_time(record):
            continue
        time = min(max(_ticks(data, record), 0), (1 << 64) - 1)
        sorted_already = sorted_already and (not times or times[-1] <= time)
        for column, value in ((times, time), (offsets, record.offset), (numbers, number)):
            column.append(value)
    if sorted_already:
        yield from _timed(data)
        return
    import numpy as np

    ends = np.cumsum(data.counts_of_parts())
    parts = np.searchsorted(ends, np.frombuffer(numbers, np.uint64), "right")
    order = np.argsort(np.frombuffer(times, np.uint64), kind="stable")
    for count, index in enumerate(order):
        if count % _AT_ONCE == 0:
            data.let_go()
        yield times[index], data.record_at(int(parts[index]), offsets[index])
