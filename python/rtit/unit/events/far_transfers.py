"""Far transfers, interrupts, exceptions, user interrupts, MOV CR3 and changes of mode
(sections 33.2.1.3, 33.2.4, 33.2.5.2, 33.4.2.7, 33.4.2.8, 33.7).

These events change the context. The packet at the end shows what became of PacketEn: TIP (1 before
and after), TIP.PGD (1 to 0), TIP.PGE (0 to 1), or none. Packets that report the event, FUP, PIP,
MODE.Exec and the packets of event trace, precede it.
"""

from __future__ import annotations

from dataclasses import dataclass

from rtit.errors import IllegalEvent
from rtit.unit.arch_state import ArchState
from rtit.unit.control_flow_packets import (
    emit_fup,
    emit_mode_exec,
    emit_pip,
    emit_tip,
    emit_tip_pgd,
    emit_tip_pge,
    emit_vmcs,
    flush_tnt,
    is_mode_exec_due,
)
from rtit.unit.core import Unit
from rtit.unit.enables import (
    compute_context_en,
    linear_address,
    stop_tracing,
    update_enables,
    update_packet_en,
)
from rtit.unit.events.event_trace import (
    CfeType,
    EventReport,
    EventReports,
    emit_event,
    emit_events,
    emit_lone_mode_exec,
    is_cfe_due,
    is_lone_mode_exec_due,
    is_mode_exec_due_without_branch,
)
from rtit.unit.illegal_events import require_addresses, require_no_transaction
from rtit.unit.overflow import emit_unreported_context
from rtit.unit.packet_commit import commit, insert_extra_psb
from rtit.unit.timing_packets import advance_to_cycle, emit_cyc_if_due


@dataclass(frozen=True, slots=True)
class OperationTimes:
    """The times at which the parts of a long operation occur (section 33.3.6.2).

    In retired instructions, ascending; None: at the time of the part before.
    """

    pip: int | None = None
    mode_exec: int | None = None
    target: int | None = None


AT_ONCE = OperationTimes()


@dataclass(frozen=True, slots=True)
class VmxTransition:
    """What a VMX transition adds to a far transfer (Tables 33-52 and 33-53).

    `pip`: PIP is sent, or never; NR=1 for an `entry` to non-root operation. `vmcs`: a VMCS packet
    is sent. `reports`: event trace, with IPs as packets carry them.
    """

    pip: bool
    entry: bool = False
    vmcs: bool = False
    reports: EventReports = ()


def transfer(
    unit: Unit,
    target: int,
    arch: ArchState,
    *,
    event_ip: int | None = None,
    times: OperationTimes = AT_ONCE,
    report: EventReport | None = None,
    report_ip: int | None = None,
    transition: VmxTransition | None = None,
) -> None:
    """Transfer control to `target`: a far branch, or with `event_ip` an interrupt or exception.

    `arch` is the state after the transfer; `target` is an effective IP in this state. `event_ip` is
    the IP of the FUP: the next instruction (traps, interrupts) or the faulting one. `report` is the
    event's report for event trace, at `report_ip` if there is no `event_ip`; `transition` replaces
    it for a VM entry or exit. Raises IllegalEvent if `times` go back, and inside a transaction for
    what aborts it (section 33.2.9.2).
    """
    require_addresses(target, event_ip, report_ip)
    _require_ordered_times(unit, times)
    if event_ip is not None or _aborts_transaction(unit.state.arch, arch):
        require_no_transaction(unit.state.arch, "an event, or a change of CPL or CR3,")
    state = unit.state
    before = state.arch
    source = None if event_ip is None else linear_address(unit, event_ip)
    told_ip = source if report_ip is None else linear_address(unit, report_ip)
    state.arch = arch
    state.ip = target = linear_address(unit, target)
    if not state.trigger_en:
        return
    was, was_context = state.packet_en, state.context_en
    stops = update_enables(unit, target)
    now = state.packet_en
    changed = arch.cr3 != before.cr3 if transition is None else transition.pip
    paging = changed and state.context_en and unit.configuration.os
    mode_alone = is_lone_mode_exec_due(unit, before)
    if was:
        flush_tnt(unit)
        if source is not None and times is AT_ONCE:
            emit_cyc_if_due(unit)
    if report is not None and is_cfe_due(unit, report, before=was_context, after=state.context_en):
        flush_tnt(unit)
        if times is AT_ONCE and (was or now or paging or mode_alone):
            emit_cyc_if_due(unit)
        emit_event(
            unit,
            report,
            before=was_context,
            after=state.context_en,
            ip=told_ip,
            branch_fup=was and source is not None,
        )
    if transition is not None and transition.reports:
        flush_tnt(unit)
        if was or now or paging or mode_alone:
            emit_cyc_if_due(unit)
        contexts = {"before": was_context, "after": state.context_en}
        emit_events(unit, transition.reports, **contexts, branch_fup=was and source is not None)
    if was and source is not None:
        emit_fup(unit, source)
    if paging:
        _advance_to_operation_part(unit, times.pip)
        emit_pip(unit, entry=transition is not None and transition.entry)
    emit_unreported_context(unit)
    if transition is not None and transition.vmcs and state.context_en:
        flush_tnt(unit)
        _advance_to_operation_part(unit, None)
        emit_vmcs(unit)
    if mode_alone:
        emit_lone_mode_exec(unit, target)
    if was and now and is_mode_exec_due(unit):
        _advance_to_operation_part(unit, times.mode_exec)
        emit_mode_exec(unit)
    if was or now:
        _advance_to_operation_part(unit, times.target)
    finish_transfer(unit, was, target, stops)


