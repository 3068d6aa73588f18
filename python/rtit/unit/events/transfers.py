"""Far transfers, events and MOV CR3: what changes the context (sections 33.2.1.3 and 33.7)."""

from __future__ import annotations

from dataclasses import dataclass

from rtit.errors import IllegalEvent
from rtit.unit.core import Unit
from rtit.unit.enables import steering
from rtit.unit.enables.conditions import context_en
from rtit.unit.events import event_trace
from rtit.unit.events.event_trace import Report, Reports, announce
from rtit.unit.packets import generator, overflow, stream, timing
from rtit.unit.refusal import addresses, require_no_transaction
from rtit.unit.state.arch import Arch


@dataclass(frozen=True, slots=True)
class Stamps:
    """When the parts of a long operation happen (section 33.3.6.2).

    In retired instructions, in this order; None: together with the part before.
    """

    pip: int | None = None
    mode_exec: int | None = None
    target: int | None = None


AT_ONCE = Stamps()


@dataclass(frozen=True, slots=True)
class Transition:
    """What a VMX transition adds to a transfer (Tables 33-52 and 33-53).

    `pip`: PIP in any case, or not at all, with NR=1 for an `entry` to non-root operation; `vmcs`:
    a VMCS packet; `reports` of event trace, with the IP as packets carry it.
    """

    pip: bool
    entry: bool = False
    vmcs: bool = False
    reports: Reports = ()


def transfer(
    unit: Unit,
    target: int,
    arch: Arch,
    *,
    event_ip: int | None = None,
    stamps: Stamps = AT_ONCE,
    report: Report | None = None,
    report_ip: int | None = None,
    transition: Transition | None = None,
) -> None:
    """A far branch, or with `event_ip` an interrupt or exception, goes to `target`.

    `arch` is the state after it, in which `target` is an effective IP; `event_ip` is what FUP
    carries: the instruction that was next (traps, interrupts) or the one at fault.
    `report` is what event trace says of it, at `report_ip` if there is no `event_ip`;
    `transition` what a VM entry or exit adds, in the place of `report`.
    IllegalEvent if `stamps` go back in time, and for what aborts a transaction inside one (section
    33.2.9.2).
    """
    addresses(target, event_ip, report_ip)
    _check_stamps(unit, stamps)
    if event_ip is not None or _aborts(unit.state.arch, arch):
        require_no_transaction(unit.state.arch, "an event, or a change of CPL or CR3,")
    state = unit.state
    before = state.arch
    source = None if event_ip is None else steering.address(unit, event_ip)
    told_ip = source if report_ip is None else steering.address(unit, report_ip)
    state.arch = arch
    state.ip = target = steering.address(unit, target)
    if not state.trigger_en:
        return
    was, was_context = state.packet_en, state.context_en
    stops = steering.steer(unit, target)
    now = state.packet_en
    changed = arch.cr3 != before.cr3 if transition is None else transition.pip
    paging = changed and state.context_en and unit.configuration.os
    mode_alone = event_trace.mode_alone(unit, before)
    if was:
        generator.flush_tnt(unit)
        if source is not None and stamps is AT_ONCE:
            timing.eligible(unit)
    if report is not None and event_trace.due(
        unit, report, before=was_context, after=state.context_en
    ):
        generator.flush_tnt(unit)
        if stamps is AT_ONCE and (was or now or paging or mode_alone):
            timing.eligible(unit)
        event_trace.send(
            unit,
            report,
            before=was_context,
            after=state.context_en,
            ip=told_ip,
            branch_fup=was and source is not None,
        )
    if transition is not None and transition.reports:
        generator.flush_tnt(unit)
        if was or now or paging or mode_alone:
            timing.eligible(unit)
        told = {"before": was_context, "after": state.context_en}
        announce(unit, transition.reports, **told, branch_fup=was and source is not None)
    if was and source is not None:
        generator.fup(unit, source)
    if paging:
        _time(unit, stamps.pip)
        generator.pip(unit, entry=transition is not None and transition.entry)
    overflow.tell_owed(unit)
    if transition is not None and transition.vmcs and state.context_en:
        generator.flush_tnt(unit)
        _time(unit, None)
        generator.vmcs(unit)
    if mode_alone:
        event_trace.mode_at_branch(unit, target)
    if was and now and generator.mode_due(unit):
        _time(unit, stamps.mode_exec)
        generator.mode_exec(unit)
    if was or now:
        _time(unit, stamps.target)
    arrive(unit, was, target, stops)


