"""perf.data: `Writer` makes the files that stock perf decodes, `PerfData` reads perf's and ours."""

from __future__ import annotations

from rtit.perfdata.attr import Attr, SampleType, format_config, parse_config
from rtit.perfdata.aux import IntelPtInfo, Piece, Queue
from rtit.perfdata.clock import TimeConversion
from rtit.perfdata.features import Event, Feature
from rtit.perfdata.reader import PerfData
from rtit.perfdata.records import Ending, Fault
from rtit.perfdata.writer import Switches, Writer, is_older, rotate

__all__ = [
    "Attr",
    "Ending",
    "Event",
    "Fault",
    "Feature",
    "IntelPtInfo",
    "PerfData",
    "Piece",
    "Queue",
    "SampleType",
    "Switches",
    "TimeConversion",
    "Writer",
    "format_config",
    "is_older",
    "parse_config",
    "rotate",
]