def finish_transfer(unit: Unit, was: bool, target: int, stops: bool) -> None:
    """Emit the packet at the end of a transfer, and TraceStop if it `stops`.

    `update_enables` has been called for `target`. `was` is PacketEn before the transfer.
    """
    state = unit.state
    if was and state.packet_en:
        emit_tip(unit, target)
    elif was:
        hidden = stops and unit.parameters.tracestop_pgd_ip == "suppressed"
        emit_tip_pgd(unit, target if state.context_en and not hidden else None)
    elif state.packet_en:
        emit_tip_pge(unit, target)
    if stops:
        stop_tracing(unit)
    commit(unit)
    insert_extra_psb(unit, "transfer")


def mov_cr3(unit: Unit, ip: int, next_ip: int, arch: ArchState) -> None:
    """Execute MOV to CR3 at `ip` (sections 33.2.5.2 and 33.4.2.7).

    `arch` holds the new value; `next_ip` is the next instruction. In a TraceStop range MOV CR3
    stops the trace (Table 33-28): Parameters.tracestop_mov_cr3.
    """
    require_addresses(ip, next_ip)
    require_no_transaction(unit.state.arch, "MOV CR3")
    state = unit.state
    source = linear_address(unit, ip)
    state.arch = arch
    state.ip = linear_address(unit, next_ip)
    if not state.trigger_en:
        return
    was = state.packet_en
    stops = _update_enables_in_place(unit, source)
    flush_tnt(unit)
    if state.context_en and unit.configuration.os:
        _advance_to_operation_part(unit, None)
        emit_pip(unit)
    emit_unreported_context(unit)
    _finish_context_change(unit, was, stops)
    commit(unit)
    insert_extra_psb(unit, "mov_cr3")


def change_mode(unit: Unit, ip: int, next_ip: int, arch: ArchState) -> None:
    """Execute an instruction that is not a branch and changes the mode (33.4.2.8) or PAE paging.

    The mode is CS.L & LMA, CS.D or RFLAGS.IF; PAE paging determines the bits of CR3 that are
    compared (33.2.5.2). Examples: STI, CLI, POPF; MOV CR0, MOV CR4, WRMSR that change EFER.LMA. CPL
    and CR3 stay.
    """
    require_addresses(ip, next_ip)
    state = unit.state
    before, source, was = state.arch, linear_address(unit, ip), state.packet_en
    state.arch = arch
    state.ip = linear_address(unit, next_ip)
    if state.trigger_en and state.context_en != compute_context_en(unit.configuration, arch):
        stops = _update_enables_in_place(unit, source)
        flush_tnt(unit)
        emit_unreported_context(unit)
        _finish_context_change(unit, was, stops)
        commit(unit)
        return
    update_packet_en(unit)
    if is_mode_exec_due_without_branch(unit, before):
        flush_tnt(unit)
        emit_cyc_if_due(unit)
        emit_mode_exec(unit)
        emit_fup(unit, source)
        commit(unit)


