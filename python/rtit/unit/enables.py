"""The packet generation enables: when TriggerEn, ContextEn, FilterEn and PacketEn are 1
(section 33.2.6), and how an event changes them.

`update_enables` is called with the linear address at which a branch or event lands.
`UnitState.branch_fast_path` caches that near branches cannot change an enable; every function that
changes an enable recomputes it.
"""

from __future__ import annotations

from rtit.unit.arch_state import ArchState
from rtit.unit.configuration import Configuration, is_cpl_allowed, is_cr3_match
from rtit.unit.control_flow_packets import discard_pending, emit_trace_stop
from rtit.unit.core import Unit
from rtit.unit.overflow import record_trace_stop_in_overflow
from rtit.unit.state import UnitState
from rtit.unit.timing_packets import emit_final_cyc, stop_timing


def compute_trigger_en(*, trace_en: bool, stopped: bool, error: bool) -> bool:
    """Return TriggerEn (section 33.2.6.2)."""
    return trace_en and not stopped and not error


def compute_context_en(configuration: Configuration, arch: ArchState) -> bool:
    """Return ContextEn (section 33.2.6.3)."""
    return (
        is_cpl_allowed(arch.privilege, os=configuration.os, user=configuration.user)
        and not arch.opted_out_enclave
        and (
            not configuration.cr3_filter
            or is_cr3_match(arch.cr3, configuration.cr3_match, pae_paging=arch.pae_paging)
        )
    )


def compute_packet_en(state: UnitState, configuration: Configuration) -> bool:
    """Return PacketEn (section 33.2.6.1); 0 while the processor waits for SIPI."""
    return (
        state.trigger_en
        and state.context_en
        and state.filter_en
        and configuration.branch_en
        and not state.arch.wait_for_sipi
    )


def can_use_fast_path(state: UnitState, configuration: Configuration) -> bool:
    """Return whether near branches cannot change an enable, and need only their own packet."""
    return (
        state.packet_en
        and not configuration.ranges.any_configured
        and not configuration.dis_tnt
        and state.arch.linear_base == 0
        and state.overflow is None
    )


def linear_address(unit: Unit, ip: int) -> int:
    """Return the address that packets and ranges use for an effective IP (section 33.3.1.1)."""
    if unit.state.arch.linear_base and unit.profile.lip:
        return unit.state.arch.linear(ip)
    return ip


def update_enables(unit: Unit, ip: int) -> bool:
    """Set ContextEn, FilterEn and PacketEn for a branch or event that lands at `ip`.

    Return whether the landing meets the TraceStop condition.
    """
    state, configuration = unit.state, unit.configuration
    state.context_en = compute_context_en(configuration, state.arch)
    stops = False
    if state.context_en:
        stops = configuration.ranges.is_trace_stop(ip)
        state.filter_en = not stops and configuration.ranges.filter_en(ip)
    update_packet_en(unit)
    return stops


def stop_tracing(unit: Unit) -> None:
    """Perform the TraceStop action (section 33.4.2.9). `update_enables` has cleared FilterEn."""
    emit_final_cyc(unit)
    emit_trace_stop(unit)
    record_trace_stop_in_overflow(unit)
    unit.state.stopped = True
    clear_trigger_en(unit)


def update_packet_en(unit: Unit) -> None:
    """Recompute PacketEn and the fast path from the other enables."""
    state, configuration = unit.state, unit.configuration
    state.packet_en = compute_packet_en(state, configuration)
    state.branch_fast_path = can_use_fast_path(state, configuration)


def clear_trigger_en(unit: Unit) -> None:
    """Clear TriggerEn. No packet follows; pending TNT results and TIPs are discarded."""
    state = unit.state
    state.trigger_en = state.packet_en = state.branch_fast_path = False
    discard_pending(unit)
    stop_timing(unit)


def switch_context(unit: Unit, target: int, arch: ArchState) -> None:
    """Move the processor to another context, without any packet."""
    unit.state.arch = arch
    unit.state.ip = linear_address(unit, target)