def arrive(unit: Unit, was: bool, target: int, stops: bool) -> None:
    """A transfer is at `target`, for which `steer` has been called; PacketEn `was`.

    Sends the packet that tells so, and TraceStop if it `stops`.
    """
    state = unit.state
    if was and state.packet_en:
        generator.tip(unit, target)
    elif was:
        hidden = stops and unit.parameters.tracestop_pgd_ip == "suppressed"
        generator.pgd(unit, target if state.context_en and not hidden else None)
    elif state.packet_en:
        generator.pge(unit, target)
    if stops:
        steering.trace_stop(unit)
    stream.commit(unit)
    stream.extra_psb(unit, "transfer")


def mov_cr3(unit: Unit, ip: int, next_ip: int, arch: Arch) -> None:
    """MOV to CR3 at `ip` (sections 33.2.5.2 and 33.4.2.7).

    `arch` holds the new value; `next_ip` is the next instruction. In a TraceStop range it stops the
    trace (Table 33-28): Parameters.tracestop_mov_cr3.
    """
    addresses(ip, next_ip)
    require_no_transaction(unit.state.arch, "MOV CR3")
    state = unit.state
    source = steering.address(unit, ip)
    state.arch = arch
    state.ip = steering.address(unit, next_ip)
    if not state.trigger_en:
        return
    was = state.packet_en
    stops = _change_context(unit, source)
    generator.flush_tnt(unit)
    if state.context_en and unit.configuration.os:
        _time(unit, None)
        generator.pip(unit)
    overflow.tell_owed(unit)
    _arrive_in_context(unit, was, stops)
    stream.commit(unit)
    stream.extra_psb(unit, "mov_cr3")


def change_mode(unit: Unit, ip: int, next_ip: int, arch: Arch) -> None:
    """The instruction at `ip`, no branch, changes CS.L & LMA, CS.D or RFLAGS.IF (33.4.2.8), or PAE
    paging, and with it the bits of CR3 that are compared (33.2.5.2).

    STI, CLI, POPF; MOV CR0, MOV CR4, and WRMSR that change EFER.LMA. CPL and CR3 stay.
    """
    addresses(ip, next_ip)
    state = unit.state
    before, source, was = state.arch, steering.address(unit, ip), state.packet_en
    state.arch = arch
    state.ip = steering.address(unit, next_ip)
    if state.trigger_en and state.context_en != context_en(unit.configuration, arch):
        stops = _change_context(unit, source)
        generator.flush_tnt(unit)
        overflow.tell_owed(unit)
        _arrive_in_context(unit, was, stops)
        stream.commit(unit)
        return
    steering.settle(unit)
    if event_trace.mode_changed(unit, before):
        generator.flush_tnt(unit)
        timing.eligible(unit)
        generator.mode_exec(unit)
        generator.fup(unit, source)
        stream.commit(unit)


def _arrive_in_context(unit: Unit, was: bool, stops: bool) -> None:
    """TIP.PGD or TIP.PGE of an instruction other than a branch; PacketEn `was`. TraceStop if it
    `stops`.
    """
    state = unit.state
    if was != state.packet_en:
        _time(unit, None)
        if was:
            generator.pgd(unit, None)
        else:
            generator.pge(unit, state.ip)
    if stops:
        steering.trace_stop(unit)


def _change_context(unit: Unit, ip: int) -> bool:
    """An instruction other than a branch, at the linear address `ip`, changed the context, as MOV
    CR3 does; True if it meets TraceStop.

    FilterEn changes only when it enters the context, or stops.
    """
    state = unit.state
    was_context, filter_en = state.context_en, state.filter_en
    steering.steer(unit, state.ip)
    stays = was_context and state.context_en
    stops = state.context_en and unit.configuration.ranges.stops(ip)
    stops &= not stays or unit.parameters.tracestop_mov_cr3 == "in_range"
    if stops:
        state.filter_en = False
    elif stays:
        state.filter_en = filter_en
    elif state.context_en:
        state.filter_en = unit.configuration.ranges.filter_en(state.ip)
    steering.settle(unit)
    return stops


def _aborts(before: Arch, after: Arch) -> bool:
    """True if going from one to the other aborts a transaction."""
    return (
        before.privilege != after.privilege
        or before.cr3 != after.cr3
        or before.vmx != after.vmx
        or before.in_enclave != after.in_enclave
    )


def _check_stamps(unit: Unit, stamps: Stamps) -> None:
    now = unit.state.cycle
    for clock in (stamps.pip, stamps.mode_exec, stamps.target):
        if clock is not None:
            if clock * unit.time.cpi < now:
                raise IllegalEvent(f"a part of an operation at clock {clock}, before the last one")
            now = clock * unit.time.cpi


def _time(unit: Unit, clock: int | None) -> None:
    """A CYC-eligible part of the operation follows, at `clock` or at once."""
    if clock is not None:
        timing.catch_up(unit, clock * unit.time.cpi)
    timing.eligible(unit)
