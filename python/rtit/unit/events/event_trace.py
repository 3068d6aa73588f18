"""Event trace: CFE and EVD packets (sections 33.2.4, 33.4.2.29 and 33.4.2.30, Table 33-59)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from rtit.packets import encoder
from rtit.unit.core import Unit
from rtit.unit.packets import generator, timing
from rtit.unit.refusal import within
from rtit.unit.state.arch import Arch

_CFE = encoder("CFE")
_EVD = encoder("EVD")


class Cfe(IntEnum):
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


class Evd(IntEnum):
    """EVD.Type (Table 33-51)."""

    PFA = 0
    VMXQ = 1
    VMXR = 2


@dataclass(frozen=True, slots=True)
class Report:
    """What event trace tells of an event: `vector` 0 where the type has none (Table 33-50).

    `data` are its EVDs, (type, payload of 64 bits), in the order in which they are sent.
    IllegalEvent for what does not fit.
    """

    type: Cfe
    vector: int = 0
    data: tuple[tuple[Evd, int], ...] = ()

    def __post_init__(self) -> None:
        within("a vector", self.vector, 8)
        for _, payload in self.data:
            within("what an EVD tells", payload, 64)


Reports = tuple[tuple[Report, int | None], ...]
"""What is told, in order, each with the IP as packets carry it, or None if it has none."""


def page_fault(address: int) -> Report:
    """#PF: the EVD tells the linear address, as CR2."""
    return Report(Cfe.INTR, 14, ((Evd.PFA, address),))


def vm_exit(unit: Unit, reason: int, qualification: int, vector: int | None = None) -> Report:
    """A VM exit; `vector` is that of the interrupt or exception that caused it, if one did.

    The tables disagree on the order of the EVDs: Parameters.evd_order.
    """
    data = ((Evd.VMXQ, qualification), (Evd.VMXR, reason))
    if unit.parameters.evd_order == "rq":
        data = (data[1], data[0])
    if vector is None:
        return Report(Cfe.VMEXIT, 0, data)
    return Report(Cfe.VMEXIT_INTR, vector, data)


def due(unit: Unit, report: Report, *, before: bool, after: bool) -> bool:
    """True if a CFE is due, by ContextEn before and after the event (Table 33-49).

    TriggerEn is the present one. The chapter contradicts itself where a page fault or a VM exit
    sets ContextEn: Parameters.cfe_pf_0to1 and cfe_vmexit_0to1.
    """
    if not unit.configuration.event_en or not unit.state.trigger_en:
        return False
    if before or not after:
        return before
    if report.type in (Cfe.VMEXIT, Cfe.VMEXIT_INTR):
        return unit.parameters.cfe_vmexit_0to1 == "emit"
    if any(kind == Evd.PFA for kind, _ in report.data):
        return unit.parameters.cfe_pf_0to1 == "emit"
    return True


def send(
    unit: Unit,
    report: Report,
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
    if not due(unit, report, before=before, after=after):
        return
    generator.flush_tnt(unit)
    if before:
        for kind, payload in report.data:
            unit.put(_EVD(kind, payload))
    alone = before and ip is not None and not branch_fup
    unit.put(_CFE(int(alone), report.type, report.vector))
    if alone and ip is not None:
        generator.fup(unit, ip)


def announce(unit: Unit, reports: Reports, *, before: bool, after: bool, branch_fup: bool) -> None:
    """Several reports of one operation, in order: an SMM VM exit is an SMI and a VM exit (33.6)."""
    for report, ip in reports:
        send(unit, report, before=before, after=after, ip=ip, branch_fup=branch_fup)


def mode_changed(unit: Unit, before: Arch) -> bool:
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
        flag |= unit.telling.interrupt_flag != state.arch.interrupt_flag
    return (width and configuration.branch_en) or (flag and configuration.event_en)


def mode_alone(unit: Unit, before: Arch) -> bool:
    """True if MODE.Exec tells of a branch or event that changes RFLAGS.IF, when BranchEn=0.

    There is no TIP then that it could bind to: Parameters.modeexec_branch_nobranchen.
    """
    if unit.configuration.branch_en or unit.parameters.modeexec_branch_nobranchen == "omit":
        return False
    return mode_changed(unit, before)


def mode_at_branch(unit: Unit, target: int) -> None:
    """The MODE.Exec of `mode_alone`. No TNT waits: BranchEn=0 has none."""
    timing.eligible(unit)
    generator.mode_exec(unit)
    generator.fup(unit, target)
