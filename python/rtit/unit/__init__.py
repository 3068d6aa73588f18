"""The trace unit: from what a processor does to Intel PT packets in memory.

`unit` lists every event; each is a function of the unit that `core` declares. `enables` says when
it traces, `packets` makes the bytes, `output` stores them; `events` and `system` have the events
themselves; `state` is what it knows between two of them, `parameters` what the chapter leaves open.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rtit.lazy import exports

if TYPE_CHECKING:
    from rtit.unit.events.transfers import Stamps
    from rtit.unit.output.memory import Memory
    from rtit.unit.output.output import Output, OutputResult, Scheme
    from rtit.unit.output.pmi import (
        COUNTERS_FROZEN,
        IA32_PERF_GLOBAL_STATUS,
        IA32_PERF_GLOBAL_STATUS_RESET,
        LBRS_FROZEN,
        TRACE_TOPA_PMI,
    )
    from rtit.unit.output.topa import Entry, write_table
    from rtit.unit.parameters.table import Parameters
    from rtit.unit.refusal import IllegalEvent, Shutdown
    from rtit.unit.state.arch import Arch
    from rtit.unit.state.snapshot import Snapshot
    from rtit.unit.state.state import State
    from rtit.unit.state.vmx_controls import VmxControls
    from rtit.unit.time_model import TimeModel
    from rtit.unit.unit import TraceUnit

__all__ = [
    "COUNTERS_FROZEN",
    "IA32_PERF_GLOBAL_STATUS",
    "IA32_PERF_GLOBAL_STATUS_RESET",
    "LBRS_FROZEN",
    "TRACE_TOPA_PMI",
    "Arch",
    "Entry",
    "IllegalEvent",
    "Memory",
    "Output",
    "OutputResult",
    "Parameters",
    "Scheme",
    "Shutdown",
    "Snapshot",
    "Stamps",
    "State",
    "TimeModel",
    "TraceUnit",
    "VmxControls",
    "write_table",
]

__getattr__ = exports(
    __name__,
    {
        "state.arch": "Arch",
        "state.snapshot": "Snapshot",
        "output.memory": "Memory",
        "output.output": "Output OutputResult Scheme",
        "output.topa": "Entry write_table",
        "parameters.table": "Parameters",
        "output.pmi": "COUNTERS_FROZEN IA32_PERF_GLOBAL_STATUS IA32_PERF_GLOBAL_STATUS_RESET "
        "LBRS_FROZEN TRACE_TOPA_PMI",
        "refusal": "IllegalEvent Shutdown",
        "state.state": "State",
        "time_model": "TimeModel",
        "events.transfers": "Stamps",
        "unit": "TraceUnit",
        "state.vmx_controls": "VmxControls",
    },
)
