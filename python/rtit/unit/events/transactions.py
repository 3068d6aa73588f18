"""TSX transactions: MODE.TSX (sections 33.2.9.1, 33.2.9.2 and 33.4.2.8, Table 33-10).

Instructions inside a transaction send their packets as they complete, whether or not it commits
later. HLE and RTM look the same. Nested begins and ends are not events; only the outermost are.
"""

from __future__ import annotations

from dataclasses import replace

from rtit.unit.control_flow_packets import emit_fup, emit_mode_tsx, flush_tnt
from rtit.unit.core import Unit
from rtit.unit.enables import linear_address, update_enables
from rtit.unit.events.far_transfers import finish_transfer
from rtit.unit.illegal_events import require_addresses, require_legal
from rtit.unit.packet_commit import commit
from rtit.unit.timing_packets import emit_cyc_if_due


def begin_transaction(unit: Unit, ip: int, next_ip: int) -> None:
    """Begin a transaction: XBEGIN or an XACQUIRE lock at `ip`. Raises IllegalEvent inside one."""
    _change_transaction_state(unit, ip, next_ip, in_tx=True)


def commit_transaction(unit: Unit, ip: int, next_ip: int) -> None:
    """Commit: the outermost XEND or XRELEASE lock at `ip`. Raises IllegalEvent outside a
    transaction.
    """
    _change_transaction_state(unit, ip, next_ip, in_tx=False)


def abort_transaction(unit: Unit, ip: int, target: int) -> None:
    """Abort: XABORT at `ip`, or another cause before it. Raises IllegalEvent outside a transaction.

    `target` is the fallback handler (RTM) or the XACQUIRE lock (HLE).
    """
    require_addresses(ip, target)
    state, source = unit.state, linear_address(unit, ip)
    _set_in_tx(unit, in_tx=False)
    state.ip = target = linear_address(unit, target)
    if not state.trigger_en:
        return
    was = state.packet_en
    stops = update_enables(unit, target)
    if _emit_mode_tsx_if_due(unit, aborted=True) and was:
        emit_fup(unit, source)
    finish_transfer(unit, was, target, stops)


def _change_transaction_state(unit: Unit, ip: int, next_ip: int, *, in_tx: bool) -> None:
    require_addresses(ip, next_ip)
    source = linear_address(unit, ip)
    _set_in_tx(unit, in_tx=in_tx)
    unit.state.ip = linear_address(unit, next_ip)
    if _emit_mode_tsx_if_due(unit):
        if unit.state.packet_en:
            emit_fup(unit, source)
        commit(unit)


def _set_in_tx(unit: Unit, *, in_tx: bool) -> None:
    arch = unit.state.arch
    under_way = "a transaction" if in_tx else "no transaction"
    require_legal(arch.in_tx != in_tx, f"{under_way} is under way")
    unit.state.arch = replace(arch, in_tx=in_tx)


def _emit_mode_tsx_if_due(unit: Unit, *, aborted: bool = False) -> bool:
    """Emit MODE.TSX if due, independent of FilterEn. Return whether it was due."""
    state = unit.state
    if not (state.trigger_en and state.context_en and unit.configuration.branch_en):
        return False
    flush_tnt(unit)
    emit_cyc_if_due(unit)
    emit_mode_tsx(unit, aborted=aborted)
    return True
