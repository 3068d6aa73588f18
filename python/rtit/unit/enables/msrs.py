"""RDMSR and WRMSR: which part of the unit an MSR belongs to (section 33.2.8)."""

from __future__ import annotations

from rtit.unit.core import Unit
from rtit.unit.enables import pt_msrs
from rtit.unit.output.pmi import CLEARABLE, IA32_PERF_GLOBAL_STATUS, IA32_PERF_GLOBAL_STATUS_RESET
from rtit.unit.refusal import addresses, within
from rtit.unit.state.last_branches import IA32_DEBUGCTL, RESTRICTED
from rtit.unit.system import lbr, xsave
from rtit.unit.system.xsave import IA32_XSS


def rdmsr(unit: Unit, msr: int) -> int:
    """The value of an MSR, 64 bits. Raises GeneralProtection for one that is not there.

    Those of LBR and LER read as 0 while they are suspended (section 33.3.1.2).
    """
    if msr == IA32_XSS:
        return unit.state.xss
    if msr in RESTRICTED or msr == IA32_DEBUGCTL:
        return lbr.read(unit, msr)
    if msr == IA32_PERF_GLOBAL_STATUS:
        return unit.state.global_status
    return pt_msrs.read(unit, msr)


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
    else:
        pt_msrs.write(unit, msr, value, ip=ip, next_ip=next_ip)
