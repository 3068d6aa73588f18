"""Timing packets: TSC, TMA, CBR, MTC, CYC (sections 33.3.6, 33.4.2.10 to 33.4.2.14, 33.8.3)."""

from __future__ import annotations

from rtit.packets import encode_cyc, encoder
from rtit.unit.control_flow_packets import flush_tnt
from rtit.unit.core import Unit
from rtit.unit.state import NEVER

_TSC = encoder("TSC")
_TMA = encoder("TMA")
_CBR = encoder("CBR")
_MTC = encoder("MTC")


def start_timing(unit: Unit) -> None:
    """TriggerEn was set: the cycle counter starts at 0, and the first eligible packet gets a CYC.

    The ART runs on for all processors, so MTC only looks up where its period stands.
    """
    state, configuration = unit.state, unit.configuration
    if configuration.cyc_en:
        state.last_cyc_cycle = state.cyc_allowed_at = state.cycle
    if configuration.mtc_en:
        state.mtc_index = unit.time.art_at(state.cycle) >> configuration.mtc_shift
        _schedule_next_mtc(unit)
    _update_next_timer(unit)


def cycles_since_last_cyc(unit: Unit) -> int:
    """The cycle counter as tracing is suspended."""
    counts = unit.configuration.cyc_en and unit.state.trigger_en
    return unit.state.cycle - unit.state.last_cyc_cycle if counts else 0


def continue_timing(unit: Unit, cycles: int) -> None:
    """`start`, but the cycle counter goes on from what it was when tracing was suspended."""
    start_timing(unit)
    state, configuration = unit.state, unit.configuration
    if configuration.cyc_en:
        state.last_cyc_cycle = state.cycle - cycles
        state.cyc_allowed_at = state.last_cyc_cycle + configuration.cyc_gap
        _update_next_timer(unit)


def emit_final_cyc(unit: Unit) -> None:
    """TriggerEn is about to be cleared, and the cycle counter with it: tell what it holds.

    A stand-alone CYC, subject to the threshold. It comes before the packets that report the end.
    """
    state = unit.state
    if state.cycle >= state.cyc_allowed_at and state.cycle > state.last_cyc_cycle:
        emit_cyc(unit)


def restart_core_clock(unit: Unit) -> None:
    """The core's clock runs again: CYC, TSC with TMA, CBR (Table 33-55, row 25; 33.3.6.2)."""
    reschedule_mtc(unit)
    if unit.configuration.cyc_en:
        emit_cyc(unit)
    emit_tsc(unit)
    emit_cbr(unit)


def reschedule_mtc(unit: Unit) -> None:
    """The relation of clocks and core cycles has changed: find the next MTC anew."""
    state, configuration = unit.state, unit.configuration
    if configuration.mtc_en:
        state.mtc_index = unit.time.art_at(state.cycle) >> configuration.mtc_shift
        _schedule_next_mtc(unit)
    _update_next_timer(unit)


def resume_timing_after_overflow(unit: Unit) -> None:
    """An overflow is over: CYC tells its cycles, as far as the counter has not wrapped (33.3.8.2).

    The cycles of its whole turns are lost.
    """
    state = unit.state
    if unit.configuration.cyc_en:
        turns = (state.cycle - state.last_cyc_cycle) // (unit.cyc_limit + 1)
        state.last_cyc_cycle += turns * (unit.cyc_limit + 1)
        state.cyc_allowed_at = (
            state.last_cyc_cycle + unit.configuration.cyc_gap if not turns else state.cycle
        )
    _update_next_timer(unit)


def stop_timing(unit: Unit) -> None:
    """TriggerEn is 0: nothing comes by itself any more, but for the end of an overflow."""
    state = unit.state
    state.cyc_allowed_at = state.next_mtc_cycle = NEVER
    state.next_timer_cycle = state.overflow_ends_at


def advance_to_cycle(unit: Unit, cycle: int) -> None:
    """Move to core cycle `cycle`, sending on the way what time alone brings.

    That is MTCs, CYCs before the counter wraps, and results that have waited for a timer.
    """
    state = unit.state
    while (due := _update_next_timer(unit, cycle)) <= cycle:
        state.cycle = due
        if due == state.overflow_ends_at:
            state.overflow_ends_at = 0  # it resolves where the current IP is known
            continue
        flush_tnt(unit)
        if due == state.next_mtc_cycle:
            if due >= state.cyc_allowed_at:
                emit_cyc(unit)
            if state.mtcs_to_drop:
                state.mtcs_to_drop -= 1
            else:
                unit.emit(_MTC(state.mtc_index & 0xFF))
            _schedule_next_mtc(unit)
        elif state.cyc_allowed_at != NEVER and due >= state.last_cyc_cycle + unit.cyc_limit:
            emit_cyc(unit)
    state.cycle = cycle


def emit_cyc_if_due(unit: Unit) -> None:
    """A CYC-eligible packet follows: tell its time if the threshold has passed (33.3.6.3)."""
    if unit.state.cycle >= unit.state.cyc_allowed_at:
        emit_cyc(unit)


def emit_cyc(unit: Unit) -> None:
    """A CYC, whether or not an eligible packet follows (section 33.4.2.14).

    The TNT buffer holds nothing older. In an overflow the counter goes on.
    """
    state = unit.state
    if state.overflow is not None:
        return
    unit.emit(encode_cyc(state.cycle - state.last_cyc_cycle))
    state.last_cyc_cycle = state.cycle
    state.cyc_allowed_at = state.cycle + unit.configuration.cyc_gap


def emit_tsc(unit: Unit) -> None:
    """TSC if TSCEn; right after it TMA if MTCEn (sections 33.4.2.11 and 33.4.2.13)."""
    configuration = unit.configuration
    if not configuration.tsc_en:
        return
    tsc = unit.time.tsc_at(unit.state.cycle)
    if unit.state.arch.vmx == "nonroot":
        tsc = unit.state.arch.controls.guest_tsc(tsc)
    unit.emit(_TSC(tsc & 0xFF_FFFF_FFFF_FFFF))
    if configuration.mtc_en:
        emit_tma(unit)


def emit_tma(unit: Unit) -> None:
    """TMA: where between two crystal clocks the TSC before it lies."""
    time, cycle = unit.time, unit.state.cycle
    unit.emit(_TMA(time.art_at(cycle) & 0xFFFF, time.fast_counter_at(cycle)))


def emit_cbr(unit: Unit) -> None:
    """CBR (section 33.4.2.10)."""
    unit.emit(_CBR(unit.time.core_ratio))


def _schedule_next_mtc(unit: Unit) -> None:
    state = unit.state
    state.mtc_index += 1
    state.next_mtc_cycle = unit.time.cycle_of_art(state.mtc_index << unit.configuration.mtc_shift)


def _update_next_timer(unit: Unit, until: int = 0) -> int:
    """Find the next thing that time alone brings; while nothing waits the timer for results rests
    `until` then.
    """
    state, period = unit.state, unit.parameters.tnt_flush_cycles
    state.next_timer_cycle = state.next_mtc_cycle
    if unit.configuration.cyc_en and state.cyc_allowed_at != NEVER:
        state.next_timer_cycle = min(state.next_timer_cycle, state.last_cyc_cycle + unit.cyc_limit)
    if period:
        since = state.cycle if state.tnt > 1 or state.deferred_tips else max(state.cycle, until)
        state.next_timer_cycle = min(state.next_timer_cycle, (since // period + 1) * period)
    if state.overflow_ends_at:
        state.next_timer_cycle = min(state.next_timer_cycle, state.overflow_ends_at)
    return state.next_timer_cycle
