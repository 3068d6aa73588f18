"""Far transfers, events and MOV CR3: what changes the context (sections 33.2.1.3 and 33.7)."""

from __future__ import annotations

from dataclasses import dataclass

from rtit.errors import IllegalEvent
from rtit.unit import event_trace, generator, timing
from rtit.unit.announce import Reports, announce
from rtit.unit.arch import Arch
from rtit.unit.control import Control
from rtit.unit.event_trace import Report


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


class Transfers(Control):
    """Everything that leaves the straight line of near branches."""

    __slots__ = ()

    def transfer(
        self,
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
        IllegalEvent if `stamps` go back in time.
        """
        state = self.state
        before = state.arch
        source = None if event_ip is None else self.address(event_ip)
        told_ip = source if report_ip is None else self.address(report_ip)
        state.arch = arch
        state.ip = target = self.address(target)
        if not state.trigger_en:
            return
        was, was_context = state.packet_en, state.context_en
        stops = self.steer(target)
        now = state.packet_en
        changed = arch.cr3 != before.cr3 if transition is None else transition.pip
        paging = changed and state.context_en and self.configuration.os
        if was:
            generator.flush_tnt(self)
            if source is not None and stamps is AT_ONCE:
                timing.eligible(self)
        if report is not None and event_trace.due(
            self, report, before=was_context, after=state.context_en
        ):
            generator.flush_tnt(self)
            if stamps is AT_ONCE and (was or now or paging):
                timing.eligible(self)
            event_trace.send(
                self,
                report,
                before=was_context,
                after=state.context_en,
                ip=told_ip,
                branch_fup=was and source is not None,
            )
        if transition is not None and transition.reports:
            generator.flush_tnt(self)
            if was or now or paging:
                timing.eligible(self)
            told = {"before": was_context, "after": state.context_en}
            announce(self, transition.reports, **told, branch_fup=was and source is not None)
        if was and source is not None:
            generator.fup(self, source)
        if paging:
            self._time(stamps.pip)
            generator.pip(self, entry=transition is not None and transition.entry)
        if transition is not None and transition.vmcs and state.context_en:
            generator.flush_tnt(self)
            self._time(None)
            generator.vmcs(self)
        if not self.configuration.branch_en:
            event_trace.mode_at_branch(self, before, target)
        if was and now and state.mode_sent != generator.mode_bits(self):
            self._time(stamps.mode_exec)
            generator.mode_exec(self)
        if was or now:
            self._time(stamps.target)
        self._arrive(was, target, stops)

    def _arrive(self, was: bool, target: int, stops: bool) -> None:
        """A transfer is at `target`, for which `steer` has been called; PacketEn `was`.

        Sends the packet that tells so, and TraceStop if it `stops`.
        """
        state = self.state
        if was and state.packet_en:
            generator.tip(self, target)
        elif was:
            hidden = stops and self.parameters.tracestop_pgd_ip == "suppressed"
            generator.pgd(self, target if state.context_en and not hidden else None)
        elif state.packet_en:
            generator.pge(self, target)
        if stops:
            self.trace_stop()
        self.commit()
        self.extra_psb("transfer")

    def mov_cr3(self, next_ip: int, arch: Arch) -> None:
        """MOV to CR3 (sections 33.2.5.2 and 33.4.2.7).

        `arch` holds the new value; `next_ip` is the next instruction.
        """
        state = self.state
        state.arch = arch
        state.ip = self.address(next_ip)
        if not state.trigger_en:
            return
        was = state.packet_en
        stops = self._change_context()
        generator.flush_tnt(self)
        if state.context_en and self.configuration.os:
            self._time(None)
            generator.pip(self)
        if was != state.packet_en:
            self._time(None)
            if was:
                generator.pgd(self, None)
            else:
                generator.pge(self, state.ip)
        if stops:
            self.trace_stop()
        self.commit()
        self.extra_psb("mov_cr3")

    def change_mode(self, ip: int, next_ip: int, arch: Arch) -> None:
        """The instruction at `ip`, no branch, changes CS.L & LMA, CS.D or RFLAGS.IF (33.4.2.8).

        STI, CLI, POPF; MOV CR0 and WRMSR that change EFER.LMA. Privilege and CR3 stay.
        """
        state = self.state
        before, source = state.arch, self.address(ip)
        state.arch = arch
        state.ip = self.address(next_ip)
        self._settle()
        if event_trace.mode_changed(self, before):
            generator.flush_tnt(self)
            timing.eligible(self)
            generator.mode_exec(self)
            generator.fup(self, source)
            self.commit()

    def _change_context(self) -> bool:
        """An instruction that is no branch changed the context; True if it meets TraceStop.

        Ranges matter only when it enters the context.
        """
        state = self.state
        was_context, filter_en = state.context_en, state.filter_en
        stops = self.steer(state.ip)
        if was_context and state.context_en:
            state.filter_en = filter_en
            self._settle()
        return stops and not was_context

    def _time(self, clock: int | None) -> None:
        """A CYC-eligible part of the operation follows, at `clock` or at once."""
        if clock is not None:
            cycle = clock * self.time.cpi
            if cycle < self.state.cycle:
                raise IllegalEvent(f"a part of an operation at clock {clock}, before the last one")
            timing.catch_up(self, cycle)
        timing.eligible(self)
