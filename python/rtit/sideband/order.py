"""Sideband records in order of time. Each CPU's are in order; those of several CPUs are not."""

from __future__ import annotations

import mmap
from array import array
from bisect import bisect_right
from collections.abc import Iterator

from rtit.perfdata import PerfData
from rtit.perfdata.records import FIRST_USER_TYPE, Record

_KEPT, _KEPT_BYTES = 1 << 16, 1 << 24
"""Records that are kept while they are sorted, and the bytes of all; of more only the places are,
and they are read again.
"""
_AT_ONCE = 1 << 24
"""So many bytes of pages, as far as records that are read again lie in them, stay in memory."""


def in_order(data: PerfData) -> Iterator[tuple[int, Record]]:
    """The kernel's records with their times in TSC ticks; 0 for what carries no time, or where the
    file does not say how to convert. Records of one time stay in the order of the file. Raises
    PerfDataError, also if the file changes meanwhile.
    """
    kept: list[tuple[int, Record]] = []
    size = 0
    for pair in _timed(data):
        kept.append(pair)
        size += pair[1].size
        if len(kept) > _KEPT or size > _KEPT_BYTES:
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
    times, offsets, ends = array("Q"), array("Q"), list[int]()
    sorted_already = True
    for records in data.records_by_part():
        for record in records:
            if not _has_time(record):
                continue
            time = _ticks(data, record)
            sorted_already = sorted_already and (not times or times[-1] <= time)
            times.append(time)
            offsets.append(record.offset)
        ends.append(len(times))
    if sorted_already:
        yield from _timed(data)
        return
    import numpy as np

    order = np.argsort(np.frombuffer(times, np.uint64), kind="stable")
    read = _AT_ONCE
    for index in order:
        if read >= _AT_ONCE:
            data.check()
            data.let_go()
            read = 0
        record = data.record_at(bisect_right(ends, index), offsets[index])
        read += record.size + mmap.PAGESIZE
        yield times[index], record
    data.check()
