"""Sideband records in order of time. Each CPU's are in order; those of several CPUs are not."""

from __future__ import annotations

from rtit.perfdata import PerfData
from rtit.perfdata.records import Record


def in_order(data: PerfData) -> list[tuple[int, Record]]:
    """All records with their times in TSC ticks; 0 for what carries no time, or where the file does
    not say how to convert. Records of one time stay in the order of the file.
    """
    convert = data.time_conversion
    timed = []
    for record in data.records():
        when = record.sample_id.time if record.sample_id else None
        ticks = convert.to_tsc(when) if convert is not None and when else 0
        timed.append((ticks, record))
    timed.sort(key=lambda pair: pair[0])
    return timed
