"""PT and last branch records on processors that cannot use both (section 33.3.1.2).

The emulator says what LBR, BTS, BTM and LER would record; while they are suspended it is not
recorded. BTS and BTM reach it again by Unit.on_branch_trace (Volume 3, 18.4.4 and 18.4.5).

RDMSR and WRMSR: which part of the unit an MSR belongs to (section 33.2.8).

Besides the MSRs of PT there are those that the chapter has software read or write: IA32_XSS
(33.3.5.2), LBR, LER and IA32_DEBUGCTL (33.3.1.2), IA32_PERF_GLOBAL_STATUS and the LVT entry of the
PMI (33.2.7.2), IA32_VMX_MISC (33.2.9.4), MSR_PLATFORM_INFO and IA32_TSC_ADJUST (33.8.3.1).
"""

from __future__ import annotations

from dataclasses import replace

from rtit.errors import GeneralProtection
from rtit.registers import MSRS
from rtit.unit.arch_state import MASK64
from rtit.unit.core import Unit
from rtit.unit.events.trace_control import read_pt_msr, write_pt_msr
from rtit.unit.events.xsave import IA32_XSS, read_xss, write_xss
from rtit.unit.illegal_events import require_addresses, require_bits
from rtit.unit.state import IA32_DEBUGCTL, LAST_BRANCH_MSRS
from rtit.unit.stream import (
    CLEARABLE_STATUS,
    COUNTERS_FROZEN,
    IA32_PERF_GLOBAL_STATUS,
    IA32_PERF_GLOBAL_STATUS_RESET,
    LBRS_FROZEN,
)

_DEBUGCTL_BITS = 0xFFC3
"""Bits of IA32_DEBUGCTL that are not reserved on all processors with PT."""


_DEBUGCTL_TR, _DEBUGCTL_BTS, _DEBUGCTL_BTS_OFF_OS, _DEBUGCTL_BTS_OFF_USR = (
    1 << 6,
    1 << 7,
    1 << 9,
    1 << 10,
)
"""Of IA32_DEBUGCTL: branches are traced; they are stored (BTS), not sent (BTM); BTS rests at CPL 0,
above it.
"""


def are_branch_records_suspended(unit: Unit) -> bool:
    """True while TraceEn=1 on a processor where PT excludes LBR, BTS, BTM and LER."""
    return unit.profile.lbr_exclusive and unit.registers.trace_en


def are_counters_frozen(unit: Unit) -> bool:
    """True while a PMI has frozen the performance counters, which are the emulator's."""
    return bool(unit.state.global_status & COUNTERS_FROZEN)


def last_branch(unit: Unit, from_ip: int, to_ip: int, info: int = 0) -> None:
    """A branch that LBR records if IA32_DEBUGCTL.LBR is 1, and BTS or BTM if TR is 1; unless they
    are suspended, or a PMI froze LBR.
    """
    require_addresses(from_ip, to_ip, info)
    if are_branch_records_suspended(unit):
        return
    records = unit.state.last_branches
    if records.enabled and not unit.state.global_status & LBRS_FROZEN:
        unit.state.last_branches = records.with_branch(from_ip, to_ip, info)
    off = _DEBUGCTL_BTS_OFF_OS if unit.state.arch.privilege == 0 else _DEBUGCTL_BTS_OFF_USR
    stored = bool(records.debugctl & _DEBUGCTL_BTS)
    traced = records.debugctl & _DEBUGCTL_TR and not (stored and records.debugctl & off)
    if traced and unit.on_branch_trace is not None:
        unit.on_branch_trace(from_ip, to_ip, stored)


def last_exception(unit: Unit, from_ip: int, to_ip: int) -> None:
    """The last branch before an exception or interrupt, which LER keeps."""
    require_addresses(from_ip, to_ip)
    if not are_branch_records_suspended(unit):
        records = replace(unit.state.last_branches, ler_from=from_ip, ler_to=to_ip)
        unit.state.last_branches = records


def _read_branch_msr(unit: Unit, msr: int) -> int:
    """The value of IA32_DEBUGCTL or an MSR in RESTRICTED, which is 0 while suspended."""
    if msr in LAST_BRANCH_MSRS and are_branch_records_suspended(unit):
        return 0
    return unit.state.last_branches.read(msr)


