"""Transactions (section 33.2.9.1)."""

from __future__ import annotations

from rtit.processor.core import Cpu
from rtit.processor.sanity import require_here, require_instruction, require_target
from rtit.unit.enables import linear_address
from rtit.unit.illegal_events import require


def begin_transaction(cpu: Cpu, ip: int, next_ip: int) -> None:
    """XBEGIN or XACQUIRE lock at `ip`, executed transactionally; nested: nothing to tell."""
    require_instruction(cpu, ip, next_ip)
    if cpu.unit.state.arch.in_tx:
        cpu.unit.state.ip = linear_address(cpu.unit, next_ip)
    else:
        cpu.unit.begin_transaction(ip, next_ip)


def end_transaction(cpu: Cpu, ip: int, next_ip: int, *, outermost: bool = True) -> None:
    """XEND or XRELEASE lock at `ip`, which commits if it is the outermost one.

    IllegalEvent outside a transaction.
    """
    require_instruction(cpu, ip, next_ip)
    if outermost:
        cpu.unit.commit_transaction(ip, next_ip)
    else:
        require(cpu.unit.state.arch.in_tx, "no transaction is under way")
        cpu.unit.state.ip = linear_address(cpu.unit, next_ip)


def abort_transaction(cpu: Cpu, ip: int, target: int) -> None:
    """XABORT at `ip`, or another cause of an abort before it; goes on at `target`.

    IllegalEvent outside a transaction.
    """
    require_here(cpu, ip)
    require_target(cpu, target)
    cpu.unit.abort_transaction(ip, target)
