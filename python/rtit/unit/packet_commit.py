"""From the packets of an event to the output: commit, PSB+, ToPA PMI (sections 33.2.7.2, 33.3.3,
33.3.7, 33.4.2.17).

* `commit` ends an event: it writes the event's packets as a whole, or drops all of them if the
  internal buffer overflows, and inserts a PSB+ when PacketByteCnt reaches the PSB period.
* A PSB+ reports the present state and resets compression. State.ip, which its FUP carries, must be
  the next instruction, so a PSB+ is inserted between two events only.
* The output's answers set Stopped and Error and raise the PMI. IA32_DEBUGCTL.Freeze_LBRs_on_PMI and
  Freeze_Perfmon_on_PMI apply to the ToPA PMI as to every PMI: they set LBRS_FROZEN and
  COUNTERS_FROZEN in IA32_PERF_GLOBAL_STATUS (Volume 3, 18.4.7). Tracing itself is never frozen.
"""

from __future__ import annotations

from collections.abc import Callable

from rtit.errors import IllegalEvent
from rtit.packets import encode
from rtit.unit import overflow
from rtit.unit.compression import NO_LAST_IP
from rtit.unit.control_flow_packets import (
    emit_fup,
    emit_mode_exec,
    emit_mode_tsx,
    emit_pip,
    emit_vmcs,
    flush_tnt,
)
from rtit.unit.core import Unit
from rtit.unit.enables import clear_trigger_en, update_packet_en
from rtit.unit.output import ACCEPTED, OutputResult
from rtit.unit.overflow import cycle_of_resolution, reserve_buffer
from rtit.unit.timing_packets import advance_to_cycle, emit_cbr, emit_cyc_if_due, emit_tsc

_PAD = encode("PAD")
_PSB = encode("PSB")
_PSBEND = encode("PSBEND")


def _emit_psb_plus(unit: Unit) -> int:
    """Emit a PSB+ with the present state; return its size in bytes.

    PSB resets all compression. Call between two events only: State.ip, which the FUP carries, must
    be the next instruction.
    """
    state = unit.state
    flush_tnt(unit)
    content = [(name, send) for name, (applies, send) in _PSB_PLUS_CONTENT.items() if applies(unit)]
    if any(name in _CYC_ELIGIBLE for name, _ in content):
        _emit_cyc_before_psb(unit)
    before = len(unit.packets)
    if unit.parameters.psb_guard_pad:
        unit.emit(_PAD)
    unit.emit(_PSB)
    state.last_ip = 0 if unit.parameters.compress_after_psb else NO_LAST_IP
    state.ret_stack.clear()
    unit.pending_knowledge = unit.pending_knowledge._replace(mode=None)
    order = unit.parameters.psb_plus_positions
    for _, send in sorted(content, key=lambda item: order[item[0]]):
        send(unit)
    unit.emit(_PSBEND)
    return len(unit.packets) - before


def _emit_cyc_before_psb(unit: Unit) -> None:
    """Emit the CYC before PSB. With erratum SKL168 the CYC, and the time in it, is lost."""
    before = len(unit.packets)
    emit_cyc_if_due(unit)
    if "SKL168" in unit.errata:
        del unit.packets[before:]


def _emit_current_fup(unit: Unit) -> None:
    emit_fup(unit, unit.state.ip)


_PsbPlusPart = tuple[Callable[[Unit], bool], Callable[[Unit], None]]

# TMA is no entry of its own: it follows its TSC at once.
_PSB_PLUS_CONTENT: dict[str, _PsbPlusPart] = {
    "TSC": (lambda unit: unit.configuration.tsc_en, emit_tsc),
    "PIP": (lambda unit: unit.state.context_en and unit.configuration.os, emit_pip),
    "VMCS": (lambda unit: unit.state.context_en and unit.state.arch.is_vmx_visible, emit_vmcs),
    "CBR": (lambda unit: True, emit_cbr),
    "MODE.TSX": (
        lambda unit: unit.state.context_en and unit.configuration.branch_en,
        emit_mode_tsx,
    ),
    "MODE.Exec": (lambda unit: unit.state.packet_en, emit_mode_exec),
    "FUP": (lambda unit: unit.state.packet_en, _emit_current_fup),
}
"""What PSB+ can hold: when it applies, and how it is sent."""

