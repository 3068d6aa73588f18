"""GETSEC[SENTER] and [ENTERACCS], and authenticated code modules (section 33.2.9.6)."""

from __future__ import annotations

from rtit.unit.core import Unit
from rtit.unit.enables import steering, trace_en
from rtit.unit.enables.trace_en import TRACE_EN
from rtit.unit.output import writing
from rtit.unit.packets import generator, stream, timing
from rtit.unit.refusal import addresses, require, require_no_transaction
from rtit.unit.state.saved import Acm


def getsec(unit: Unit, ip: int, next_ip: int) -> None:
    """GETSEC[SENTER] or GETSEC[ENTERACCS] at `ip`: TraceEn is cleared and stays so.

    Parameters.senter_drop says whether what is buffered, and the end of the trace, is lost.
    """
    addresses(ip, next_ip)
    require_no_transaction(unit.state.arch, "GETSEC")
    _lose(unit, ip)
    unit.state.ip = steering.address(unit, next_ip)


def senter_sleep(unit: Unit, ip: int) -> None:
    """This processor answers another one's SENTER before the instruction at `ip`, and sleeps.

    Its TraceEn is cleared as that of the other.
    """
    addresses(ip)
    require_no_transaction(unit.state.arch, "SENTER")
    _lose(unit, ip)


def acm_begin(unit: Unit, ip: int) -> None:
    """An authenticated code module is set up: TraceEn is cleared, nothing tells it.

    Raises IllegalEvent if one is running already.
    """
    state = unit.state
    require(state.acm is None, "an authenticated code module starts in another")
    addresses(ip)
    require_no_transaction(state.arch, "an authenticated code module")
    state.ip = steering.address(unit, ip)
    if not unit.registers.trace_en:
        state.acm = Acm(trace_en=False)
        return
    # The internal buffers are written out, as ever when TraceEn is cleared, so OVF fits.
    state.level = 0
    stream.resolve_overflow(unit)
    generator.flush_tnt(unit)
    stream.commit(unit)
    writing.drain(unit)
    state.acm = Acm(True, timing.suspended(unit))
    trace_en.off(unit)


def acm_end(unit: Unit, target: int) -> None:
    """The module ends, code goes on at `target`: TraceEn is what it was, without TIP.PGE.

    TSC, TMA and CBR follow if Parameters.acm_timing_packets, with a CYC for the cycles before the
    module. Raises IllegalEvent if none runs.
    """
    addresses(target)
    state = unit.state
    acm = state.acm
    if acm is None:
        require(False, "an authenticated code module ends, but none has started")
        return
    state.acm = None
    state.ip = steering.address(unit, target)
    if acm.trace_en:
        unit.registers.ctl |= TRACE_EN
        _on(unit, acm.cycles)


def _lose(unit: Unit, ip: int) -> None:
    if not unit.registers.trace_en:
        return
    if unit.parameters.senter_drop == "keep":
        trace_en.clear(unit, ip)
    else:
        trace_en.off(unit)


def _on(unit: Unit, cycles: int) -> None:
    """Trace again where the stream was left: what the decoder knows still holds."""
    state = unit.state
    trace_en.configure(unit)
    trace_en.output_on(unit)
    if not state.trigger_en:
        return
    state.level_cycle = state.cycle
    timing.go_on(unit, cycles)
    steering.steer(unit, state.ip)
    if unit.parameters.acm_timing_packets:
        timing.eligible(unit)
        timing.timestamp(unit)
        timing.cbr(unit)
    stream.commit(unit)
