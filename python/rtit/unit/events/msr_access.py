"""RDMSR and WRMSR of all modelled MSRs, and the last branch records (sections 33.2.8, 33.3.1.2).

Besides the MSRs of PT the chapter has software read or write: IA32_XSS (33.3.5.2), LBR, LER and
IA32_DEBUGCTL (33.3.1.2), IA32_PERF_GLOBAL_STATUS and the LVT entry of the PMI (33.2.7.2),
IA32_VMX_MISC (33.2.9.4), MSR_PLATFORM_INFO and IA32_TSC_ADJUST (33.8.3.1).

On processors that cannot use PT and LBR at the same time, LBR, BTS, BTM and LER are suspended while
TraceEn=1. The emulator reports each branch with `last_branch`; while suspended it is not recorded.
BTS and BTM records are passed on to `Unit.on_branch_trace` (Volume 3, 18.4.4 and 18.4.5).
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
from rtit.unit.packet_commit import (
    CLEARABLE_STATUS,
    COUNTERS_FROZEN,
    IA32_PERF_GLOBAL_STATUS,
    IA32_PERF_GLOBAL_STATUS_RESET,
    LBRS_FROZEN,
)
from rtit.unit.state import IA32_DEBUGCTL, LAST_BRANCH_MSRS

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
    """Return whether LBR, BTS, BTM and LER are suspended: PT excludes them, and TraceEn=1."""
    return unit.profile.lbr_exclusive and unit.registers.trace_en


def are_counters_frozen(unit: Unit) -> bool:
    """Return whether a PMI has frozen the performance counters, which the emulator implements."""
    return bool(unit.state.global_status & COUNTERS_FROZEN)


def last_branch(unit: Unit, from_ip: int, to_ip: int, info: int = 0) -> None:
    """Report a branch to LBR, BTS and BTM.

    LBR records it if IA32_DEBUGCTL.LBR is 1 and no PMI has frozen LBR; BTS or BTM if TR is 1.
    Nothing is recorded while they are suspended.
    """
    require_addresses(from_ip, to_ip, info)
    if are_branch_records_suspended(unit):
        return
    records = unit.state.last_branches
    if records.enabled and not unit.state.global_status & LBRS_FROZEN:
        unit.state.last_branches = records.with_pending_branch(from_ip, to_ip, info)
    off = _DEBUGCTL_BTS_OFF_OS if unit.state.arch.privilege == 0 else _DEBUGCTL_BTS_OFF_USR
    stored = bool(records.debugctl & _DEBUGCTL_BTS)
    traced = records.debugctl & _DEBUGCTL_TR and not (stored and records.debugctl & off)
    if traced and unit.on_branch_trace is not None:
        unit.on_branch_trace(from_ip, to_ip, stored)


def last_exception(unit: Unit, from_ip: int, to_ip: int) -> None:
    """Report the last branch before an exception or interrupt, for LER."""
    require_addresses(from_ip, to_ip)
    if not are_branch_records_suspended(unit):
        records = replace(unit.state.last_branches, ler_from=from_ip, ler_to=to_ip)
        unit.state.last_branches = records


def _read_branch_msr(unit: Unit, msr: int) -> int:
    """Return IA32_DEBUGCTL or an MSR of LAST_BRANCH_MSRS, which reads as 0 while suspended."""
    if msr in LAST_BRANCH_MSRS and are_branch_records_suspended(unit):
        return 0
    return unit.state.last_branches.read(msr)


def _write_branch_msr(unit: Unit, msr: int, value: int) -> None:
    """Write IA32_DEBUGCTL or an MSR of LAST_BRANCH_MSRS; the latter is ignored while suspended.

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
    """Return the 64-bit value of an MSR. Raises GeneralProtection for one that does not exist.

    The MSRs of LBR and LER read as 0 while they are suspended (section 33.3.1.2).
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
    """Return the addresses of all modelled MSRs of the processor, ascending.

    `rdmsr` and `wrmsr` handle these; all others are the emulator's.
    """
    return tuple(sorted(msr for msr in _MODELLED_MSRS if _msr_exists(unit, msr)))


def _msr_exists(unit: Unit, msr: int) -> bool:
    try:
        rdmsr(unit, msr)
    except GeneralProtection:
        return False
    return True


def wrmsr(
    unit: Unit, msr: int, value: int, *, ip: int | None = None, next_ip: int | None = None
) -> None:
    """Write an MSR. Raises GeneralProtection, and then nothing has changed (section 33.2.8).

    `ip` is the address of the WRMSR, for the FUP if it ends tracing; `next_ip` that of the next
    instruction, for the TIP.PGE if it starts tracing. Both default to the current IP. Writes to the
    MSRs of LBR and LER are ignored while these are suspended (section 33.3.1.2).
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
