"""Power event trace: MWAIT, PWRE, EXSTOP and PWRX; frequency changes and wakes (sections 33.2.3
and 33.4.2.22 to 33.4.2.25, the first of the tables of its kind in 33.7).

C-states are MWAIT encodings: 0 is C1, 15 is C0 with its sub-states.
"""

from __future__ import annotations

from rtit.packets import encoder
from rtit.packets.table import WAKE_REASONS
from rtit.unit import generator, timing
from rtit.unit.control import Control
from rtit.unit.refusal import require

_MWAIT = encoder("MWAIT")
_PWRE = encoder("PWRE")
_EXSTOP = encoder("EXSTOP")
_PWRX = encoder("PWRX")

C0 = 15
C1 = 0


class Power(Control):
    """Clocks that stop and go on."""

    __slots__ = ()

    def sleep(
        self,
        ip: int,
        state: int,
        sub_state: int = 0,
        *,
        mwait: tuple[int, int] | None = None,
        hardware: bool = False,
    ) -> None:
        """The thread enters, or while it sleeps changes to, a C-state.

        `ip` is the oldest instruction that has not completed; `mwait` the hints and extensions of
        the instruction that asked for it, `hardware` says that none did. The state resolves to what
        the core supports. What is lighter than Parameters.power_min_cstate has no packets.
        IllegalEvent for a state or sub-state beyond 15, and where `mwait` or `hardware` ask a
        thread that sleeps already.
        """
        require(
            0 <= state <= 15 and 0 <= sub_state <= 15,
            f"a C-state and its sub-state are 0 to 15, not {state}, {sub_state}",
        )
        if mwait is not None or hardware:
            self.require_awake("a processor goes to sleep")
        if state == C0 and (sub_state < 2 or self.parameters.power_min_cstate == "C1"):
            self.state.dozing = True
            return
        deepest = self.parameters.deepest_cstate
        if state != C0 and state > deepest:
            state, sub_state = deepest, 0
        deeper, self.state.asleep = self.state.asleep, True
        if not (self.configuration.pwr_evt_en and self.state.trigger_en):
            return
        generator.flush_tnt(self)
        if not deeper:
            timing.eligible(self)
            if mwait is not None and self.state.context_en:
                self.put(_MWAIT(*mwait))
        self.put(_PWRE(int(hardware), state, sub_state))
        if not deeper:
            self._exstop(ip)
        self.commit()

    def wake(self, *, last: int, deepest: int, reason: int, ticks: int = 0) -> None:
        """The thread is back in C0, before whatever woke it is handled.

        `last` and `deepest` are core C-states, `reason` one bit (Table 33-44); the sleep took
        `ticks` at TSC rate. IllegalEvent for a bad reason, and unless it sleeps.
        """
        state = self.state
        require(reason in WAKE_REASONS, f"a wake reason is one of the bits 0 to 3, not {reason:#x}")
        require(state.asleep or state.dozing, "a processor wakes that does not sleep")
        told, state.asleep, state.dozing = state.asleep, False, False
        if not told:
            return
        self._restart(ticks)
        if self.configuration.pwr_evt_en and self.state.trigger_en:
            self.put(_PWRX(last, deepest, reason))
        self.commit()
        self.extra_psb("wake")

    def stop_clocks(self, ip: int, *, ticks: int = 0, ratio: int | None = None) -> None:
        """TM1, TM2, STPCLK#, or a frequency change to `ratio`, stops execution for `ticks`.

        `ip` is the oldest instruction that has not completed.
        """
        if self.configuration.pwr_evt_en and self.state.trigger_en:
            generator.flush_tnt(self)
            timing.eligible(self)
            self._exstop(ip)
        if ratio is not None:
            self.time = self.time.at_ratio(self.state.cycle, ratio)
        self._restart(ticks)
        self.commit()
        self.extra_psb("wake")

    def change_frequency(self, ratio: int) -> None:
        """The core runs at `ratio` x bus clock from now on, and has not stopped for it."""
        self.time = self.time.at_ratio(self.state.cycle, ratio)
        if not self.state.trigger_en:
            return
        generator.flush_tnt(self)
        timing.reschedule(self)
        if self.parameters.tsc_on_frequency_change:
            timing.eligible(self)
            timing.timestamp(self)
        timing.cbr(self)
        self.commit()
        self.extra_psb("frequency")

    def require_awake(self, what: str) -> None:
        """Raise IllegalEvent if the thread sleeps; `what` is what cannot happen then."""
        require(
            not (self.state.asleep or self.state.dozing), f"{what} that sleeps and has not woken"
        )

    def _exstop(self, ip: int) -> None:
        context_en = self.state.context_en
        self.put(_EXSTOP(int(context_en)))
        if context_en:
            generator.fup(self, self.address(ip))

    def _restart(self, ticks: int) -> None:
        """The core clock runs again; time has passed without it."""
        self.time = self.time.slept(self.state.cycle, ticks, tsc_runs=self.profile.invariant_tsc)
        if self.state.trigger_en:
            generator.flush_tnt(self)
            timing.resume(self)