def _finish_context_change(unit: Unit, was: bool, stops: bool) -> None:
    """Emit TIP.PGD, TIP.PGE or TraceStop for an instruction other than a branch."""
    state = unit.state
    if was != state.packet_en:
        _advance_to_operation_part(unit, None)
        if was:
            emit_tip_pgd(unit, None)
        else:
            emit_tip_pge(unit, state.ip)
    if stops:
        stop_tracing(unit)


def _update_enables_in_place(unit: Unit, ip: int) -> bool:
    """Recompute the enables for an instruction at linear address `ip` that is not a branch.

    FilterEn changes only when execution enters the context, or at TraceStop. Return whether the
    instruction meets the TraceStop condition.
    """
    state = unit.state
    was_context, filter_en = state.context_en, state.filter_en
    update_enables(unit, state.ip)
    stays = was_context and state.context_en
    stops = state.context_en and unit.configuration.ranges.is_trace_stop(ip)
    stops &= not stays or unit.parameters.tracestop_mov_cr3 == "in_range"
    if stops:
        state.filter_en = False
    elif stays:
        state.filter_en = filter_en
    elif state.context_en:
        state.filter_en = unit.configuration.ranges.filter_en(state.ip)
    update_packet_en(unit)
    return stops


def _aborts_transaction(before: ArchState, after: ArchState) -> bool:
    """Return whether a change of state aborts a transaction."""
    return (
        before.privilege != after.privilege
        or before.cr3 != after.cr3
        or before.vmx != after.vmx
        or before.in_enclave != after.in_enclave
    )


def _require_ordered_times(unit: Unit, times: OperationTimes) -> None:
    now = unit.state.cycle
    for clock in (times.pip, times.mode_exec, times.target):
        if clock is not None:
            if clock * unit.time.cpi < now:
                raise IllegalEvent(f"a part of an operation at clock {clock}, before the last one")
            now = clock * unit.time.cpi


def _advance_to_operation_part(unit: Unit, clock: int | None) -> None:
    """Advance to `clock` (None: stay), then emit the CYC before a CYC-eligible packet."""
    if clock is not None:
        advance_to_cycle(unit, clock * unit.time.cpi)
    emit_cyc_if_due(unit)


UIRET_LENGTH = 4
"""Bytes of the instruction: F3 0F 01 EC."""


def user_interrupt(unit: Unit, ip: int, handler: int, vector: int) -> None:
    """Deliver a user interrupt before the instruction at `ip`.

    Row 26 of Table 33-55 shows a FUP alone, without the handler's address:
    Parameters.uintr_literal.
    """
    if _omits_uintr_targets(unit):
        _emit_fup_only(unit, ip, handler, EventReport(CfeType.UINTR, vector))
        return
    arch = unit.state.arch
    transfer(unit, handler, arch, event_ip=ip, report=EventReport(CfeType.UINTR, vector))


def uiret(unit: Unit, ip: int, target: int) -> None:
    """Execute UIRET at `ip`. Row 27 of Table 33-55 shows a FUP alone, with the next IP."""
    if _omits_uintr_targets(unit):
        _emit_fup_only(unit, ip + UIRET_LENGTH, target, EventReport(CfeType.UIRET))
        return
    transfer(unit, target, unit.state.arch, report=EventReport(CfeType.UIRET), report_ip=ip)


def _omits_uintr_targets(unit: Unit) -> bool:
    return unit.parameters.uintr_literal == "table" and unit.state.packet_en


def _emit_fup_only(unit: Unit, ip: int, target: int, report: EventReport) -> None:
    require_addresses(ip, target)
    flush_tnt(unit)
    source = linear_address(unit, ip)
    emit_event(unit, report, before=True, after=True, ip=source, branch_fup=True)
    emit_fup(unit, source)
    unit.state.ip = linear_address(unit, target)
    commit(unit)
