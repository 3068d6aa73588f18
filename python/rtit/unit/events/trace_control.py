"""TraceEn, IA32_RTIT_STATUS and the other PT MSRs (sections 33.2.8, 33.2.8.1, 33.2.8.3, 33.2.8.4).

Setting TraceEn (`start_trace`) decodes the registers, enables the output, and sends PSB+ or timing
packets, then TIP.PGE. Clearing it (`end_trace`) resolves an overflow, sends FUP and TIP.PGD, and
writes out all buffers. WRMSR, XRSTORS, the MSR-load areas of VMX, SMI and RSM all come here.
"""

from __future__ import annotations

from rtit.registers import CTL, STATUS, Msr, rdmsr, wrmsr
from rtit.unit.compression import NO_LAST_IP, new_call_stack
from rtit.unit.configuration import decode_configuration
from rtit.unit.control_flow_packets import (
    emit_fup,
    emit_tip_pgd,
    emit_tip_pge,
    flush_tnt,
    initial_knowledge,
)
from rtit.unit.core import Unit
from rtit.unit.enables import (
    clear_trigger_en,
    compute_trigger_en,
    linear_address,
    stop_tracing,
    update_enables,
)
from rtit.unit.events.event_trace import EventReports, emit_events
from rtit.unit.packet_commit import (
    apply_output_result,
    commit,
    drain_held_bytes,
    emit_psb,
    resolve_overflow,
    signal_pmi,
)
from rtit.unit.state import NEVER
from rtit.unit.timing_packets import (
    emit_cbr,
    emit_cyc_if_due,
    emit_final_cyc,
    emit_tsc,
    start_timing,
)


def update_status_register(unit: Unit) -> None:
    """Store IA32_RTIT_STATUS and the output pointers in the registers."""
    state, registers = unit.state, unit.registers
    count = state.packet_byte_count & 0x1FFFF if unit.profile.psb_cyc else 0
    registers.status = STATUS.encode(
        FilterEn=state.filter_en,
        ContextEn=state.context_en,
        TriggerEn=state.trigger_en,
        Error=state.error and state.cycle >= state.error_visible_at,
        Stopped=state.stopped,
        PendPSB=state.pend_psb,
        PendTopaPMI=state.pend_topa_pmi,
        PacketByteCnt=count,
    )
    if unit.output.state.enabled:
        registers.output_base, registers.output_mask_ptrs = unit.output.msrs()


def load_status_register(unit: Unit) -> None:
    """Load the state from the value that software wrote to IA32_RTIT_STATUS."""
    status, state = STATUS.decode(unit.registers.status), unit.state
    state.error = bool(status.Error)
    state.stopped = bool(status.Stopped)
    state.pend_psb = bool(status.PendPSB)
    state.pend_topa_pmi = bool(status.PendTopaPMI)
    state.packet_byte_count = status.PacketByteCnt


TRACE_EN = CTL["TraceEn"].mask


def load_configuration(unit: Unit) -> None:
    """Decode the registers, and everything that derives from them."""
    unit.configuration = decode_configuration(unit.registers)
    counter = (1 << unit.parameters.cyc_counter_bits) - 1
    unit.cyc_limit = max(counter, unit.configuration.cyc_gap)
    unit.has_bounded_buffer = unit.parameters.buffer_bytes > 0
    unit.defers_tips = unit.parameters.deferred_tips > 0 and not unit.configuration.cyc_en


def start_trace(unit: Unit, reports: EventReports = ()) -> None:
    """Start a trace: TraceEn has been set.

    Enables the output and emits the first packets. `reports` of event trace precede TIP.PGE.
    """
    load_configuration(unit)
    state, configuration = unit.state, unit.configuration
    state.level, state.level_cycle = 0, state.cycle
    depth = 0 if configuration.dis_retc else unit.parameters.ret_compression_depth
    state.ret_stack = new_call_stack(depth)
    # Software may have put another buffer or another thread's registers in place.
    state.last_ip = NO_LAST_IP
    unit.pending_knowledge = state.decoder_knowledge = initial_knowledge(unit)
    state.context_report_pending = False
    fine = not state.error
    enable_output(unit)
    if state.error and fine:
        state.error_visible_at = state.cycle + unit.parameters.error_latency
    if configuration.inject and state.pend_topa_pmi:
        signal_pmi(unit)
    if not state.trigger_en:
        return
    state.filter_en = not configuration.ranges.filter
    start_timing(unit)
    stops = update_enables(unit, state.ip)
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
        _emit_first_packets(unit, stops, reports)
        emit_psb(unit)
    else:
        packet_en, state.packet_en = state.packet_en, False
        if with_psb:
            # With the erratum PSB+ reports the state after the following TIP.PGE. Decoders
            # skip its FUP, so that TIP.PGE is not compressed against it.
            state.packet_en = packet_en and "BDM70" in unit.errata
            emit_psb(unit)
            if state.packet_en:
                state.last_ip = NO_LAST_IP
        else:
            if configuration.tsc_en or packet_en:
                emit_cyc_if_due(unit)
            emit_tsc(unit)
            emit_cbr(unit)
        state.packet_en = packet_en
        _emit_first_packets(unit, stops, reports)
    commit(unit)


