"""Near branches: direct, indirect, CALL and RET (sections 33.2.1.1, 33.2.1.2 and 33.4.2.1 to
33.4.2.5).

These are nearly all events of a trace, so each begins with the case that nothing but its own packet
can happen (State.plain). The other case is the whole rule, and gives the same packets.

All addresses are effective IPs; `ip` is the branch's own, which no packet carries. IllegalEvent for
one that has more than 64 bits.
"""

from __future__ import annotations

from rtit.unit.arch_state import CODE_BITS
from rtit.unit.compression import is_predicted_return
from rtit.unit.control_flow_packets import (
    defer_tip,
    emit_tip,
    emit_tip_pgd,
    emit_tip_pge,
    flush_tnt,
)
from rtit.unit.core import Unit
from rtit.unit.enables import linear_address, stop_tracing, update_enables, update_packet_en
from rtit.unit.illegal_events import require, require_addresses
from rtit.unit.stream import commit
from rtit.unit.timing_packets import emit_cyc, emit_cyc_if_due


def conditional(unit: Unit, ip: int, next_ip: int, target: int, taken: bool) -> None:
    """Jcc, J*CXZ, LOOP*: one TNT result."""
    if (next_ip | target) >> 64:
        require_addresses(next_ip, target)
    state = unit.state
    if state.branch_fast_path:
        tnt = state.tnt
        timed = tnt == 1 and state.cycle >= state.cyc_allowed_at
        if timed:
            emit_cyc(unit)
        if taken:
            state.ip = target
            state.tnt = tnt = tnt << 1 | 1
        else:
            state.ip = next_ip
            state.tnt = tnt = tnt << 1
        if tnt >= unit.tnt_full:
            flush_tnt(unit)
            commit(unit)
        elif timed:
            commit(unit)
        return
    if not taken:
        state.ip = linear_address(unit, next_ip)
        if state.packet_en:
            _add_tnt_result(unit, 0)
        elif not state.filter_en:
            _enter_range_sequentially(unit)
    elif _take_branch(unit, target, conditional=True):
        _add_tnt_result(unit, 1)


def retire(unit: Unit, next_ip: int) -> None:
    """Instructions that change nothing have brought the processor to `next_ip`."""
    if next_ip >> 64:
        require_addresses(next_ip)
    state = unit.state
    state.ip = linear_address(unit, next_ip)
    if not state.filter_en:
        _enter_range_sequentially(unit)


def jump(unit: Unit, ip: int, target: int) -> None:
    """A direct JMP: the code tells where it goes."""
    if target >> 64:
        require_addresses(target)
    if unit.state.branch_fast_path:
        unit.state.ip = target
    elif _take_branch(unit, target, direct=True):
        commit(unit)


def call(unit: Unit, ip: int, next_ip: int, target: int) -> None:
    """A direct CALL; with displacement 0 (`target` is `next_ip`) no RET is expected."""
    if (next_ip | target) >> 64:
        require_addresses(next_ip, target)
    state = unit.state
    if state.branch_fast_path:
        state.ip = target
        if target != next_ip:
            state.ret_stack.append(next_ip)
    elif _take_branch(unit, target, direct=True):
        if target != next_ip:
            state.ret_stack.append(linear_address(unit, next_ip))
        commit(unit)


def indirect_jump(unit: Unit, ip: int, target: int) -> None:
    """An indirect JMP: TIP."""
    if target >> 64:
        require_addresses(target)
    state = unit.state
    if state.branch_fast_path:
        state.ip = target
        _emit_indirect_tip(unit, target)
    elif _take_branch(unit, target):
        _emit_indirect_tip(unit, state.ip)


def indirect_call(unit: Unit, ip: int, next_ip: int, target: int) -> None:
    """An indirect CALL: TIP."""
    if (next_ip | target) >> 64:
        require_addresses(next_ip, target)
    state = unit.state
    if state.branch_fast_path:
        state.ip = target
        state.ret_stack.append(next_ip)
        _emit_indirect_tip(unit, target)
    elif _take_branch(unit, target):
        state.ret_stack.append(linear_address(unit, next_ip))
        _emit_indirect_tip(unit, state.ip)


