"""Transactions: MODE.TSX (sections 33.2.9.1, 33.2.9.2 and 33.4.2.8, Table 33-10).

Packets of instructions inside a transaction are sent as these complete, whatever becomes of it.
HLE and RTM look the same. Nested begins and ends that are not the outermost are no events.
"""

from __future__ import annotations

from dataclasses import replace

from rtit.unit.core import Unit
from rtit.unit.enables import steering
from rtit.unit.events import transfers
from rtit.unit.packets import generator, stream, timing
from rtit.unit.refusal import addresses, require


def begin_transaction(unit: Unit, ip: int, next_ip: int) -> None:
    """The XBEGIN or XACQUIRE lock at `ip` begins a transaction. IllegalEvent inside one."""
    _change(unit, ip, next_ip, in_tx=True)


def commit_transaction(unit: Unit, ip: int, next_ip: int) -> None:
    """The outermost XEND or XRELEASE lock, at `ip`, commits. IllegalEvent outside."""
    _change(unit, ip, next_ip, in_tx=False)


def abort_transaction(unit: Unit, ip: int, target: int) -> None:
    """XABORT at `ip`, or anything else before it, aborts. IllegalEvent outside a transaction.

    `target` is the fallback handler (RTM) or the XACQUIRE lock (HLE).
    """
    addresses(ip, target)
    state, source = unit.state, steering.address(unit, ip)
    _set(unit, in_tx=False)
    state.ip = target = steering.address(unit, target)
    if not state.trigger_en:
        return
    was = state.packet_en
    stops = steering.steer(unit, target)
    if _mode_tsx(unit, aborted=True) and was:
        generator.fup(unit, source)
    transfers.arrive(unit, was, target, stops)


def _change(unit: Unit, ip: int, next_ip: int, *, in_tx: bool) -> None:
    addresses(ip, next_ip)
    source = steering.address(unit, ip)
    _set(unit, in_tx=in_tx)
    unit.state.ip = steering.address(unit, next_ip)
    if _mode_tsx(unit):
        if unit.state.packet_en:
            generator.fup(unit, source)
        stream.commit(unit)


def _set(unit: Unit, *, in_tx: bool) -> None:
    arch = unit.state.arch
    under_way = "a transaction" if in_tx else "no transaction"
    require(arch.in_tx != in_tx, f"{under_way} is under way")
    unit.state.arch = replace(arch, in_tx=in_tx)


def _mode_tsx(unit: Unit, *, aborted: bool = False) -> bool:
    """MODE.TSX, if due: FilterEn does not matter."""
    state = unit.state
    if not (state.trigger_en and state.context_en and unit.configuration.branch_en):
        return False
    generator.flush_tnt(unit)
    timing.eligible(unit)
    generator.mode_tsx(unit, aborted=aborted)
    return True
