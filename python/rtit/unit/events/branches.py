"""Near branches: direct, indirect, CALL and RET (sections 33.2.1.1, 33.2.1.2 and 33.4.2.1 to
33.4.2.5).

These are nearly all events of a trace, so each begins with the case that nothing but its own packet
can happen (UnitState.plain). The other case is the whole rule, and gives the same packets.

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
from rtit.unit.illegal_events import require_addresses, require_legal
from rtit.unit.packet_commit import commit
from rtit.unit.timing_packets import emit_cyc, emit_cyc_if_due


def conditional(unit: Unit, ip: int, next_ip: int, target: int, taken: bool) -> None:
    """Execute Jcc, J*CXZ or LOOP*: one TNT result."""
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
    """Advance to `next_ip` by instructions without any packet."""
    if next_ip >> 64:
        require_addresses(next_ip)
    state = unit.state
    state.ip = linear_address(unit, next_ip)
    if not state.filter_en:
        _enter_range_sequentially(unit)


def jump(unit: Unit, ip: int, target: int) -> None:
    """Execute a direct JMP: no packet, because the code shows its target."""
    if target >> 64:
        require_addresses(target)
    if unit.state.branch_fast_path:
        unit.state.ip = target
    elif _take_branch(unit, target, direct=True):
        commit(unit)


def call(unit: Unit, ip: int, next_ip: int, target: int) -> None:
    """Execute a direct CALL. With displacement 0 (`target` == `next_ip`) the call stack is not
    pushed.
    """
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
    """Execute an indirect JMP: TIP."""
    if target >> 64:
        require_addresses(target)
    state = unit.state
    if state.branch_fast_path:
        state.ip = target
        _emit_indirect_tip(unit, target)
    elif _take_branch(unit, target):
        _emit_indirect_tip(unit, state.ip)


def indirect_call(unit: Unit, ip: int, next_ip: int, target: int) -> None:
    """Execute an indirect CALL: TIP."""
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
    """Execute a near RET: a taken TNT result if the call stack predicts its target, else TIP.

    `operand_size` is 16, 32 or 64; None is the width of the code. Raises IllegalEvent for another
    size. The call stack is popped in both cases.
    """
    if target >> 64:
        require_addresses(target)
    if operand_size is not None:
        sizes = f"the operand of RET has 16, 32 or 64 bits, not {operand_size}"
        require_legal(operand_size in CODE_BITS, sizes)
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
    """Handle sequential execution outside the filter ranges that has reached State.ip.

    With Parameters.filter_sequential `at_boundary`, FilterEn is set if State.ip is in a range.
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
    """Land a taken branch at `target`; the branch is `conditional`, `direct`, or indirect.

    Return True if PacketEn is and was 1, so that the branch's own packet follows. Otherwise
    TIP.PGE, TIP.PGD and TraceStop have been emitted as needed.
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
    """Add one result to the TNT buffer."""
    state = unit.state
    if not unit.configuration.dis_tnt:
        if state.tnt == 1:
            emit_cyc_if_due(unit)
        state.tnt = state.tnt << 1 | taken
        if state.tnt >= unit.tnt_full:
            flush_tnt(unit)
    commit(unit)


def _emit_indirect_tip(unit: Unit, target: int) -> None:
    """Emit or defer the TIP of an indirect JMP or CALL."""
    if unit.defers_tips:
        defer_tip(unit, target)
    else:
        flush_tnt(unit)
        emit_cyc_if_due(unit)
        emit_tip(unit, target)
    commit(unit)


def _emit_return_tip(unit: Unit, target: int) -> None:
    """Emit the TIP of a RET, after any deferred TIPs."""
    flush_tnt(unit)
    emit_cyc_if_due(unit)
    emit_tip(unit, target)
    commit(unit)
