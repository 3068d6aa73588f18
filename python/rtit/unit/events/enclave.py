"""Enclaves: ENCLU[EENTER], [ERESUME], [EEXIT], and asynchronous exits (section 33.2.9.5).

A production enclave forces ContextEn to 0. A debug enclave does not; Parameters.debug_enclave can
make that depend on opt-in. Every event that reaches an enclave leaves it by an asynchronous exit.
"""

from __future__ import annotations

from dataclasses import replace

from rtit.unit.arch_state import ArchState
from rtit.unit.core import Unit
from rtit.unit.events.event_trace import CfeType, EventReport, page_fault_report
from rtit.unit.events.far_transfers import transfer
from rtit.unit.illegal_events import require_addresses, require_legal, require_no_transaction
from rtit.unit.state import StateSavedByAex


def enclave_enter(unit: Unit, ip: int, target: int, *, debug: bool, opt_in: bool) -> None:
    """Execute EENTER at `ip`; the enclave runs from `target`.

    `opt_in` (TCS.FLAGS.DBGOPTIN) counts in a `debug` enclave only, and with
    Parameters.debug_enclave `opt_in`. Raises IllegalEvent in an enclave or outside CPL 3.
    """
    needed = unit.parameters.debug_enclave == "opt_in"
    _enter_enclave(unit, ip, target, opted_out=not debug or (needed and not opt_in))


def enclave_resume(unit: Unit, ip: int, target: int | None = None) -> None:
    """Execute ERESUME at `ip`, to where the last asynchronous exit left, or to another `target`
    that the enclave has set since.

    Raises IllegalEvent in an enclave, outside CPL 3, and without such an exit.
    """
    state = unit.state
    require_legal(
        bool(state.ssa), "ERESUME is executed, but no asynchronous exit has saved a state"
    )
    *rest, saved = state.ssa
    _enter_enclave(unit, ip, saved.ip if target is None else target, opted_out=saved.opted_out)
    state.ssa = tuple(rest)


def _enter_enclave(unit: Unit, ip: int, target: int, *, opted_out: bool) -> None:
    arch = unit.state.arch
    require_legal(not arch.in_enclave, "an enclave is entered from an enclave")
    require_legal(arch.privilege == 3, f"an enclave is entered at CPL {arch.privilege}")
    source = None if opted_out and unit.parameters.enclave_entry_fup == "tip_only" else ip
    arch = replace(arch, in_enclave=True, opted_out_enclave=opted_out)
    transfer(unit, target, arch, event_ip=source)


def enclave_exit(unit: Unit, ip: int, target: int) -> None:
    """Execute EEXIT at `ip`. Raises IllegalEvent outside an enclave."""
    transfer(unit, target, _without_enclave(unit, unit.state.arch, "EEXIT"), event_ip=ip)


def enclave_event(
    unit: Unit,
    ip: int,
    aep: int,
    handler: int,
    arch: ArchState,
    *,
    vector: int,
    cr2: int | None = None,
) -> None:
    """Leave the enclave by an interrupt or exception: AEX or an enclave exiting event.

    `ip` is the instruction inside that has not completed, `aep` the address outside to which the
    handler returns; `arch` the state of the handler. With BranchEn=1 the FUP carries `ip` (Table
    33-55 row 17), with event trace alone `aep` (Table 33-59 row 19). Raises IllegalEvent outside
    an enclave.
    """
    left = unit.state.arch
    arch = _without_enclave(unit, arch, "an asynchronous exit")
    require_no_transaction(left, "an asynchronous exit")
    require_addresses(ip, aep, handler)
    report = EventReport(CfeType.INTR, vector) if cr2 is None else page_fault_report(cr2)
    unit.state.ssa += (StateSavedByAex(ip, left.opted_out_enclave),)
    transfer(unit, handler, arch, event_ip=ip, report=report, report_ip=aep)


def leave_enclave(unit: Unit, ip: int) -> ArchState:
    """Perform the asynchronous exit for an SMI, a VM exit or INIT before the instruction at `ip`.

    Return the state outside the enclave; outside of an enclave, the present state.
    """
    arch = unit.state.arch
    if not arch.in_enclave:
        return arch
    unit.state.ssa += (StateSavedByAex(ip, arch.opted_out_enclave),)
    return replace(arch, in_enclave=False, opted_out_enclave=False)


def _without_enclave(unit: Unit, arch: ArchState, what: str) -> ArchState:
    require_legal(unit.state.arch.in_enclave, f"{what} happens outside an enclave")
    return replace(arch, in_enclave=False, opted_out_enclave=False)
