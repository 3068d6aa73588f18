"""The perf.data format: `PerfData` reads files of perf and rtit, `Writer` makes files for stock
perf.
"""

from __future__ import annotations

from rtit.perfdata.attr import Attr, SampleType, format_config, parse_config
from rtit.perfdata.aux import AuxBuffer, AuxChunk, IntelPtInfo
from rtit.perfdata.clock import TimeConversion
from rtit.perfdata.features import Event, Feature
from rtit.perfdata.reader import PerfData
from rtit.perfdata.records import ExitStatus, Fault
from rtit.perfdata.writer import SwitchRecords, Writer, needs_rotation, rotate_recording

__all__ = [
    "Attr",
    "AuxBuffer",
    "AuxChunk",
    "Event",
    "ExitStatus",
    "Fault",
    "Feature",
    "IntelPtInfo",
    "PerfData",
    "SampleType",
    "SwitchRecords",
    "TimeConversion",
    "Writer",
    "format_config",
    "needs_rotation",
    "parse_config",
    "rotate_recording",
]
