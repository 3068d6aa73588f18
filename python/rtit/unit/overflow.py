"""Internal buffer overflow: OVF (sections 33.3.8, 33.4.1 and 33.4.2.16).

Rules:

* The model writes bytes to the output immediately. State.level says how many of them a real
  internal buffer would still hold; it falls by Parameters.drain_bytes every drain_cycles. An event
  with packets that do not fit loses all of them and starts an overflow. `on_request.begin_overflow`
  starts one without this reason.
* During an overflow `Unit.emit` discards packets. Enables, filters and clocks continue, and the
  cycle counter is not reset.
* An overflow resolves at the end of the first event (or, out of context, by time) after the level
  has fallen to Parameters.ovf_resolve_level, because only there the current IP is known. Clearing
  TraceEn drains the buffer, so it resolves the overflow first.
* Resolution emits OVF, with a CYC before it (Parameters.ovf_cyc), and with PacketEn=1 a FUP with
  the current IP. No IP is compressed against a lost packet.
* A PSB+ after OVF reports the context that no packet has reported: modes, CR3, transaction, VMCS
  (Parameters.ovf_psb). RFLAGS.IF with BranchEn=0 is not in a PSB+; a MODE.Exec with the current IP
  reports it. With ContextEn=0 all of this waits until the context is entered.
* TraceStop during an overflow, or in the event that starts it, stops tracing immediately; the
  packet follows OVF (Parameters.tracestop_in_ovf).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from rtit.packets import encode
from rtit.unit.compression import NO_LAST_IP
from rtit.unit.control_flow_packets import (
    discard_pending,
    emit_fup,
    emit_mode_exec,
    emit_mode_tsx,
    emit_pip,
    emit_trace_stop,
    emit_vmcs,
    flush_tnt,
    mode_exec_bits,
    pip_content,
)
from rtit.unit.core import Unit
from rtit.unit.state import NEVER, OverflowedState
from rtit.unit.timing_packets import emit_cyc, emit_cyc_if_due, resume_timing_after_overflow

_OVF = encode("OVF")


def discard_packet(_packet: bytes) -> None:
    """Replace Unit.emit during an overflow."""


def reserve_buffer(unit: Unit, size: int) -> bool:
    """Reserve `size` bytes of the internal buffer; return False if they do not fit."""
    state, parameters = unit.state, unit.parameters
    passed = state.cycle - state.level_cycle
    # In units of a byte / drain_cycles, so that no fraction is lost.
    level = max(0, state.level - passed * parameters.drain_bytes)
    more = size * parameters.drain_cycles
    fits = level + more <= parameters.buffer_bytes * parameters.drain_cycles
    state.level = level + more if fits else level
    state.level_cycle = state.cycle
    return fits


def start_overflow(unit: Unit, *, until: int = NEVER) -> None:
    """Start an overflow: discard the packets of the current event, and all others until cycle
    `until`.
    """
    state = unit.state
    unit.packets.clear()
    unit.emit = discard_packet
    state.overflow = OverflowedState(unit.pending_knowledge.trace_stop)
    unit.pending_knowledge = state.decoder_knowledge
    state.overflow_ends_at = until
    discard_pending(unit)
    state.branch_fast_path = False
    # No CYC, even if the counter wraps: see `timing`.
    state.cyc_allowed_at = NEVER
    state.next_timer_cycle = min(state.next_timer_cycle, until)


def cycle_of_resolution(unit: Unit) -> int:
    """Return the core cycle at which the buffer has drained far enough to resolve."""
    state, parameters = unit.state, unit.parameters
    if parameters.ovf_resolve == "explicit":
        return NEVER
    excess = state.level - parameters.ovf_resolve_level * parameters.drain_cycles
    return state.level_cycle + max(1, -(-excess // parameters.drain_bytes))


def emit_overflow_packets(unit: Unit, *, ends: bool = False) -> bool:
    """Put OVF and what has to follow it; True if a PSB+ is to follow as well.

    Tracing `ends` with it: no FUP. With erratum SKD010 there is none in any case, with APL12 there
    is one outside the filter range.
    """
    state, configuration = unit.state, unit.configuration
    lost, state.overflow = state.overflow, None
    if lost is None:
        return False
    state.overflow_ends_at = NEVER
    unit.emit, unit.pending_knowledge = unit.packets.extend, state.decoder_knowledge
    discard_pending(unit)
    state.last_ip = NO_LAST_IP
    if not state.trigger_en:
        unit.emit(_OVF)
        if lost.trace_stop and unit.parameters.tracestop_in_ovf == "delayed":
            emit_trace_stop(unit)
        return False
    resume_timing_after_overflow(unit)
    _emit_cyc_before_ovf(unit)
    unit.emit(_OVF)
    mode = mode_exec_bits(unit)
    changed = state.packet_en and state.decoder_knowledge.mode != mode
    changed |= state.context_en and any(_unreported_context(unit).values())
    state.context_report_pending = not state.context_en
    unit.pending_knowledge = state.decoder_knowledge._replace(
        mode=mode if state.packet_en and not changed else None
    )
    if ends:
        return False
    if "SKD010" in unit.errata and state.packet_en:
        return False
    outside = state.context_en and not state.filter_en and configuration.branch_en
    if state.packet_en or (outside and "APL12" in unit.errata):
        emit_fup(unit, state.ip)
        if not state.packet_en:
            # A decoder skips that one.
            state.last_ip = NO_LAST_IP
    elif (
        _has_events_only(unit)
        and state.decoder_knowledge.interrupt_flag != state.arch.interrupt_flag
    ):
        emit_mode_exec(unit)
        emit_fup(unit, state.ip)
    return unit.parameters.ovf_psb == "always" or (unit.parameters.ovf_psb == "changed" and changed)


def _has_events_only(unit: Unit) -> bool:
    """Return whether only MODE.Exec reports RFLAGS.IF, and no packet a mode (Table 33-26)."""
    state, configuration = unit.state, unit.configuration
    events = configuration.event_en and not configuration.branch_en
    return events and state.context_en and state.filter_en


def emit_unreported_context(unit: Unit) -> None:
    """Emit the context that an overflow has hidden, when an event enters the context.

    Only after an overflow that resolved with ContextEn=0.
    """
    state = unit.state
    if not (state.context_report_pending and state.context_en and state.overflow is None):
        return
    state.context_report_pending = False
    for send, needed in _unreported_context(unit).items():
        if needed:
            flush_tnt(unit)
            emit_cyc_if_due(unit)
            send(unit)


def _unreported_context(unit: Unit) -> dict[Callable[[Unit], None], bool]:
    """Return which packets would report context that is not yet known (Table 33-14)."""
    known, arch, configuration = unit.pending_knowledge, unit.state.arch, unit.configuration
    return {
        emit_pip: configuration.os and known.paging != pip_content(unit),
        emit_vmcs: arch.is_vmx_visible and known.vmcs != arch.vmcs,
        emit_mode_tsx: configuration.branch_en and known.in_tx != arch.in_tx,
    }


def _emit_cyc_before_ovf(unit: Unit) -> None:
    """Emit the CYC before OVF.

    With erratum SKD007 OVF replaces all bytes of the CYC but the first.
    """
    before, state = len(unit.packets), unit.state
    always = unit.configuration.cyc_en and unit.parameters.ovf_cyc == "always"
    if always and state.cycle > state.last_cyc_cycle:
        emit_cyc(unit)
    else:
        emit_cyc_if_due(unit)
    if "SKD007" in unit.errata:
        del unit.packets[before + 1 :]


def record_trace_stop_in_overflow(unit: Unit) -> None:
    """Remember that TraceStop ended tracing during an overflow."""
    state = unit.state
    if state.overflow is not None:
        state.overflow = replace(state.overflow, trace_stop=True)
