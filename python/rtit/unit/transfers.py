"""Far transfers, events and MOV CR3: what changes the context (sections 33.2.1.3 and 33.7)."""

from __future__ import annotations

from dataclasses import dataclass

from rtit.unit import generator, timing
from rtit.unit.arch import Arch
from rtit.unit.control import Control


@dataclass(frozen=True, slots=True)
class Stamps:
    """When the parts of a long operation happen (section 33.3.6.2).

    In retired instructions, in this order; None: together with the part before.
    """

    pip: int | None = None
    mode_exec: int | None = None
    target: int | None = None


AT_ONCE = Stamps()


class Transfers(Control):
    """Everything that leaves the straight line of near branches."""

    __slots__ = ()

    def transfer(
        self, target: int, arch: Arch, *, event_ip: int | None = None, stamps: Stamps = AT_ONCE
    ) -> None:
        """A far branch, or with `event_ip` an interrupt or exception, goes to `target`.

        `arch` is the state after it, in which `target` is an effective IP; `event_ip` is what FUP
        carries: the instruction that was next (traps, interrupts) or the one at fault.
        ValueError if `stamps` go back in time.
        """
        state = self.state
        before = state.arch
        source = None if event_ip is None else self.address(event_ip)
        state.arch = arch
        state.ip = target = self.address(target)
        if not state.trigger_en:
            return
        was = state.packet_en
        stops = self.steer(target)
        now = state.packet_en
        if was:
            generator.flush_tnt(self)
            if source is not None:
                if stamps is AT_ONCE:
                    timing.eligible(self)
                generator.fup(self, source)
        if arch.cr3 != before.cr3 and state.context_en and self.configuration.os:
            self._time(stamps.pip)
            generator.pip(self)
        if was and now and state.mode_sent != arch.mode_exec:
            self._time(stamps.mode_exec)
            generator.mode_exec(self)
        if was or now:
            self._time(stamps.target)
        if was and now:
            generator.tip(self, target)
        elif was:
            hidden = stops and self.parameters.tracestop_pgd_ip == "suppressed"
            generator.pgd(self, target if state.context_en and not hidden else None)
        elif now:
            generator.pge(self, target)
        if stops:
            self.trace_stop()
        self.commit()

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
                raise ValueError(f"a part of an operation at clock {clock}, before the last one")
            timing.catch_up(self, cycle)
        timing.eligible(self)
