"""The trace unit: from what a processor does to Intel PT packets in memory.

Reading order: `state`, `enables`, `filtering`; then `generator`, `compression`, `timing`, `psb`,
which make packets; then `control`, `branches`, `transfers`, which decide when; `output`, `topa`,
`single_range` and `memory`, where they go.
"""

from rtit.unit.arch import Arch
from rtit.unit.control import (
    IA32_PERF_GLOBAL_STATUS,
    IA32_PERF_GLOBAL_STATUS_RESET,
    TRACE_TOPA_PMI,
    Snapshot,
)
from rtit.unit.memory import Memory
from rtit.unit.output import Output, OutputResult, Scheme
from rtit.unit.parameters import Parameters
from rtit.unit.state import State
from rtit.unit.time_model import TimeModel
from rtit.unit.transfers import Stamps
from rtit.unit.unit import TraceUnit

__all__ = [
    "IA32_PERF_GLOBAL_STATUS",
    "IA32_PERF_GLOBAL_STATUS_RESET",
    "TRACE_TOPA_PMI",
    "Arch",
    "Memory",
    "Output",
    "OutputResult",
    "Parameters",
    "Scheme",
    "Snapshot",
    "Stamps",
    "State",
    "TimeModel",
    "TraceUnit",
]
