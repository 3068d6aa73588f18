"""Timing packets: TSC, TMA, CBR, MTC, CYC (sections 33.3.6, 33.4.2.10 to 33.4.2.14, 33.8.3).

Time is counted in core cycles. `UnitState.next_timer_cycle` is the first cycle at which a packet or
a flush is due without any event: an MTC, a CYC before the counter wraps, a TNT flush by timer, or
the end of an overflow. It may be too early, never too late. `advance_to_cycle` emits what is due.
"""

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
    """Start the timers: TriggerEn was set.

    The cycle counter starts at 0, and the first CYC-eligible packet gets a CYC. The ART runs
    independently of tracing, so the next MTC depends only on the ART.
    """
    state, configuration = unit.state, unit.configuration
    if configuration.cyc_en:
        state.last_cyc_cycle = state.cyc_allowed_at = state.cycle
    if configuration.mtc_en:
        state.mtc_index = unit.time.art_at(state.cycle) >> configuration.mtc_shift
        _schedule_next_mtc(unit)
    _update_next_timer(unit)


def cycles_since_last_cyc(unit: Unit) -> int:
    """Return the value of the cycle counter, for a suspension of tracing."""
    counts = unit.configuration.cyc_en and unit.state.trigger_en
    return unit.state.cycle - unit.state.last_cyc_cycle if counts else 0


def continue_timing(unit: Unit, cycles: int) -> None:
    """Start the timers as `start_timing`, with the cycle counter at `cycles`."""
    start_timing(unit)
    state, configuration = unit.state, unit.configuration
    if configuration.cyc_en:
        state.last_cyc_cycle = state.cycle - cycles
        state.cyc_allowed_at = state.last_cyc_cycle + configuration.cyc_gap
        _update_next_timer(unit)


def emit_final_cyc(unit: Unit) -> None:
    """Emit a stand-alone CYC before TriggerEn is cleared, subject to the threshold.

    The packets that report the end follow it.
    """
    state = unit.state
    if state.cycle >= state.cyc_allowed_at and state.cycle > state.last_cyc_cycle:
        emit_cyc(unit)


def restart_core_clock(unit: Unit) -> None:
    """Emit CYC, TSC with TMA, CBR: the core clock runs again (Table 33-55 row 25; 33.3.6.2)."""
    reschedule_mtc(unit)
    if unit.configuration.cyc_en:
        emit_cyc(unit)
    emit_tsc(unit)
    emit_cbr(unit)


def reschedule_mtc(unit: Unit) -> None:
    """Recompute the next MTC after the relation of the clocks has changed."""
    state, configuration = unit.state, unit.configuration
    if configuration.mtc_en:
        state.mtc_index = unit.time.art_at(state.cycle) >> configuration.mtc_shift
        _schedule_next_mtc(unit)
    _update_next_timer(unit)


def resume_timing_after_overflow(unit: Unit) -> None:
    """Continue CYC after an overflow (section 33.3.8.2).

    If the cycle counter has wrapped, the cycles of its complete periods are lost.
    """
    state = unit.state
    if unit.configuration.cyc_en:
        wraps = (state.cycle - state.last_cyc_cycle) // (unit.cyc_limit + 1)
        state.last_cyc_cycle += wraps * (unit.cyc_limit + 1)
        state.cyc_allowed_at = (
            state.last_cyc_cycle + unit.configuration.cyc_gap if not wraps else state.cycle
        )
    _update_next_timer(unit)


def stop_timing(unit: Unit) -> None:
    """Stop all timers except the end of an overflow: TriggerEn is 0."""
    state = unit.state
    state.cyc_allowed_at = state.next_mtc_cycle = NEVER
    state.next_timer_cycle = state.overflow_ends_at


def advance_to_cycle(unit: Unit, cycle: int) -> None:
    """Advance to core cycle `cycle`, and emit everything that is due by time alone.

    That is MTC, CYC before the counter wraps, and TNT results that a timer flushes.
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
    """Emit a CYC before a CYC-eligible packet, if the threshold has passed (section 33.3.6.3)."""
    if unit.state.cycle >= unit.state.cyc_allowed_at:
        emit_cyc(unit)


def emit_cyc(unit: Unit) -> None:
    """Emit a CYC (section 33.4.2.14). Callers have flushed the TNT buffer.

    During an overflow the counter continues, and no packet is emitted.
    """
    state = unit.state
    if state.overflow is not None:
        return
    unit.emit(encode_cyc(state.cycle - state.last_cyc_cycle))
    state.last_cyc_cycle = state.cycle
    state.cyc_allowed_at = state.cycle + unit.configuration.cyc_gap


def emit_tsc(unit: Unit) -> None:
    """Emit TSC if TSCEn=1, followed by TMA if MTCEn=1 (sections 33.4.2.11 and 33.4.2.13)."""
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
    """Emit TMA: the position of the preceding TSC between two crystal clocks."""
    time, cycle = unit.time, unit.state.cycle
    unit.emit(_TMA(time.art_at(cycle) & 0xFFFF, time.fast_counter_at(cycle)))


def emit_cbr(unit: Unit) -> None:
    """Emit CBR (section 33.4.2.10)."""
    unit.emit(_CBR(unit.time.core_ratio))


def _schedule_next_mtc(unit: Unit) -> None:
    state = unit.state
    state.mtc_index += 1
    state.next_mtc_cycle = unit.time.cycle_of_art(state.mtc_index << unit.configuration.mtc_shift)


def _update_next_timer(unit: Unit, until: int = 0) -> int:
    """Recompute State.next_timer_cycle and return it.

    While no TNT result waits, the flush timer is idle until core cycle `until`.
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
