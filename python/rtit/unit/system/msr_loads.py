"""MSR-load areas: PT MSRs that an operation loads on its way (sections 33.2.8.1 and 33.5.2)."""

from __future__ import annotations

from rtit.errors import GeneralProtection
from rtit.registers import Msr, wrmsr
from rtit.unit.core import Unit
from rtit.unit.enables import pt_msrs, status, steering, trace_en
from rtit.unit.enables.trace_en import TRACE_EN
from rtit.unit.events.event_trace import Reports
from rtit.unit.state.arch import Arch

Loads = tuple[tuple[int, int], ...]
"""(MSR, value) in order; PT MSRs only."""


def load_silently(unit: Unit, loads: Loads) -> None:
    """`loads`, which are legal, for a processor that shuts down: nothing is sent."""
    for msr, value in loads:
        if msr == Msr.CTL and unit.registers.trace_en and not value & TRACE_EN:
            trace_en.off(unit)
        wrmsr(unit.registers, msr, value, profile=unit.profile, vmx=True)
        if msr == Msr.STATUS:
            status.take(unit)


def rehearse(unit: Unit, loads: Loads) -> tuple[int, bool]:
    """How many of `loads` succeed, and whether they end what is being traced; no effect."""
    registers = unit.registers.copy()
    ends = False
    for number, (msr, value) in enumerate(loads):
        traced = registers.trace_en
        try:
            wrmsr(registers, msr, value, profile=unit.profile, vmx=True)
        except GeneralProtection:
            return number, ends
        ends |= traced and not registers.trace_en
    return len(loads), ends


def switch(
    unit: Unit,
    ip: int,
    target: int,
    arch: Arch,
    loads: Loads,
    *,
    leaving: Reports,
    arriving: Reports,
    fup: bool = True,
) -> None:
    """Go to another context while `loads`, which are legal, clear or set TraceEn.

    What is traced ends in the old context, at `ip`; what begins does so in the new one, at
    `target`. `leaving` is told at the end, `arriving` at a beginning that has no end before it.
    """
    arrived = False
    for msr, value in loads:
        ends = msr == Msr.CTL and unit.registers.trace_en and not value & TRACE_EN
        if ends and not arrived:
            pt_msrs.write(unit, msr, value, ip=ip, reports=leaving, fup=fup)
            arriving = ()
        elif not unit.registers.trace_en and not arrived:
            steering.go(unit, target, arch)
            arrived = True
        if not ends or arrived:
            pt_msrs.write(unit, msr, value, reports=arriving)
            if unit.registers.trace_en:
                arriving = ()
    if not arrived:
        steering.go(unit, target, arch)