_CYC_ELIGIBLE = frozenset(("TSC", "PIP", "VMCS", "MODE.TSX", "MODE.Exec"))
IA32_PERF_GLOBAL_STATUS = 0x38E
IA32_PERF_GLOBAL_STATUS_RESET = 0x390

TRACE_TOPA_PMI = 1 << 55
LBRS_FROZEN = 1 << 58
COUNTERS_FROZEN = 1 << 59
CLEARABLE_STATUS = TRACE_TOPA_PMI | LBRS_FROZEN | COUNTERS_FROZEN
"""Bits of IA32_PERF_GLOBAL_STATUS that concern PT; writing 1 to the same bit of
IA32_PERF_GLOBAL_STATUS_RESET clears one.
"""

_FREEZE_CONTROLS = ((1 << 11, LBRS_FROZEN), (1 << 12, COUNTERS_FROZEN))
"""Bit of IA32_DEBUGCTL: what it makes a PMI set."""


def _set_pmi_status(unit: Unit) -> None:
    """Record a ToPA PMI in IA32_PERF_GLOBAL_STATUS and the freeze bits."""
    state = unit.state
    state.pmis += 1
    state.bytes_until_pmi = None
    state.global_status |= TRACE_TOPA_PMI
    for control, frozen in _FREEZE_CONTROLS:
        if state.last_branches.debugctl & control:
            state.global_status |= frozen
    if unit.configuration.inject:
        state.pend_topa_pmi = True


def _delay_pmi(unit: Unit) -> None:
    """Signal the PMI after Parameters.pmi_skid more bytes; a second pending PMI merges into the
    first.
    """
    if unit.state.bytes_until_pmi is None:
        unit.state.bytes_until_pmi = unit.parameters.pmi_skid


def _is_delayed_pmi_due(unit: Unit, size: int) -> bool:
    """Account `size` written bytes; return whether a delayed PMI is due."""
    left = unit.state.bytes_until_pmi
    if left is None:
        return False
    unit.state.bytes_until_pmi = max(0, left - size)
    return left <= size


def write_packets(unit: Unit, *, drained: bool = False) -> None:
    """Write the pending packets to the output, or start an overflow if they do not fit the buffer.

    `drained`: the bytes come from the internal buffer; do not pad or hold them back again.
    """
    data = bytes(unit.packets)
    if not data:
        return
    unit.packets.clear()
    if not drained:
        if unit.has_bounded_buffer and not reserve_buffer(unit, len(data)):
            overflow.start_overflow(unit, until=cycle_of_resolution(unit))
            return
        if unit.pads_or_holds_back:
            data = _pad_and_hold_back(unit, data)
    state = unit.state
    state.decoder_knowledge = unit.pending_knowledge
    waits = state.bytes_until_pmi is not None
    result = unit.output.write(data)
    state.packet_byte_count += len(data)
    if result is not ACCEPTED:
        state.packet_byte_count -= result.lost
        apply_output_result(unit, result)
    if waits and _is_delayed_pmi_due(unit, len(data)):
        signal_pmi(unit)
    if state.packet_byte_count >= unit.configuration.psb_period:
        state.branch_fast_path = False


def drain_held_bytes(unit: Unit) -> None:
    """Write the bytes that the internal buffers hold back (section 33.3.3)."""
    held, unit.state.held_back = unit.state.held_back, b""
    if held and unit.output.state.enabled:
        unit.packets += held
        write_packets(unit, drained=True)


