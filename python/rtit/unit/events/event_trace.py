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
    """What event trace tells of an event: `vector` 0 where the type has none (Table 33-50).

    `data` are its EVDs, (type, payload of 64 bits), in the order in which they are sent.
    IllegalEvent for what does not fit.
    """

    type: CfeType
    vector: int = 0
    data: tuple[tuple[EvdType, int], ...] = ()

    def __post_init__(self) -> None:
        require_bits("a vector", self.vector, 8)
        for _, payload in self.data:
            require_bits("what an EVD tells", payload, 64)


EventReports = tuple[tuple[EventReport, int | None], ...]
"""What is told, in order, each with the IP as packets carry it, or None if it has none."""


def page_fault_report(address: int) -> EventReport:
    """#PF: the EVD tells the linear address, as CR2."""
    return EventReport(CfeType.INTR, 14, ((EvdType.PFA, address),))


def vm_exit_report(
    unit: Unit, reason: int, qualification: int, vector: int | None = None
) -> EventReport:
    """A VM exit; `vector` is that of the interrupt or exception that caused it, if one did.

    The tables disagree on the order of the EVDs: Parameters.evd_order.
    """
    data = ((EvdType.VMXQ, qualification), (EvdType.VMXR, reason))
    if unit.parameters.evd_order == "rq":
        data = (data[1], data[0])
    if vector is None:
        return EventReport(CfeType.VMEXIT, 0, data)
    return EventReport(CfeType.VMEXIT_INTR, vector, data)


def is_cfe_due(unit: Unit, report: EventReport, *, before: bool, after: bool) -> bool:
    """True if a CFE is due, by ContextEn before and after the event (Table 33-49).

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
    unit: Unit,
    report: EventReport,
    *,
    before: bool,
    after: bool,
    ip: int | None,
    branch_fup: bool,
) -> None:
    """EVDs and CFE, if due; then a FUP of their own if nothing else gives the IP.

    `ip` as packets carry it, None for an event that has none (SIPI, RSM, or the second CFE of one
    event). `branch_fup`: BranchEn=1 makes a FUP for the event, which the caller puts next; the CFE
    shares it. EVDs tell of the context before the event, so they need ContextEn then.
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
    """Several reports of one operation, in order: an SMM VM exit is an SMI and a VM exit (33.6)."""
    for report, ip in reports:
        emit_event(unit, report, before=before, after=after, ip=ip, branch_fup=branch_fup)


def is_mode_exec_due_without_branch(unit: Unit, before: ArchState) -> bool:
    """True if an operation other than a branch must send MODE.Exec (Table 33-26).

    The width of the code counts with BranchEn=1, RFLAGS.IF with EventEn=1. With BranchEn=0 no
    TIP.PGE tells what IF has become while nothing was sent, so that the next event does.
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
    """True if MODE.Exec tells of a branch or event that changes RFLAGS.IF, when BranchEn=0.

    There is no TIP then that it could bind to: Parameters.modeexec_branch_nobranchen.
    """
    if unit.configuration.branch_en or unit.parameters.modeexec_branch_nobranchen == "omit":
        return False
    return is_mode_exec_due_without_branch(unit, before)


def emit_lone_mode_exec(unit: Unit, target: int) -> None:
    """The MODE.Exec of `mode_alone`. No TNT waits: BranchEn=0 has none."""
    emit_cyc_if_due(unit)
    emit_mode_exec(unit)
    emit_fup(unit, target)
