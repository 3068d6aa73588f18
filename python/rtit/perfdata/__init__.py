"""perf.data: `Writer` makes the files that stock perf decodes, `PerfData` reads perf's and ours."""

from __future__ import annotations

from .attr import Attr, SampleType, format_config, parse_config
from .auxtrace import IntelPtInfo, Piece, Queue
from .clock import TimeConversion
from .ending import Ending, Fault
from .features import Event, Feature
from .output import is_older, rotate
from .reader import PerfData
from .writer import Switches, Writer

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
