"""GETSEC[SENTER] and [ENTERACCS], and authenticated code modules (section 33.2.9.6)."""

from __future__ import annotations

from rtit.unit.control_flow_packets import flush_tnt
from rtit.unit.core import Unit
from rtit.unit.enables import linear_address, update_enables
from rtit.unit.events.trace_control import (
    TRACE_EN,
    clear_trace_en,
    clear_trace_en_silently,
    enable_output,
    load_configuration,
)
from rtit.unit.illegal_events import require_addresses, require_legal, require_no_transaction
from rtit.unit.packet_commit import commit, drain_held_bytes, resolve_overflow
from rtit.unit.state import StateSavedByAcm
from rtit.unit.timing_packets import (
    continue_timing,
    cycles_since_last_cyc,
    emit_cbr,
    emit_cyc_if_due,
    emit_tsc,
)


def getsec(unit: Unit, ip: int, next_ip: int) -> None:
    """Execute GETSEC[SENTER] or GETSEC[ENTERACCS] at `ip`: TraceEn is cleared and stays 0.

    Parameters.senter_drop: whether buffered bytes, and the end of the trace, are lost.
    """
    require_addresses(ip, next_ip)
    require_no_transaction(unit.state.arch, "GETSEC")
    _end_trace(unit, ip)
    unit.state.ip = linear_address(unit, next_ip)


def senter_sleep(unit: Unit, ip: int) -> None:
    """Enter the SENTER sleep state, on request of another processor, before the instruction at
    `ip`.

    TraceEn is cleared as in `getsec`.
    """
    require_addresses(ip)
    require_no_transaction(unit.state.arch, "SENTER")
    _end_trace(unit, ip)


def acm_begin(unit: Unit, ip: int) -> None:
    """Start an authenticated code module: TraceEn is cleared without a packet. Raises IllegalEvent
    inside another module.
    """
    state = unit.state
    require_legal(state.acm is None, "an authenticated code module starts in another")
    require_addresses(ip)
    require_no_transaction(state.arch, "an authenticated code module")
    state.ip = linear_address(unit, ip)
    if not unit.registers.trace_en:
        state.acm = StateSavedByAcm(trace_en=False)
        return
    # The internal buffers are written out, as ever when TraceEn is cleared, so OVF fits.
    state.level = 0
    resolve_overflow(unit)
    flush_tnt(unit)
    commit(unit)
    drain_held_bytes(unit)
    state.acm = StateSavedByAcm(True, cycles_since_last_cyc(unit))
    clear_trace_en_silently(unit)


def acm_end(unit: Unit, target: int) -> None:
    """End the module; execution continues at `target`. TraceEn is restored, without TIP.PGE.

    TSC, TMA and CBR follow if Parameters.acm_timing_packets is set, with a CYC for the cycles
    before the module. Raises IllegalEvent if no module runs.
    """
    require_addresses(target)
    state = unit.state
    acm = state.acm
    if acm is None:
        require_legal(False, "an authenticated code module ends, but none has started")
        return
    state.acm = None
    state.ip = linear_address(unit, target)
    if acm.trace_en:
        unit.registers.ctl |= TRACE_EN
        _resume_trace(unit, acm.cycles)


def _end_trace(unit: Unit, ip: int) -> None:
    if not unit.registers.trace_en:
        return
    if unit.parameters.senter_drop == "keep":
        clear_trace_en(unit, ip)
    else:
        clear_trace_en_silently(unit)


def _resume_trace(unit: Unit, cycles: int) -> None:
    """Continue the stream; the knowledge of the decoder is still valid."""
    state = unit.state
    load_configuration(unit)
    enable_output(unit)
    if not state.trigger_en:
        return
    state.level_cycle = state.cycle
    continue_timing(unit, cycles)
    update_enables(unit, state.ip)
    if unit.parameters.acm_timing_packets:
        emit_cyc_if_due(unit)
        emit_tsc(unit)
        emit_cbr(unit)
    commit(unit)
