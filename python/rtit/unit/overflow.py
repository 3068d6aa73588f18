"""Internal buffer overflow: OVF (sections 33.3.8, 33.4.1 and 33.4.2.16).

The rules, in one place:

* Bytes reach the output as soon as they are made; a level says how many of them a real buffer would
  still hold. It falls by Parameters.drain_bytes every drain_cycles. An event whose packets do not
  fit loses all of them and begins an overflow. `hints.begin_overflow` begins one by itself.
* While it lasts `Unit.put` drops packets. All else goes on: enables, filters, clocks. The cycle
  counter is not reset.
* It resolves at the end of the first event, or by time out of context, after the level has come
  down to Parameters.ovf_resolve_level; only there is the current IP known. Clearing TraceEn drains
  the buffer, and so resolves it first.
* OVF, with a CYC before it (Parameters.ovf_cyc), then with PacketEn=1 FUP with the current IP.
  Nothing is compressed against what was lost.
* What no packet told, of the event that began the overflow or since (modes, CR3, transaction,
  VMCS), a PSB+ tells, which may follow at any time: Parameters.ovf_psb. RFLAGS.IF with BranchEn=0
  is in no PSB+: MODE.Exec with the current IP tells it. With ContextEn=0 they wait for the context.
* TraceStop in an overflow, or in the event that begins it, ends tracing at once; its packet follows
  OVF: Parameters.tracestop_in_ovf.
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
    """In the place of Unit.put while an overflow lasts."""


def reserve_buffer(unit: Unit, size: int) -> bool:
    """True, and counted, if `size` more bytes fit the buffer."""
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
    """What the event at hand has made is lost, and what follows until core cycle `until`."""
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
    """The core cycle at which the buffer will have drained so far that an overflow resolves."""
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
    """True where MODE.Exec tells of RFLAGS.IF, and nothing else tells a mode (Table 33-26)."""
    state, configuration = unit.state, unit.configuration
    events = configuration.event_en and not configuration.branch_en
    return events and state.context_en and state.filter_en


def emit_unreported_context(unit: Unit) -> None:
    """An event is under way. If it enters the context, and the last overflow resolved outside,
    what has not been told is.
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
    """Packets that tell of the context, and whether what they say is not known (Table 33-14)."""
    told, arch, configuration = unit.pending_knowledge, unit.state.arch, unit.configuration
    return {
        emit_pip: configuration.os and told.paging != pip_content(unit),
        emit_vmcs: arch.is_vmx_visible and told.vmcs != arch.vmcs,
        emit_mode_tsx: configuration.branch_en and told.in_tx != arch.in_tx,
    }


def _emit_cyc_before_ovf(unit: Unit) -> None:
    """The CYC that belongs to OVF; with erratum SKD007 OVF comes in the place of all its bytes but
    the first.
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
    """TraceStop, whose packet is lost or late."""
    state = unit.state
    if state.overflow is not None:
        state.overflow = replace(state.overflow, trace_stop=True)
