"""The trace unit: from what a processor does to Intel PT packets in memory.

Reading order: `state`, `enables`, `filtering`; then `generator`, `compression`, `timing`, `psb`,
which make packets; then `stream`, `control`, `branches`, `transfers`, `overflow`, which decide
when; `event_trace`, `special_events`, `tsx`, `ptwrite`, `power`, `blocks` and `hints` for what can
be traced besides; `trace_en`, `vmx`, `stm`, `smm`, `enclave`, `launch`, `xsave` and `lbr` for what
the system does; `output`, `topa`, `single_range`, `memory` and `pmi`, where they go.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rtit.lazy import exports

if TYPE_CHECKING:
    from rtit.unit.arch import Arch
    from rtit.unit.control import Snapshot
    from rtit.unit.memory import Memory
    from rtit.unit.output import Output, OutputResult, Scheme
    from rtit.unit.parameters import Parameters
    from rtit.unit.pmi import (
        COUNTERS_FROZEN,
        IA32_PERF_GLOBAL_STATUS,
        IA32_PERF_GLOBAL_STATUS_RESET,
        LBRS_FROZEN,
        TRACE_TOPA_PMI,
    )
    from rtit.unit.refusal import IllegalEvent, Shutdown
    from rtit.unit.state import State
    from rtit.unit.time_model import TimeModel
    from rtit.unit.transfers import Stamps
    from rtit.unit.unit import TraceUnit
    from rtit.unit.vmx_controls import VmxControls

__all__ = [
    "COUNTERS_FROZEN",
    "IA32_PERF_GLOBAL_STATUS",
    "IA32_PERF_GLOBAL_STATUS_RESET",
    "LBRS_FROZEN",
    "TRACE_TOPA_PMI",
    "Arch",
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
]

__getattr__ = exports(
    __name__,
    {
        "arch": "Arch",
        "control": "Snapshot",
        "memory": "Memory",
        "output": "Output OutputResult Scheme",
        "parameters": "Parameters",
        "pmi": "COUNTERS_FROZEN IA32_PERF_GLOBAL_STATUS IA32_PERF_GLOBAL_STATUS_RESET "
        "LBRS_FROZEN TRACE_TOPA_PMI",
        "refusal": "IllegalEvent Shutdown",
        "state": "State",
        "time_model": "TimeModel",
        "transfers": "Stamps",
        "unit": "TraceUnit",
        "vmx_controls": "VmxControls",
    },
)
