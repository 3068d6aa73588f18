"""RESET, INIT, SIPI and shutdown (section 33.3.4, Table 33-50, Table 33-55 rows 22 to 24)."""

from __future__ import annotations

from dataclasses import replace

from rtit.unit.arch_state import ArchState
from rtit.unit.control_flow_packets import emit_fup, emit_pip, emit_tip_pgd, flush_tnt
from rtit.unit.core import Unit
from rtit.unit.enables import clear_trigger_en, compute_context_en, linear_address, update_packet_en
from rtit.unit.events.enclave import leave_enclave
from rtit.unit.events.event_trace import CfeType, EventReport, emit_event
from rtit.unit.events.far_transfers import transfer
from rtit.unit.events.trace_control import disable_output, load_status_register
from rtit.unit.illegal_events import require_addresses, require_legal, require_no_transaction
from rtit.unit.packet_commit import commit, drain_held_bytes, flush
from rtit.unit.state import LVT_MASKED, NEVER, NO_LAST_BRANCHES
from rtit.unit.timing_packets import emit_cyc_if_due


def init_wait(unit: Unit, ip: int) -> None:
    """Handle INIT on an application processor before the instruction at `ip`: it waits for SIPI.

    FUP without TIP, because there is no target. PacketEn counts as 0 while the processor waits,
    without a TIP.PGD unless the context is left.
    """
    require_addresses(ip)
    require_no_transaction(unit.state.arch, "INIT")
    state = unit.state
    before, source = leave_enclave(unit, ip), linear_address(unit, ip)
    state.arch = replace(ArchState.after_reset(), wait_for_sipi=True)
    if not state.trigger_en:
        return
    was, was_context = state.packet_en, state.context_en
    state.context_en = compute_context_en(unit.configuration, state.arch)
    update_packet_en(unit)
    paging = before.cr3 != 0 and state.context_en and unit.configuration.os
    flush_tnt(unit)
    if paging or (was and not state.context_en):
        emit_cyc_if_due(unit)
    emit_event(
        unit,
        EventReport(CfeType.INIT),
        before=was_context,
        after=state.context_en,
        ip=source,
        branch_fup=was,
    )
    if was:
        emit_fup(unit, source)
    if paging:
        emit_pip(unit)
    if was and not state.context_en:
        emit_tip_pgd(unit, None)
    state.ret_stack.clear()
    commit(unit)


def sipi(unit: Unit, vector: int) -> None:
    """Start a processor that waits for SIPI, in real mode at `vector` x 4096.

    Raises IllegalEvent unless `vector` is 0 to 255 and the processor waits for SIPI.
    """
    require_legal(0 <= vector <= 255, f"a SIPI vector is 0 to 255, not {vector}")
    require_legal(unit.state.arch.wait_for_sipi, "a SIPI comes to a processor that waits for none")
    arch = replace(ArchState.after_reset(), cs_base=vector << 12)
    transfer(unit, 0, arch, report=EventReport(CfeType.SIPI, vector))


def shutdown(unit: Unit, ip: int) -> None:
    """Shut down: the instruction at `ip` has not completed. The caller then calls `sleep`."""
    require_addresses(ip)
    state = unit.state
    emit_event(
        unit,
        EventReport(CfeType.SHUTDOWN),
        before=state.context_en,
        after=state.context_en,
        ip=linear_address(unit, ip),
        branch_fup=False,
    )
    commit(unit)


def reset(unit: Unit, *, cold: bool) -> None:
    """Reset, at power-on or warm (section 33.3.4).

    Packets so far are written out. The end of the trace is not reported.
    """
    flush(unit)
    drain_held_bytes(unit)
    unit.emit, unit.state.overflow = unit.packets.extend, None
    unit.state.overflow_ends_at = NEVER
    clear_trigger_en(unit)
    disable_output(unit)
    if cold or not unit.profile.ip_filtering:
        unit.registers.reset_cold()
        load_status_register(unit)
        unit.state.context_en = unit.state.filter_en = False
        unit.state.global_status = 0
    else:
        unit.registers.reset_warm(unit.profile)
    state = unit.state
    state.host = state.smram = state.executive = state.acm = None
    state.asleep, state.in_unreported_sleep, state.ssa = False, False, ()
    state.xss, state.last_branches, state.lvt_pmi = 0, NO_LAST_BRANCHES, LVT_MASKED