def _pad_and_hold_back(unit: Unit, data: bytes) -> bytes:
    """Return the bytes to write: those held back before and `data` padded, without the new tail."""
    data = unit.state.held_back + data + bytes(-len(data) % unit.parameters.pad_align)
    kept = max(0, len(data) - unit.parameters.held_bytes)
    unit.state.held_back = data[kept:]
    return data[:kept]


def apply_output_result(unit: Unit, result: OutputResult) -> None:
    """Set Stopped and Error from an output result, and raise its PMI."""
    if result.stopped:
        unit.state.stopped = True
    if result.error is not None:
        unit.state.error = True
    ended = result.stopped or result.error is not None
    if ended:
        unit.packets.clear()
        unit.state.held_back = b""
        clear_trigger_en(unit)
    # The handler of a PMI finds Stopped set (section 33.2.7.2).
    if result.pmi and unit.parameters.pmi_skid and not ended:
        _delay_pmi(unit)
    elif result.pmi or (ended and unit.state.bytes_until_pmi is not None):
        signal_pmi(unit)


def signal_pmi(unit: Unit) -> None:
    """Signal a ToPA PMI, and call Unit.on_pmi."""
    _set_pmi_status(unit)
    if unit.on_pmi is not None:
        unit.on_pmi()


def at(unit: Unit, clock: int) -> None:
    """Advance to the time at which `clock` instructions have retired.

    Raises IllegalEvent if that is earlier than before.
    """
    state = unit.state
    cycle = clock * unit.time.cpi
    if cycle < state.cycle:
        raise IllegalEvent(f"the clock went back to {clock}, it was {state.cycle / unit.time.cpi}")
    if cycle < state.next_timer_cycle:
        state.cycle = cycle
        return
    advance_to_cycle(unit, cycle)
    # Between two events the current IP is unknown: a PSB+ with a FUP waits for the next event.
    if state.packet_en:
        write_packets(unit)
    else:
        commit(unit)


def flush(unit: Unit) -> None:
    """Write the buffered TNT results, as clearing TraceEn does (33.3.3, 33.4.2.1)."""
    flush_tnt(unit)
    write_packets(unit)


def commit(unit: Unit) -> None:
    """End an event: write its packets, and insert a PSB+ if PacketByteCnt demands one."""
    if unit.packets:
        write_packets(unit)
    elif unit.state.overflow is not None:
        if unit.state.cycle < unit.state.overflow_ends_at:
            return
        resolve_overflow(unit)
    if unit.state.packet_byte_count >= unit.configuration.psb_period:
        _insert_due_psb(unit)


def resolve_overflow(unit: Unit, *, ends: bool = False) -> None:
    """Resolve the overflow, if there is one. State.ip is the next instruction.

    `ends`: tracing ends at the same time.
    """
    if unit.state.overflow is None:
        return
    if overflow.emit_overflow_packets(unit, ends=ends):
        emit_psb(unit)
    write_packets(unit)
    update_packet_en(unit)


def _insert_due_psb(unit: Unit) -> None:
    state, configuration = unit.state, unit.configuration
    if configuration.inject:
        state.pend_psb = True
    if not state.trigger_en or state.overflow is not None:
        return
    if state.packet_byte_count >= configuration.psb_period + unit.parameters.psb_delay:
        state.packet_byte_count %= configuration.psb_period
        insert_psb_now(unit)
        update_packet_en(unit)


def insert_extra_psb(unit: Unit, event: str) -> None:
    """Insert a PSB+ if Parameters.psb_extra names `event`."""
    state = unit.state
    if event in unit.parameters.psb_extra and state.trigger_en and state.overflow is None:
        insert_psb_now(unit)


def insert_psb_now(unit: Unit) -> None:
    """Write a PSB+ regardless of PacketByteCnt."""
    emit_psb(unit)
    write_packets(unit)


def emit_psb(unit: Unit) -> None:
    """Emit a PSB+ among the packets of the current event."""
    size = _emit_psb_plus(unit)
    unit.state.pend_psb = False
    if not unit.parameters.psb_counts_itself:
        unit.state.packet_byte_count -= size
