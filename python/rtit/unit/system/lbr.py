"""PT and last branch records on processors that cannot use both (section 33.3.1.2).

The emulator says what LBR, BTS, BTM and LER would record; while they are suspended it is not
recorded. BTS and BTM reach it again by Unit.on_branch_trace (Volume 3, 18.4.4 and 18.4.5).
"""

from __future__ import annotations

from dataclasses import replace

from rtit.errors import GeneralProtection
from rtit.unit.core import Unit
from rtit.unit.output.pmi import COUNTERS_FROZEN, LBRS_FROZEN
from rtit.unit.refusal import addresses
from rtit.unit.state.last_branches import IA32_DEBUGCTL, RESTRICTED

_DEBUGCTL_BITS = 0xFFC3
"""Bits of IA32_DEBUGCTL that are not reserved on all processors with PT."""


_TR, _BTS, _BTS_OFF_OS, _BTS_OFF_USR = 1 << 6, 1 << 7, 1 << 9, 1 << 10
"""Of IA32_DEBUGCTL: branches are traced; they are stored (BTS), not sent (BTM); BTS rests at CPL 0,
above it.
"""


def suspended(unit: Unit) -> bool:
    """True while TraceEn=1 on a processor where PT excludes LBR, BTS, BTM and LER."""
    return unit.profile.lbr_exclusive and unit.registers.trace_en


def counters_frozen(unit: Unit) -> bool:
    """True while a PMI has frozen the performance counters, which are the emulator's."""
    return bool(unit.state.global_status & COUNTERS_FROZEN)


def last_branch(unit: Unit, from_ip: int, to_ip: int, info: int = 0) -> None:
    """A branch that LBR records if IA32_DEBUGCTL.LBR is 1, and BTS or BTM if TR is 1; unless they
    are suspended, or a PMI froze LBR.
    """
    addresses(from_ip, to_ip, info)
    if suspended(unit):
        return
    records = unit.state.last_branches
    if records.enabled and not unit.state.global_status & LBRS_FROZEN:
        unit.state.last_branches = records.recorded(from_ip, to_ip, info)
    off = _BTS_OFF_OS if unit.state.arch.privilege == 0 else _BTS_OFF_USR
    stored = bool(records.debugctl & _BTS)
    traced = records.debugctl & _TR and not (stored and records.debugctl & off)
    if traced and unit.on_branch_trace is not None:
        unit.on_branch_trace(from_ip, to_ip, stored)


def last_exception(unit: Unit, from_ip: int, to_ip: int) -> None:
    """The last branch before an exception or interrupt, which LER keeps."""
    addresses(from_ip, to_ip)
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
