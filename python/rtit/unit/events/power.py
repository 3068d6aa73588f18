"""Power event trace: MWAIT, PWRE, EXSTOP, PWRX, and frequency changes (sections 33.2.3 and
33.4.2.22 to 33.4.2.25; power tables in 33.7).

C-states are MWAIT encodings: 0 is C1, 15 is C0 with its sub-states.
"""

from __future__ import annotations

from rtit.packets import encoder
from rtit.packets.table import WAKE_REASONS
from rtit.unit.control_flow_packets import emit_fup, flush_tnt
from rtit.unit.core import Unit
from rtit.unit.enables import linear_address
from rtit.unit.illegal_events import require_addresses, require_bits, require_legal
from rtit.unit.packet_commit import commit, insert_extra_psb
from rtit.unit.timing_packets import (
    emit_cbr,
    emit_cyc_if_due,
    emit_tsc,
    reschedule_mtc,
    restart_core_clock,
)

_MWAIT = encoder("MWAIT")
_PWRE = encoder("PWRE")
_EXSTOP = encoder("EXSTOP")
_PWRX = encoder("PWRX")
C0 = 15
C1 = 0


def sleep(
    unit: Unit,
    ip: int,
    state: int,
    sub_state: int = 0,
    *,
    mwait: tuple[int, int] | None = None,
    hardware: bool = False,
) -> None:
    """Enter a C-state, or change to another one while asleep.

    `ip` is the oldest instruction that has not completed. `mwait` are the hints and extensions of
    the instruction that requested the state; `hardware`: no instruction did. The state resolves to
    the deepest that the core supports. States lighter than Parameters.power_min_cstate send no
    packets. Raises IllegalEvent for a state or sub-state above 15, and if `mwait` or `hardware`
    request a state while the thread sleeps.
    """
    require_legal(
        0 <= state <= 15 and 0 <= sub_state <= 15,
        f"a C-state and its sub-state are 0 to 15, not {state}, {sub_state}",
    )
    require_addresses(ip)
    if mwait is not None:
        require_bits("the hint of MWAIT", mwait[0], 8)
        require_bits("the extensions of MWAIT", mwait[1], 2)
    if mwait is not None or hardware:
        require_awake(unit, "a processor goes to sleep")
    if state == C0 and (sub_state < 2 or unit.parameters.power_min_cstate == "C1"):
        unit.state.in_unreported_sleep = True
        return
    deepest = unit.parameters.deepest_cstate
    if state != C0 and state > deepest:
        state, sub_state = deepest, 0
    deeper, unit.state.asleep = unit.state.asleep, True
    if not (unit.configuration.pwr_evt_en and unit.state.trigger_en):
        return
    flush_tnt(unit)
    if not deeper:
        emit_cyc_if_due(unit)
        if mwait is not None and unit.state.context_en:
            unit.emit(_MWAIT(*mwait))
    unit.emit(_PWRE(int(hardware), state, sub_state))
    if not deeper:
        _emit_exstop(unit, ip)
    commit(unit)


def wake(unit: Unit, *, last: int, deepest: int, reason: int, ticks: int = 0) -> None:
    """Return to C0, before the cause of the wake is handled.

    `last` and `deepest` are core C-states; `reason` is one bit (Table 33-44); the sleep took
    `ticks` at TSC rate. Raises IllegalEvent for a bad reason, and if the thread does not sleep.
    """
    state = unit.state
    require_bits("a core C-state", last, 4)
    require_bits("a core C-state", deepest, 4)
    require_duration(ticks)
    require_legal(
        reason in WAKE_REASONS, f"a wake reason is one of the bits 0 to 3, not {reason:#x}"
    )
    require_legal(
        state.asleep or state.in_unreported_sleep, "a processor wakes that does not sleep"
    )
    was_reported, state.asleep, state.in_unreported_sleep = state.asleep, False, False
    if not was_reported:
        return
    _restart_clocks(unit, ticks)
    if unit.configuration.pwr_evt_en and unit.state.trigger_en:
        unit.emit(_PWRX(last, deepest, reason))
    commit(unit)
    insert_extra_psb(unit, "wake")


def stop_clocks(unit: Unit, ip: int, *, ticks: int = 0, ratio: int | None = None) -> None:
    """Stop execution for `ticks`: TM1, TM2, STPCLK#, or a frequency change to `ratio`.

    `ip` is the oldest instruction that has not completed. Raises UsageError for an invalid ratio.
    """
    require_addresses(ip)
    require_duration(ticks)
    if ratio is not None:
        unit.time.with_core_ratio(unit.state.cycle, ratio)
    if unit.configuration.pwr_evt_en and unit.state.trigger_en:
        flush_tnt(unit)
        emit_cyc_if_due(unit)
        _emit_exstop(unit, ip)
    if ratio is not None:
        unit.time = unit.time.with_core_ratio(unit.state.cycle, ratio)
    _restart_clocks(unit, ticks)
    commit(unit)
    insert_extra_psb(unit, "wake")


def change_frequency(unit: Unit, ratio: int) -> None:
    """Change the core frequency to `ratio` x bus clock without stopping the clock."""
    unit.time = unit.time.with_core_ratio(unit.state.cycle, ratio)
    if not unit.state.trigger_en:
        return
    flush_tnt(unit)
    reschedule_mtc(unit)
    if unit.parameters.tsc_on_frequency_change:
        emit_cyc_if_due(unit)
        emit_tsc(unit)
    emit_cbr(unit)
    commit(unit)
    insert_extra_psb(unit, "frequency")


def require_duration(ticks: int) -> None:
    """Raise IllegalEvent if a sleep or stop has a negative duration."""
    require_legal(ticks >= 0, f"a sleep or stop takes {ticks} ticks")


def require_awake(unit: Unit, what: str) -> None:
    """Raise IllegalEvent if the thread sleeps; `what` names the impossible event."""
    require_legal(
        not (unit.state.asleep or unit.state.in_unreported_sleep),
        f"{what} that sleeps and has not woken",
    )


def _emit_exstop(unit: Unit, ip: int) -> None:
    context_en = unit.state.context_en
    unit.emit(_EXSTOP(int(context_en)))
    if context_en:
        emit_fup(unit, linear_address(unit, ip))


def _restart_clocks(unit: Unit, ticks: int) -> None:
    """Restart the core clock after `ticks` have passed without it."""
    unit.time = unit.time.after_sleep(unit.state.cycle, ticks, tsc_runs=unit.profile.invariant_tsc)
    if unit.state.trigger_en:
        flush_tnt(unit)
        restart_core_clock(unit)
