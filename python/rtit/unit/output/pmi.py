"""The ToPA PMI, and what it freezes (section 33.2.7.2).

IA32_DEBUGCTL.Freeze_LBRs_on_PMI and Freeze_Perfmon_on_PMI apply to it as to every PMI: it sets
LBRS_FROZEN and COUNTERS_FROZEN in IA32_PERF_GLOBAL_STATUS (Volume 3, 18.4.7), and nothing is
recorded or counted until software clears them. Tracing goes on: PT is never frozen.
"""

from __future__ import annotations

from rtit.unit.core import Unit

IA32_PERF_GLOBAL_STATUS = 0x38E
IA32_PERF_GLOBAL_STATUS_RESET = 0x390

TRACE_TOPA_PMI = 1 << 55
LBRS_FROZEN = 1 << 58
COUNTERS_FROZEN = 1 << 59
CLEARABLE = TRACE_TOPA_PMI | LBRS_FROZEN | COUNTERS_FROZEN
"""Bits of IA32_PERF_GLOBAL_STATUS that concern PT; writing 1 to the same bit of
IA32_PERF_GLOBAL_STATUS_RESET clears one.
"""

_FREEZES = ((1 << 11, LBRS_FROZEN), (1 << 12, COUNTERS_FROZEN))
"""Bit of IA32_DEBUGCTL: what it makes a PMI set."""


def signal(unit: Unit) -> None:
    """A ToPA PMI is signalled."""
    state = unit.state
    state.pmis += 1
    state.pmi_left = None
    state.global_status |= TRACE_TOPA_PMI
    for control, frozen in _FREEZES:
        if state.last_branches.debugctl & control:
            state.global_status |= frozen
    if unit.configuration.inject:
        state.pend_topa_pmi = True


def pend(unit: Unit) -> None:
    """A ToPA PMI comes after Parameters.pmi_skid bytes more; two that wait are one."""
    if unit.state.pmi_left is None:
        unit.state.pmi_left = unit.parameters.pmi_skid


def passed(unit: Unit, size: int) -> bool:
    """`size` bytes more are written; True if a PMI that waits is due."""
    left = unit.state.pmi_left
    if left is None:
        return False
    unit.state.pmi_left = max(0, left - size)
    return left <= size
