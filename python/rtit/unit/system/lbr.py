"""PT and last branch records on processors that cannot use both (section 33.3.1.2).

The emulator says what LBR, BTS, BTM and LER would record; while they are suspended it is not
recorded.
"""

from __future__ import annotations

from dataclasses import replace

from rtit.errors import GeneralProtection
from rtit.unit.core import Unit
from rtit.unit.output.pmi import COUNTERS_FROZEN, LBRS_FROZEN
from rtit.unit.state.last_branches import IA32_DEBUGCTL, RESTRICTED

_DEBUGCTL_BITS = 0xFFC3
"""Bits of IA32_DEBUGCTL that are not reserved on all processors with PT."""


def suspended(unit: Unit) -> bool:
    """True while TraceEn=1 on a processor where PT excludes LBR, BTS, BTM and LER."""
    return unit.profile.lbr_exclusive and unit.registers.trace_en


def counters_frozen(unit: Unit) -> bool:
    """True while a PMI has frozen the performance counters, which are the emulator's."""
    return bool(unit.state.global_status & COUNTERS_FROZEN)


def last_branch(unit: Unit, from_ip: int, to_ip: int, info: int = 0) -> None:
    """A branch that LBR records, if IA32_DEBUGCTL.LBR is 1 and nothing suspends or froze it."""
    records = unit.state.last_branches
    frozen = unit.state.global_status & LBRS_FROZEN
    if records.enabled and not frozen and not suspended(unit):
        unit.state.last_branches = records.recorded(from_ip, to_ip, info)


def last_exception(unit: Unit, from_ip: int, to_ip: int) -> None:
    """The last branch before an exception or interrupt, which LER keeps."""
    if not suspended(unit):
        records = replace(unit.state.last_branches, ler_from=from_ip, ler_to=to_ip)
        unit.state.last_branches = records


def read(unit: Unit, msr: int) -> int:
    """The value of IA32_DEBUGCTL or an MSR in RESTRICTED, which is 0 while suspended."""
    if msr in RESTRICTED and suspended(unit):
        return 0
    return unit.state.last_branches.read(msr)


def write(unit: Unit, msr: int, value: int) -> None:
    """Write IA32_DEBUGCTL or an MSR in RESTRICTED, which drops it while suspended.

    Raises GeneralProtection for reserved bits.
    """
    if msr == IA32_DEBUGCTL and value & ~_DEBUGCTL_BITS:
        raise GeneralProtection(f"IA32_DEBUGCTL has reserved bits: {value:#x}")
    if msr in RESTRICTED and suspended(unit):
        return
    unit.state.last_branches = unit.state.last_branches.written(msr, value)
