"""Instructions of user code: near branches, transactions, PTWRITE and PEBS (sections 33.2.1.1,
33.2.1.2, 33.2.2, 33.2.9.1, 33.4.2.26).

All raise IllegalEvent for an instruction that cannot be reached from the current IP, and for a
target that does not exist.
"""

from __future__ import annotations

from collections.abc import Mapping

from rtit.processor.core import (
    Cpu,
    require_instruction_at,
    require_reachable_ip,
    require_valid_target,
)
from rtit.unit.enables import linear_address
from rtit.unit.events.inserted_packets import BlockItems
from rtit.unit.illegal_events import require_legal


def retire(cpu: Cpu, next_ip: int) -> None:
    """Retire instructions without events, up to `next_ip`."""
    require_reachable_ip(cpu, next_ip)
    cpu.unit.retire(next_ip)


def conditional(cpu: Cpu, ip: int, next_ip: int, target: int, taken: bool) -> None:
    """Execute Jcc, J*CXZ or LOOP*, to `target` if `taken`, else to `next_ip`."""
    require_instruction_at(cpu, ip, next_ip)
    require_valid_target(cpu, target)
    cpu.unit.conditional(ip, next_ip, target, taken)


def jump(cpu: Cpu, ip: int, target: int) -> None:
    """Execute a direct near JMP."""
    require_instruction_at(cpu, ip)
    require_valid_target(cpu, target)
    cpu.unit.jump(ip, target)


def call(cpu: Cpu, ip: int, next_ip: int, target: int) -> None:
    """Execute a direct near CALL."""
    require_instruction_at(cpu, ip, next_ip)
    require_valid_target(cpu, target)
    cpu.unit.call(ip, next_ip, target)


def indirect_jump(cpu: Cpu, ip: int, target: int) -> None:
    """Execute an indirect near JMP."""
    require_instruction_at(cpu, ip)
    require_valid_target(cpu, target)
    cpu.unit.indirect_jump(ip, target)


def indirect_call(cpu: Cpu, ip: int, next_ip: int, target: int) -> None:
    """Execute an indirect near CALL."""
    require_instruction_at(cpu, ip, next_ip)
    require_valid_target(cpu, target)
    cpu.unit.indirect_call(ip, next_ip, target)


def ret(cpu: Cpu, ip: int, target: int, operand_size: int | None = None) -> None:
    """Execute a near RET; `operand_size` is 16, 32 or 64, by default the width of the code."""
    require_instruction_at(cpu, ip)
    require_valid_target(cpu, target)
    cpu.unit.ret(ip, target, operand_size)


def begin_transaction(cpu: Cpu, ip: int, next_ip: int) -> None:
    """Execute XBEGIN or an XACQUIRE lock at `ip`. A nested one sends no packet."""
    require_instruction_at(cpu, ip, next_ip)
    if cpu.unit.state.arch.in_tx:
        cpu.unit.state.ip = linear_address(cpu.unit, next_ip)
    else:
        cpu.unit.begin_transaction(ip, next_ip)


def end_transaction(cpu: Cpu, ip: int, next_ip: int, *, outermost: bool = True) -> None:
    """Execute XEND or an XRELEASE lock at `ip`, which commits if it is the outermost one.

    Raises IllegalEvent outside a transaction.
    """
    require_instruction_at(cpu, ip, next_ip)
    if outermost:
        cpu.unit.commit_transaction(ip, next_ip)
    else:
        require_legal(cpu.unit.state.arch.in_tx, "no transaction is under way")
        cpu.unit.state.ip = linear_address(cpu.unit, next_ip)


def abort_transaction(cpu: Cpu, ip: int, target: int) -> None:
    """Abort: XABORT at `ip`, or another cause before it; execution continues at `target`.

    Raises IllegalEvent outside a transaction.
    """
    require_reachable_ip(cpu, ip)
    require_valid_target(cpu, target)
    cpu.unit.abort_transaction(ip, target)


def ptwrite(cpu: Cpu, ip: int, next_ip: int, value: int, size: int = 8) -> None:
    """Execute PTWRITE at `ip` of 4 or 8 bytes. Raises UndefinedOpcode if it is not supported."""
    require_instruction_at(cpu, ip, next_ip)
    cpu.unit.ptwrite(ip, next_ip, value, size)


def pebs(
    cpu: Cpu,
    ip: int,
    groups: Mapping[int, BlockItems],
    *,
    four_bytes: bool = False,
    clocks: Mapping[int, int] | None = None,
    output: bool = True,
) -> None:
    """Add a PEBS record of the event at `ip`; see `TraceUnit.pebs`.

    `output` False: IA32_PEBS_ENABLE selects no output to the trace.
    """
    if output:
        cpu.unit.pebs(ip, groups, four_bytes=four_bytes, clocks=clocks)