def _write_branch_msr(unit: Unit, msr: int, value: int) -> None:
    """Write IA32_DEBUGCTL or an MSR in RESTRICTED, which drops it while suspended.

    Raises GeneralProtection for reserved bits.
    """
    if msr == IA32_DEBUGCTL and value & ~_DEBUGCTL_BITS:
        raise GeneralProtection(f"IA32_DEBUGCTL has reserved bits: {value:#x}")
    if msr in LAST_BRANCH_MSRS and are_branch_records_suspended(unit):
        return
    unit.state.last_branches = unit.state.last_branches.with_msr(msr, value)


IA32_TSC_ADJUST = 0x3B
MSR_PLATFORM_INFO = 0xCE
IA32_VMX_MISC = 0x485
IA32_X2APIC_LVT_PMI = 0x834

_LVT_PMI_BITS = 0x1_07FF
"""Vector, delivery mode and mask (Volume 3, local vector table)."""

_READ_ONLY_MSRS = frozenset((MSR_PLATFORM_INFO, IA32_VMX_MISC, IA32_PERF_GLOBAL_STATUS))


_MODELLED_MSRS = (
    *MSRS,
    *LAST_BRANCH_MSRS,
    *_READ_ONLY_MSRS,
    *(IA32_DEBUGCTL, IA32_XSS, IA32_PERF_GLOBAL_STATUS_RESET, IA32_TSC_ADJUST),
    IA32_X2APIC_LVT_PMI,
)


def rdmsr(unit: Unit, msr: int) -> int:
    """The value of an MSR, 64 bits. Raises GeneralProtection for one that is not there.

    Those of LBR and LER read as 0 while they are suspended (section 33.3.1.2).
    """
    if msr == IA32_XSS:
        return read_xss(unit)
    if msr in LAST_BRANCH_MSRS or msr == IA32_DEBUGCTL:
        return _read_branch_msr(unit, msr)
    if msr == IA32_PERF_GLOBAL_STATUS:
        return unit.state.global_status
    if msr == IA32_PERF_GLOBAL_STATUS_RESET:
        return 0
    if msr == IA32_TSC_ADJUST:
        return unit.time.tsc_adjust & MASK64
    if msr == MSR_PLATFORM_INFO:
        return unit.time.max_non_turbo_ratio << 8
    if msr == IA32_VMX_MISC:
        return int(unit.profile.vmx_tracing) << 14
    if msr == IA32_X2APIC_LVT_PMI:
        return unit.state.lvt_pmi
    return read_pt_msr(unit, msr)


def msrs(unit: Unit) -> tuple[int, ...]:
    """The addresses of all MSRs that the processor has, ascending: for those RDMSR and WRMSR are
    answered here, all others are the emulator's.
    """
    return tuple(sorted(msr for msr in _MODELLED_MSRS if _exists(unit, msr)))


def _exists(unit: Unit, msr: int) -> bool:
    try:
        rdmsr(unit, msr)
    except GeneralProtection:
        return False
    return True


def wrmsr(
    unit: Unit, msr: int, value: int, *, ip: int | None = None, next_ip: int | None = None
) -> None:
    """Write an MSR. Raises GeneralProtection, and then nothing has changed (section 33.2.8).

    `ip` and `next_ip` are those of the WRMSR: what FUP carries when it ends tracing, and TIP.PGE
    when it starts it; both default to the current IP. Writes to the MSRs of LBR and LER are dropped
    while they are suspended (section 33.3.1.2).
    """
    require_addresses(ip, next_ip)
    require_bits("an MSR", value, 64)
    if msr == IA32_XSS:
        write_xss(unit, value)
    elif msr in LAST_BRANCH_MSRS or msr == IA32_DEBUGCTL:
        _write_branch_msr(unit, msr, value)
    elif msr == IA32_PERF_GLOBAL_STATUS_RESET:
        unit.state.global_status &= ~(value & CLEARABLE_STATUS)
    elif msr in _READ_ONLY_MSRS:
        raise GeneralProtection(f"MSR {msr:#x} is read-only")
    elif msr == IA32_TSC_ADJUST:
        signed = value - (1 << 64) if value >> 63 else value
        unit.time = replace(unit.time, tsc_adjust=signed)
    elif msr == IA32_X2APIC_LVT_PMI:
        if value & ~_LVT_PMI_BITS:
            raise GeneralProtection(f"the LVT entry of the PMI has reserved bits: {value:#x}")
        unit.state.lvt_pmi = value
    else:
        write_pt_msr(unit, msr, value, ip=ip, next_ip=next_ip)
