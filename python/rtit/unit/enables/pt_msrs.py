"""The MSRs of PT, read and written; the rules are in `registers` (section 33.2.8)."""

from __future__ import annotations

from rtit.registers import Msr, rdmsr, wrmsr
from rtit.unit.core import Unit
from rtit.unit.enables import status, steering, trace_en
from rtit.unit.enables.trace_en import TRACE_EN
from rtit.unit.events.event_trace import Reports


def read(unit: Unit, msr: int) -> int:
    """The value of an MSR, 64 bits. Raises GeneralProtection for one that is not there."""
    status.publish(unit)
    return rdmsr(unit.registers, msr, profile=unit.profile)


def write(
    unit: Unit,
    msr: int,
    value: int,
    *,
    ip: int | None = None,
    next_ip: int | None = None,
    reports: Reports = (),
    fup: bool = True,
) -> None:
    """Write a PT MSR by an instruction or by an operation that loads it: the same rules hold.

    `reports` and `fup` (whether `ip` is told) matter for an operation that clears or sets
    TraceEn.
    """
    state = unit.state
    status.publish(unit)
    was = unit.registers.trace_en
    vmx = state.arch.vmx != "off"
    wrmsr(unit.registers, msr, value, profile=unit.profile, vmx=vmx)
    if msr == Msr.CTL:
        if was and not value & TRACE_EN:
            trace_en.disable(
                unit, state.ip if ip is None else steering.address(unit, ip), reports, fup=fup
            )
        if next_ip is not None:
            state.ip = steering.address(unit, next_ip)
        if not was and value & TRACE_EN:
            trace_en.enable(unit, reports)
    elif msr == Msr.STATUS:
        status.take(unit)
