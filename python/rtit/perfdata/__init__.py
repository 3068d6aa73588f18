"""perf.data: `Writer` makes the files that stock perf decodes, `PerfData` reads perf's and ours."""

from .attr import Attr, format_config, parse_config
from .auxtrace import IntelPtInfo, Piece, Queue
from .clock import TimeConversion
from .features import Event, Feature
from .output import rotate
from .reader import PerfData
from .writer import Writer

__all__ = [
    "Attr",
    "Event",
    "Feature",
    "IntelPtInfo",
    "PerfData",
    "Piece",
    "Queue",
    "TimeConversion",
    "Writer",
    "format_config",
    "parse_config",
    "rotate",
]
