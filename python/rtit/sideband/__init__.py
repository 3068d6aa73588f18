"""Sideband: what the records beside a trace say about threads, processes and memory over time.

`perfdata` decodes bytes into records. `read_sideband` applies these records, in order of time, to
the code images of `image.Images`, and returns a `ThreadTable`. Streams are then decoded with both.
"""

from __future__ import annotations

from rtit.sideband.process_records import ThreadTable, read_sideband
from rtit.sideband.processes import AuxLoss, AuxLosses, Process, ProcessExit
from rtit.sideband.scheduling import IntervalBuilder, IntervalList, SchedulingInterval

__all__ = [
    "AuxLoss",
    "AuxLosses",
    "IntervalBuilder",
    "IntervalList",
    "Process",
    "ProcessExit",
    "SchedulingInterval",
    "ThreadTable",
    "read_sideband",
]
