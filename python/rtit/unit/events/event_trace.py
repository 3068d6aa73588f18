"""Event trace: CFE and EVD packets (sections 33.2.4, 33.4.2.29 and 33.4.2.30, Table 33-59)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from rtit.packets import encoder
from rtit.unit.arch_state import ArchState
from rtit.unit.control_flow_packets import emit_fup, emit_mode_exec, flush_tnt
from rtit.unit.core import Unit
from rtit.unit.illegal_events import require_bits
from rtit.unit.timing_packets import emit_cyc_if_due

_CFE = encoder("CFE")
_EVD = encoder("EVD")


class CfeType(IntEnum):
    """CFE.Type (Table 33-50)."""

    INTR = 0x1
    IRET = 0x2
    SMI = 0x3
    RSM = 0x4
    SIPI = 0x5
    INIT = 0x6
    VMENTRY = 0x7
    VMEXIT = 0x8
    VMEXIT_INTR = 0x9
    SHUTDOWN = 0xA
    UINTR = 0xC
    UIRET = 0xD


class EvdType(IntEnum):
    """EVD.Type (Table 33-51)."""

    PFA = 0
    VMXQ = 1
    VMXR = 2


@dataclass(frozen=True, slots=True)
class EventReport:
    """The event-trace packets of one event: CFE type, vector, and EVDs.

    `vector` is 0 if the type has none (Table 33-50). `data` are the EVDs, (type, 64-bit payload),
    in the order of emission. Raises IllegalEvent for a value that does not fit.
    """

    type: CfeType
    vector: int = 0
    data: tuple[tuple[EvdType, int], ...] = ()

    def __post_init__(self) -> None:
        require_bits("a vector", self.vector, 8)
        for _, payload in self.data:
            require_bits("the payload of EVD", payload, 64)


EventReports = tuple[tuple[EventReport, int | None], ...]
"""Reports in order, each with the IP that packets carry, or None without an IP."""


def page_fault_report(address: int) -> EventReport:
    """Return the report of #PF; its EVD holds the linear address, as CR2 does."""
    return EventReport(CfeType.INTR, 14, ((EvdType.PFA, address),))


def vm_exit_report(
    unit: Unit, reason: int, qualification: int, vector: int | None = None
) -> EventReport:
    """Return the report of a VM exit.

    `vector` is that of the interrupt or exception that caused the exit, if one did. The tables
    disagree on the order of the EVDs: Parameters.evd_order.
    """
    data = ((EvdType.VMXQ, qualification), (EvdType.VMXR, reason))
    if unit.parameters.evd_order == "rq":
        data = (data[1], data[0])
    if vector is None:
        return EventReport(CfeType.VMEXIT, 0, data)
    return EventReport(CfeType.VMEXIT_INTR, vector, data)


def is_cfe_due(unit: Unit, report: EventReport, *, before: bool, after: bool) -> bool:
    """Return whether a CFE is due, from ContextEn before and after the event (Table 33-49).

    TriggerEn is the present one. The chapter contradicts itself where a page fault or a VM exit
    sets ContextEn: Parameters.cfe_pf_0to1 and cfe_vmexit_0to1.
    """
    if not unit.configuration.event_en or not unit.state.trigger_en:
        return False
    if before or not after:
        return before
    if report.type in (CfeType.VMEXIT, CfeType.VMEXIT_INTR):
        return unit.parameters.cfe_vmexit_0to1 == "emit"
    if any(kind == EvdType.PFA for kind, _ in report.data):
        return unit.parameters.cfe_pf_0to1 == "emit"
    return True


def emit_event(
    unit: Unit, report: EventReport, *, before: bool, after: bool, ip: int | None, branch_fup: bool
) -> None:
    """Emit EVDs and CFE if due, then a FUP if no other packet gives the IP.

    `ip` is the IP that packets carry; None for an event without one (SIPI, RSM, the second CFE of
    one event). `branch_fup`: BranchEn=1 makes the caller emit a FUP next, which the CFE shares.
    EVDs report the context before the event, so they need ContextEn=1 then.
    """
    if not is_cfe_due(unit, report, before=before, after=after):
        return
    flush_tnt(unit)
    if before:
        for kind, payload in report.data:
            unit.emit(_EVD(kind, payload))
    alone = before and ip is not None and not branch_fup
    unit.emit(_CFE(int(alone), report.type, report.vector))
    if alone and ip is not None:
        emit_fup(unit, ip)


def emit_events(
    unit: Unit, reports: EventReports, *, before: bool, after: bool, branch_fup: bool
) -> None:
    """Emit several reports of one operation in order; an SMM VM exit is an SMI and a VM exit
    (33.6).
    """
    for report, ip in reports:
        emit_event(unit, report, before=before, after=after, ip=ip, branch_fup=branch_fup)


def is_mode_exec_due_without_branch(unit: Unit, before: ArchState) -> bool:
    """Return whether an operation other than a branch must send MODE.Exec (Table 33-26).

    A change of the code width counts with BranchEn=1, one of RFLAGS.IF with EventEn=1. With
    BranchEn=0 no TIP.PGE reports how IF has changed while no packets were sent, so the next event
    does.
    """
    state, configuration = unit.state, unit.configuration
    if not (state.trigger_en and state.context_en and state.filter_en):
        return False
    width = before.mode_exec != state.arch.mode_exec
    flag = before.interrupt_flag != state.arch.interrupt_flag
    if not configuration.branch_en:
        flag |= unit.pending_knowledge.interrupt_flag != state.arch.interrupt_flag
    return (width and configuration.branch_en) or (flag and configuration.event_en)


def is_lone_mode_exec_due(unit: Unit, before: ArchState) -> bool:
    """Return whether a branch or event that changes RFLAGS.IF with BranchEn=0 sends MODE.Exec.

    No TIP exists then that the MODE.Exec could bind to: Parameters.modeexec_branch_nobranchen.
    """
    if unit.configuration.branch_en or unit.parameters.modeexec_branch_nobranchen == "omit":
        return False
    return is_mode_exec_due_without_branch(unit, before)


def emit_lone_mode_exec(unit: Unit, target: int) -> None:
    """Emit MODE.Exec and a FUP. The TNT buffer is empty, because BranchEn=0."""
    emit_cyc_if_due(unit)
    emit_mode_exec(unit)
    emit_fup(unit, target)