def _emit_first_packets(unit: Unit, stops: bool, reports: EventReports) -> None:
    emit_events(unit, reports, before=False, after=unit.state.context_en, branch_fup=False)
    if stops:
        stop_tracing(unit)
    elif unit.state.packet_en:
        emit_cyc_if_due(unit)
        emit_tip_pge(unit, unit.state.ip)


def end_trace(unit: Unit, ip: int, reports: EventReports = (), *, fup: bool = True) -> None:
    """End a trace: TraceEn has been cleared at the linear address `ip`.

    With PacketEn=1 and `fup` a FUP carries `ip`. `reports` of event trace precede it. All buffers
    are written out.
    """
    state = unit.state
    state.level = 0
    cut = state.overflow is not None and "APL11" in unit.errata
    if state.overflow is not None:
        state.ip = ip
        resolve_overflow(unit, ends=cut)
    if cut and state.trigger_en and state.packet_en:
        # With the erratum the end of the trace follows OVF at once.
        emit_tip_pgd(unit, None)
        clear_trigger_en(unit)
    elif state.trigger_en:
        was = state.packet_en
        flush_tnt(unit)
        if was:
            emit_cyc_if_due(unit)
        emit_events(unit, reports, before=state.context_en, after=False, branch_fup=was and fup)
        if was:
            if fup:
                emit_fup(unit, ip)
            emit_tip_pgd(unit, None)
        else:
            emit_final_cyc(unit)
        clear_trigger_en(unit)
    commit(unit)
    drain_held_bytes(unit)
    disable_output(unit)
    clear_last_branches(unit)
    if unit.parameters.clear_enables_on_disable:
        state.context_en = state.filter_en = False


def enable_output(unit: Unit) -> None:
    """Set TriggerEn and enable the output, while TraceEn=1.

    With Stopped=1 the output stays disabled: the pointers of a ToPA STOP are not an error until
    tracing is enabled with Stopped=0 (section 33.2.7.2).
    """
    state = unit.state
    if not state.stopped:
        apply_output_result(unit, unit.output.enable(unit.registers))
    state.trigger_en = compute_trigger_en(trace_en=True, stopped=state.stopped, error=state.error)


def disable_output(unit: Unit) -> None:
    """Disable the output; its pointers stay in the registers."""
    if unit.state.bytes_until_pmi is not None:
        signal_pmi(unit)
    unit.state.error_visible_at = 0
    if unit.output.state.enabled:
        unit.output.disable()
        unit.registers.output_base, unit.registers.output_mask_ptrs = unit.output.msrs()


def clear_trace_en(unit: Unit, ip: int, reports: EventReports = ()) -> None:
    """Clear TraceEn, if set, on behalf of the processor; emit FUP(`ip`) and TIP.PGD() as needed."""
    if unit.registers.trace_en:
        unit.registers.ctl &= ~TRACE_EN
        end_trace(unit, linear_address(unit, ip), reports)


def set_trace_en(unit: Unit, reports: EventReports = ()) -> None:
    """Set TraceEn again on behalf of the processor, with the registers as they are."""
    if not unit.registers.trace_en:
        unit.registers.ctl |= TRACE_EN
        start_trace(unit, reports)


def clear_trace_en_silently(unit: Unit) -> None:
    """Clear TraceEn without any packet. Bytes in internal buffers are lost."""
    state = unit.state
    unit.registers.ctl &= ~TRACE_EN
    state.held_back = b""
    unit.emit, state.overflow, state.overflow_ends_at = unit.packets.extend, None, NEVER
    unit.pending_knowledge = state.decoder_knowledge
    clear_trigger_en(unit)
    disable_output(unit)
    clear_last_branches(unit)
    state.level = 0


def clear_last_branches(unit: Unit) -> None:
    """Clear the LBR stack after TraceEn was cleared, where PT and LBR exclude each other
    (33.3.1.2).
    """
    if unit.profile.lbr_exclusive:
        unit.state.last_branches = unit.state.last_branches.without_branches()


def read_pt_msr(unit: Unit, msr: int) -> int:
    """Return the value of a PT MSR. Raises GeneralProtection for one that does not exist."""
    update_status_register(unit)
    return rdmsr(unit.registers, msr, profile=unit.profile)


def write_pt_msr(
    unit: Unit,
    msr: int,
    value: int,
    *,
    ip: int | None = None,
    next_ip: int | None = None,
    reports: EventReports = (),
    fup: bool = True,
) -> None:
    """Write a PT MSR, by WRMSR or another operation; the same rules apply.

    `reports`, and `fup` (whether FUP carries `ip`), matter if the operation changes TraceEn.
    """
    state = unit.state
    update_status_register(unit)
    was = unit.registers.trace_en
    vmx = state.arch.vmx != "off"
    wrmsr(unit.registers, msr, value, profile=unit.profile, vmx=vmx)
    if msr == Msr.CTL:
        if was and not value & TRACE_EN:
            end_trace(unit, state.ip if ip is None else linear_address(unit, ip), reports, fup=fup)
        if next_ip is not None:
            state.ip = linear_address(unit, next_ip)
        if not was and value & TRACE_EN:
            start_trace(unit, reports)
    elif msr == Msr.STATUS:
        load_status_register(unit)
