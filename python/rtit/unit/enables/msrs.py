"""RDMSR and WRMSR: which part of the unit an MSR belongs to (section 33.2.8).

Besides the MSRs of PT there are those that the chapter has software read or write: IA32_XSS
(33.3.5.2), LBR, LER and IA32_DEBUGCTL (33.3.1.2), IA32_PERF_GLOBAL_STATUS and the LVT entry of the
PMI (33.2.7.2), IA32_VMX_MISC (33.2.9.4), MSR_PLATFORM_INFO and IA32_TSC_ADJUST (33.8.3.1).
"""

from __future__ import annotations

from dataclasses import replace

from rtit.errors import GeneralProtection
from rtit.registers import MSRS
from rtit.unit.core import Unit
from rtit.unit.enables import pt_msrs
from rtit.unit.output.pmi import CLEARABLE, IA32_PERF_GLOBAL_STATUS, IA32_PERF_GLOBAL_STATUS_RESET
from rtit.unit.refusal import addresses, within
from rtit.unit.state.arch import MASK64
from rtit.unit.state.last_branches import IA32_DEBUGCTL, RESTRICTED
from rtit.unit.system import lbr, xsave
from rtit.unit.system.xsave import IA32_XSS

IA32_TSC_ADJUST = 0x3B
MSR_PLATFORM_INFO = 0xCE
IA32_VMX_MISC = 0x485
IA32_X2APIC_LVT_PMI = 0x834

_LVT_PMI_BITS = 0x1_07FF
"""Vector, delivery mode and mask (Volume 3, local vector table)."""

_READ_ONLY = frozenset((MSR_PLATFORM_INFO, IA32_VMX_MISC, IA32_PERF_GLOBAL_STATUS))


_KNOWN = (
    *MSRS,
    *RESTRICTED,
    *_READ_ONLY,
    *(IA32_DEBUGCTL, IA32_XSS, IA32_PERF_GLOBAL_STATUS_RESET, IA32_TSC_ADJUST),
    IA32_X2APIC_LVT_PMI,
)


def rdmsr(unit: Unit, msr: int) -> int:
    """The value of an MSR, 64 bits. Raises GeneralProtection for one that is not there.

    Those of LBR and LER read as 0 while they are suspended (section 33.3.1.2).
    """
    if msr == IA32_XSS:
        return xsave.read_xss(unit)
    if msr in RESTRICTED or msr == IA32_DEBUGCTL:
        return lbr.read(unit, msr)
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
    return pt_msrs.read(unit, msr)


def msrs(unit: Unit) -> tuple[int, ...]:
    """The addresses of all MSRs that the processor has, ascending: for those RDMSR and WRMSR are
    answered here, all others are the emulator's.
    """
    return tuple(sorted(msr for msr in _KNOWN if _exists(unit, msr)))


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
    addresses(ip, next_ip)
    within("an MSR", value, 64)
    if msr == IA32_XSS:
        xsave.write_xss(unit, value)
    elif msr in RESTRICTED or msr == IA32_DEBUGCTL:
        lbr.write(unit, msr, value)
    elif msr == IA32_PERF_GLOBAL_STATUS_RESET:
        unit.state.global_status &= ~(value & CLEARABLE)
    elif msr in _READ_ONLY:
        raise GeneralProtection(f"MSR {msr:#x} is read-only")
    elif msr == IA32_TSC_ADJUST:
        signed = value - (1 << 64) if value >> 63 else value
        unit.time = replace(unit.time, tsc_adjust=signed)
    elif msr == IA32_X2APIC_LVT_PMI:
        if value & ~_LVT_PMI_BITS:
            raise GeneralProtection(f"the LVT entry of the PMI has reserved bits: {value:#x}")
        unit.state.lvt_pmi = value
    else:
        pt_msrs.write(unit, msr, value, ip=ip, next_ip=next_ip)
