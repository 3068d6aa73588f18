"""Timing packets: TSC, TMA, CBR, MTC, CYC (sections 33.3.6, 33.4.2.10 to 33.4.2.14, 33.8.3)."""

from __future__ import annotations

from rtit.packets import encode_cyc, encoder
from rtit.unit.core import Core
from rtit.unit.generator import flush_tnt
from rtit.unit.state import NEVER

_TSC = encoder("TSC")
_TMA = encoder("TMA")
_CBR = encoder("CBR")
_MTC = encoder("MTC")


def start(core: Core) -> None:
    """TriggerEn was set: the cycle counter starts at 0, and the first eligible packet gets a CYC.

    The ART runs on for all processors, so MTC only looks up where its period stands.
    """
    state, configuration = core.state, core.configuration
    if configuration.cyc_en:
        state.cyc_base = state.cyc_due = state.cycle
    if configuration.mtc_en:
        state.mtc_index = core.time.art_at(state.cycle) >> configuration.mtc_shift
        _next_mtc(core)
    _schedule(core)


def last_cyc(core: Core) -> None:
    """TriggerEn is about to be cleared, and the cycle counter with it: tell what it holds.

    A stand-alone CYC, subject to the threshold. It comes before the packets that report the end.
    """
    state = core.state
    if state.cycle >= state.cyc_due and state.cycle > state.cyc_base:
        cyc(core)


def stop(core: Core) -> None:
    """TriggerEn is 0: nothing comes by itself any more."""
    state = core.state
    state.cyc_due = state.next_mtc = state.due = NEVER


def catch_up(core: Core, cycle: int) -> None:
    """Move to core cycle `cycle`, sending on the way what time alone brings.

    That is MTCs, and CYCs before the counter wraps.
    """
    state = core.state
    while (due := _schedule(core)) <= cycle:
        state.cycle = due
        flush_tnt(core)
        if due == state.next_mtc:
            if due >= state.cyc_due:
                cyc(core)
            core.put(_MTC(state.mtc_index & 0xFF))
            _next_mtc(core)
        else:
            cyc(core)
    state.cycle = cycle


def eligible(core: Core) -> None:
    """A CYC-eligible packet follows: tell its time if the threshold has passed (33.3.6.3)."""
    if core.state.cycle >= core.state.cyc_due:
        cyc(core)


def cyc(core: Core) -> None:
    """A CYC, whether or not an eligible packet follows (section 33.4.2.14).

    The TNT buffer holds nothing older.
    """
    state = core.state
    core.put(encode_cyc(state.cycle - state.cyc_base))
    state.cyc_base = state.cycle
    state.cyc_due = state.cycle + core.configuration.cyc_gap


def timestamp(core: Core) -> None:
    """TSC if TSCEn; right after it TMA if MTCEn (sections 33.4.2.11 and 33.4.2.13)."""
    configuration = core.configuration
    if not configuration.tsc_en:
        return
    core.put(_TSC(core.time.tsc_at(core.state.cycle) & 0xFF_FFFF_FFFF_FFFF))
    if configuration.mtc_en:
        tma(core)


def tma(core: Core) -> None:
    """TMA: where between two crystal clocks the TSC before it lies."""
    time, cycle = core.time, core.state.cycle
    core.put(_TMA(time.art_at(cycle) & 0xFFFF, time.fast_counter_at(cycle)))


def cbr(core: Core) -> None:
    """CBR (section 33.4.2.10)."""
    core.put(_CBR(core.time.core_ratio))


def _next_mtc(core: Core) -> None:
    state = core.state
    state.mtc_index += 1
    state.next_mtc = core.time.cycle_of_art(state.mtc_index << core.configuration.mtc_shift)


def _schedule(core: Core) -> int:
    state = core.state
    state.due = state.next_mtc
    if core.configuration.cyc_en and state.cyc_due != NEVER:
        state.due = min(state.due, state.cyc_base + core.cyc_limit)
    return state.due
