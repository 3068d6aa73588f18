"""TraceEn: what setting and clearing it starts and ends, by WRMSR or by another operation (sections
33.2.8.1 and 33.2.8.3).
"""

from __future__ import annotations

from rtit.registers import CTL
from rtit.unit.core import Unit
from rtit.unit.enables import conditions, steering
from rtit.unit.enables.configuration import configuration_of
from rtit.unit.events.event_trace import Reports, announce
from rtit.unit.output import writing
from rtit.unit.packets import generator, stream, timing
from rtit.unit.packets.compression import NO_LAST_IP, new_ret_stack
from rtit.unit.state.state import NEVER

TRACE_EN = CTL["TraceEn"].mask


def configure(unit: Unit) -> None:
    """Decode the registers; what follows from them holds until they change."""
    unit.configuration = configuration_of(unit.registers)
    counter = (1 << unit.parameters.cyc_counter_bits) - 1
    unit.cyc_limit = max(counter, unit.configuration.cyc_gap)
    unit.bounded = unit.parameters.buffer_bytes > 0
    unit.defers = unit.parameters.deferred_tips > 0 and not unit.configuration.cyc_en


def enable(unit: Unit, reports: Reports = ()) -> None:
    """TraceEn has been set: the output is looked up, and what starts a trace is sent.

    `reports` of event trace come before TIP.PGE.
    """
    configure(unit)
    state, configuration = unit.state, unit.configuration
    state.level, state.level_cycle = 0, state.cycle
    depth = 0 if configuration.dis_retc else unit.parameters.ret_compression_depth
    state.ret_stack = new_ret_stack(depth)
    # Software may have put another buffer or another thread's registers in place.
    state.last_ip = NO_LAST_IP
    unit.telling = state.told = generator.beginning(unit)
    state.owed = False
    fine = not state.error
    output_on(unit)
    if state.error and fine:
        state.error_shown = state.cycle + unit.parameters.error_latency
    if configuration.inject and state.pend_topa_pmi:
        writing.signal_pmi(unit)
    if not state.trigger_en:
        return
    state.filter_en = not configuration.ranges.filter
    timing.start(unit)
    stops = steering.steer(unit, state.ip)
    with_psb = (
        state.packet_byte_count == 0
        or (configuration.inject and state.pend_psb)
        or not unit.profile.psb_cyc
        or "enable" in unit.parameters.psb_extra
    )
    if with_psb:
        # It is the one that was due, if one was.
        state.packet_byte_count %= configuration.psb_period
    if with_psb and unit.parameters.psb_on_enable_order == "after_pge":
        _start_packets(unit, stops, reports)
        stream.put_psb(unit)
    else:
        packet_en, state.packet_en = state.packet_en, False
        if with_psb:
            # With the erratum PSB+ tells what holds only after the TIP.PGE behind it. Decoders
            # skip its FUP, so that TIP.PGE is not compressed against it.
            state.packet_en = packet_en and "BDM70" in unit.errata
            stream.put_psb(unit)
            if state.packet_en:
                state.last_ip = NO_LAST_IP
        else:
            if configuration.tsc_en or packet_en:
                timing.eligible(unit)
            timing.timestamp(unit)
            timing.cbr(unit)
        state.packet_en = packet_en
        _start_packets(unit, stops, reports)
    stream.commit(unit)


def _start_packets(unit: Unit, stops: bool, reports: Reports) -> None:
    announce(unit, reports, before=False, after=unit.state.context_en, branch_fup=False)
    if stops:
        steering.trace_stop(unit)
    elif unit.state.packet_en:
        timing.eligible(unit)
        generator.pge(unit, unit.state.ip)


def disable(unit: Unit, ip: int, reports: Reports = (), *, fup: bool = True) -> None:
    """TraceEn has been cleared at the linear address `ip`, which FUP tells if PacketEn and `fup`.

    `reports` of event trace come before it. All buffers are written out.
    """
    state = unit.state
    state.level = 0
    cut = state.overflow is not None and "APL11" in unit.errata
    if state.overflow is not None:
        state.ip = ip
        stream.resolve_overflow(unit, ends=cut)
    if cut and state.trigger_en and state.packet_en:
        # With the erratum the end of the trace follows OVF at once.
        generator.pgd(unit, None)
        steering.trigger_off(unit)
    elif state.trigger_en:
        was = state.packet_en
        generator.flush_tnt(unit)
        if was:
            timing.eligible(unit)
        announce(unit, reports, before=state.context_en, after=False, branch_fup=was and fup)
        if was:
            if fup:
                generator.fup(unit, ip)
            generator.pgd(unit, None)
        else:
            timing.last_cyc(unit)
        steering.trigger_off(unit)
    stream.commit(unit)
    writing.drain(unit)
    output_off(unit)
    lbr_reset(unit)
    if unit.parameters.clear_enables_on_disable:
        state.context_en = state.filter_en = False


def output_on(unit: Unit) -> None:
    """TraceEn is 1: TriggerEn follows, and the output is looked up.

    With Stopped=1 it is not: the pointers of a ToPA STOP are no error until tracing is enabled with
    Stopped=0 (section 33.2.7.2).
    """
    state = unit.state
    if not state.stopped:
        writing.take_result(unit, unit.output.enable(unit.registers))
    state.trigger_en = conditions.trigger_en(
        trace_en=True, stopped=state.stopped, error=state.error
    )


def output_off(unit: Unit) -> None:
    """The output ends; its registers keep where."""
    if unit.state.pmi_left is not None:
        writing.signal_pmi(unit)
    unit.state.error_shown = 0
    if unit.output.state.enabled:
        unit.output.disable()
        unit.registers.output_base, unit.registers.output_mask_ptrs = unit.output.msrs()


def clear(unit: Unit, ip: int, reports: Reports = ()) -> None:
    """TraceEn, if set, is cleared by the processor: FUP(`ip`) and TIP.PGD() where due."""
    if unit.registers.trace_en:
        unit.registers.ctl &= ~TRACE_EN
        disable(unit, steering.address(unit, ip), reports)


def set_again(unit: Unit, reports: Reports = ()) -> None:
    """TraceEn is set again by the processor, with the registers as they stand."""
    if not unit.registers.trace_en:
        unit.registers.ctl |= TRACE_EN
        enable(unit, reports)


def off(unit: Unit) -> None:
    """TraceEn is cleared without a packet; what internal buffers hold is lost."""
    state = unit.state
    unit.registers.ctl &= ~TRACE_EN
    state.held = b""
    unit.put, state.overflow, state.overflow_until = unit.packets.extend, None, NEVER
    unit.telling = state.told
    steering.trigger_off(unit)
    output_off(unit)
    lbr_reset(unit)
    state.level = 0


def lbr_reset(unit: Unit) -> None:
    """TraceEn has been cleared, where PT and LBR exclude each other (section 33.3.1.2)."""
    if unit.profile.lbr_exclusive:
        unit.state.last_branches = unit.state.last_branches.cleared()