def ret(unit: Unit, ip: int, target: int, operand_size: int | None = None) -> None:
    """A near RET: a taken result if the CALL that it belongs to is known to the decoder, else
    TIP.

    `operand_size` 16, 32 or 64, None for the width of the code; IllegalEvent for another. The call
    stack is popped either way.
    """
    if target >> 64:
        require_addresses(target)
    if operand_size is not None:
        sizes = f"the operand of RET has 16, 32 or 64 bits, not {operand_size}"
        require(operand_size in CODE_BITS, sizes)
    state = unit.state
    if state.branch_fast_path:
        state.ip = target
    elif not _take_branch(unit, target):
        return
    if state.ret_stack:
        expected = state.ret_stack.pop()
        to = state.ip
        if expected == to or is_predicted_return(expected, to, operand_size or state.arch.bits):
            _add_tnt_result(unit, 1)
            return
    _emit_return_tip(unit, state.ip)


def _enter_range_sequentially(unit: Unit) -> None:
    """Sequential execution outside the ranges has reached State.ip, perhaps inside one.

    With Parameters.filter_sequential `at_boundary` that sets FilterEn.
    """
    state, ranges = unit.state, unit.configuration.ranges
    if unit.parameters.filter_sequential == "never" or not ranges.filter:
        return
    if state.trigger_en and state.context_en and ranges.filter_en(state.ip):
        state.filter_en = True
        update_packet_en(unit)
        if state.packet_en:
            emit_cyc_if_due(unit)
            emit_tip_pge(unit, state.ip)
            commit(unit)


def _take_branch(
    unit: Unit, target: int, *, conditional: bool = False, direct: bool = False
) -> bool:
    """A taken branch ends at `target`; it is `conditional`, `direct`, or indirect.

    True if its own packet follows: PacketEn is and was 1. Otherwise TIP.PGE, TIP.PGD and
    TraceStop have been sent, as far as due.
    """
    state, configuration = unit.state, unit.configuration
    state.ip = target = linear_address(unit, target)
    if not state.trigger_en or not state.context_en:
        return False
    was = state.packet_en
    if not configuration.ranges.any_configured:
        return was
    stops = update_enables(unit, target)
    if was and state.packet_en:
        return True
    if was:
        # With erratum SKL014 the IP of a direct branch is missing as well.
        hidden = conditional or (direct and "SKL014" in unit.errata)
        hidden |= stops and unit.parameters.tracestop_pgd_ip == "suppressed"
        flush_tnt(unit)
        emit_cyc_if_due(unit)
        emit_tip_pgd(unit, None if hidden else target)
    elif state.packet_en:
        emit_cyc_if_due(unit)
        emit_tip_pge(unit, target)
    if stops:
        stop_tracing(unit)
    commit(unit)
    return False


def _add_tnt_result(unit: Unit, taken: int) -> None:
    """One more result for the TNT buffer."""
    state = unit.state
    if not unit.configuration.dis_tnt:
        if state.tnt == 1:
            emit_cyc_if_due(unit)
        state.tnt = state.tnt << 1 | taken
        if state.tnt >= unit.tnt_full:
            flush_tnt(unit)
    commit(unit)


def _emit_indirect_tip(unit: Unit, target: int) -> None:
    """The TIP of an indirect JMP or CALL, which may be deferred."""
    if unit.defers_tips:
        defer_tip(unit, target)
    else:
        flush_tnt(unit)
        emit_cyc_if_due(unit)
        emit_tip(unit, target)
    commit(unit)


def _emit_return_tip(unit: Unit, target: int) -> None:
    """The TIP of a RET, which forces out what is deferred."""
    flush_tnt(unit)
    emit_cyc_if_due(unit)
    emit_tip(unit, target)
    commit(unit)
