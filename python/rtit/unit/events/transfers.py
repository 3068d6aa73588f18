"""Far transfers, events and MOV CR3: what changes the context (sections 33.2.1.3 and 33.7).

User interrupts and UIRET (Table 33-50; Table 33-55 rows 26 and 27).
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
from rtit.unit.stream import commit, insert_extra_psb
from rtit.unit.timing_packets import advance_to_cycle, emit_cyc_if_due


@dataclass(frozen=True, slots=True)
class OperationTimes:
    """When the parts of a long operation happen (section 33.3.6.2).

    In retired instructions, in this order; None: together with the part before.
    """

    pip: int | None = None
    mode_exec: int | None = None
    target: int | None = None


AT_ONCE = OperationTimes()


@dataclass(frozen=True, slots=True)
class VmxTransition:
    """What a VMX transition adds to a transfer (Tables 33-52 and 33-53).

    `pip`: PIP in any case, or not at all, with NR=1 for an `entry` to non-root operation; `vmcs`:
    a VMCS packet; `reports` of event trace, with the IP as packets carry it.
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
    stamps: OperationTimes = AT_ONCE,
    report: EventReport | None = None,
    report_ip: int | None = None,
    transition: VmxTransition | None = None,
) -> None:
    """A far branch, or with `event_ip` an interrupt or exception, goes to `target`.

    `arch` is the state after it, in which `target` is an effective IP; `event_ip` is what FUP
    carries: the instruction that was next (traps, interrupts) or the one at fault.
    `report` is what event trace says of it, at `report_ip` if there is no `event_ip`;
    `transition` what a VM entry or exit adds, in the place of `report`.
    IllegalEvent if `stamps` go back in time, and for what aborts a transaction inside one (section
    33.2.9.2).
    """
    require_addresses(target, event_ip, report_ip)
    _require_ordered_times(unit, stamps)
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
        if source is not None and stamps is AT_ONCE:
            emit_cyc_if_due(unit)
    if report is not None and is_cfe_due(unit, report, before=was_context, after=state.context_en):
        flush_tnt(unit)
        if stamps is AT_ONCE and (was or now or paging or mode_alone):
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
        told = {"before": was_context, "after": state.context_en}
        emit_events(unit, transition.reports, **told, branch_fup=was and source is not None)
    if was and source is not None:
        emit_fup(unit, source)
    if paging:
        _advance_to_part(unit, stamps.pip)
        emit_pip(unit, entry=transition is not None and transition.entry)
    emit_unreported_context(unit)
    if transition is not None and transition.vmcs and state.context_en:
        flush_tnt(unit)
        _advance_to_part(unit, None)
        emit_vmcs(unit)
    if mode_alone:
        emit_lone_mode_exec(unit, target)
    if was and now and is_mode_exec_due(unit):
        _advance_to_part(unit, stamps.mode_exec)
        emit_mode_exec(unit)
    if was or now:
        _advance_to_part(unit, stamps.target)
    finish_transfer(unit, was, target, stops)


def finish_transfer(unit: Unit, was: bool, target: int, stops: bool) -> None:
    """A transfer is at `target`, for which `steer` has been called; PacketEn `was`.

    Sends the packet that tells so, and TraceStop if it `stops`.
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
    """MOV to CR3 at `ip` (sections 33.2.5.2 and 33.4.2.7).

    `arch` holds the new value; `next_ip` is the next instruction. In a TraceStop range it stops the
    trace (Table 33-28): Parameters.tracestop_mov_cr3.
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
        _advance_to_part(unit, None)
        emit_pip(unit)
    emit_unreported_context(unit)
    _finish_context_change(unit, was, stops)
    commit(unit)
    insert_extra_psb(unit, "mov_cr3")


def change_mode(unit: Unit, ip: int, next_ip: int, arch: ArchState) -> None:
    """The instruction at `ip`, no branch, changes CS.L & LMA, CS.D or RFLAGS.IF (33.4.2.8), or PAE
    paging, and with it the bits of CR3 that are compared (33.2.5.2).

    STI, CLI, POPF; MOV CR0, MOV CR4, and WRMSR that change EFER.LMA. CPL and CR3 stay.
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
    """TIP.PGD or TIP.PGE of an instruction other than a branch; PacketEn `was`. TraceStop if it
    `stops`.
    """
    state = unit.state
    if was != state.packet_en:
        _advance_to_part(unit, None)
        if was:
            emit_tip_pgd(unit, None)
        else:
            emit_tip_pge(unit, state.ip)
    if stops:
        stop_tracing(unit)


def _update_enables_in_place(unit: Unit, ip: int) -> bool:
    """An instruction other than a branch, at the linear address `ip`, changed the context, as MOV
    CR3 does; True if it meets TraceStop.

    FilterEn changes only when it enters the context, or stops.
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
    """True if going from one to the other aborts a transaction."""
    return (
        before.privilege != after.privilege
        or before.cr3 != after.cr3
        or before.vmx != after.vmx
        or before.in_enclave != after.in_enclave
    )


def _require_ordered_times(unit: Unit, stamps: OperationTimes) -> None:
    now = unit.state.cycle
    for clock in (stamps.pip, stamps.mode_exec, stamps.target):
        if clock is not None:
            if clock * unit.time.cpi < now:
                raise IllegalEvent(f"a part of an operation at clock {clock}, before the last one")
            now = clock * unit.time.cpi


def _advance_to_part(unit: Unit, clock: int | None) -> None:
    """A CYC-eligible part of the operation follows, at `clock` or at once."""
    if clock is not None:
        advance_to_cycle(unit, clock * unit.time.cpi)
    emit_cyc_if_due(unit)


UIRET_LENGTH = 4
"""Bytes of the instruction: F3 0F 01 EC."""


def user_interrupt(unit: Unit, ip: int, handler: int, vector: int) -> None:
    """A user interrupt is delivered before the instruction at `ip`.

    Row 26 shows its FUP alone, from which nobody could tell where it goes:
    Parameters.uintr_literal.
    """
    if _omits_targets(unit):
        _emit_fup_only(unit, ip, handler, EventReport(CfeType.UINTR, vector))
        return
    arch = unit.state.arch
    transfer(unit, handler, arch, event_ip=ip, report=EventReport(CfeType.UINTR, vector))


def uiret(unit: Unit, ip: int, target: int) -> None:
    """UIRET at `ip`; row 27 shows a FUP alone, and with its next IP."""
    if _omits_targets(unit):
        _emit_fup_only(unit, ip + UIRET_LENGTH, target, EventReport(CfeType.UIRET))
        return
    transfer(unit, target, unit.state.arch, report=EventReport(CfeType.UIRET), report_ip=ip)


def _omits_targets(unit: Unit) -> bool:
    return unit.parameters.uintr_literal == "table" and unit.state.packet_en


def _emit_fup_only(unit: Unit, ip: int, target: int, report: EventReport) -> None:
    require_addresses(ip, target)
    flush_tnt(unit)
    source = linear_address(unit, ip)
    emit_event(unit, report, before=True, after=True, ip=source, branch_fup=True)
    emit_fup(unit, source)
    unit.state.ip = linear_address(unit, target)
    commit(unit)
