"""Near branches (sections 33.2.1.1 and 33.2.1.2).

IllegalEvent for one that is not reached from the current IP, or whose target does not exist.
"""

from __future__ import annotations

from rtit.processor.core import Cpu
from rtit.processor.sanity import require_here, require_instruction, require_target


def retire(cpu: Cpu, next_ip: int) -> None:
    """Instructions that change nothing have brought the processor to `next_ip`."""
    require_here(cpu, next_ip)
    cpu.unit.retire(next_ip)


def conditional(cpu: Cpu, ip: int, next_ip: int, target: int, taken: bool) -> None:
    """Jcc, J*CXZ or LOOP*: goes on at `target` if `taken`, else at `next_ip`."""
    require_instruction(cpu, ip, next_ip)
    require_target(cpu, target)
    cpu.unit.conditional(ip, next_ip, target, taken)


def jump(cpu: Cpu, ip: int, target: int) -> None:
    """Direct near JMP."""
    require_instruction(cpu, ip)
    require_target(cpu, target)
    cpu.unit.jump(ip, target)


def call(cpu: Cpu, ip: int, next_ip: int, target: int) -> None:
    """Direct near CALL."""
    require_instruction(cpu, ip, next_ip)
    require_target(cpu, target)
    cpu.unit.call(ip, next_ip, target)


def indirect_jump(cpu: Cpu, ip: int, target: int) -> None:
    """Indirect near JMP."""
    require_instruction(cpu, ip)
    require_target(cpu, target)
    cpu.unit.indirect_jump(ip, target)


def indirect_call(cpu: Cpu, ip: int, next_ip: int, target: int) -> None:
    """Indirect near CALL."""
    require_instruction(cpu, ip, next_ip)
    require_target(cpu, target)
    cpu.unit.indirect_call(ip, next_ip, target)


def ret(cpu: Cpu, ip: int, target: int, operand_size: int | None = None) -> None:
    """Near RET; `operand_size` 16, 32 or 64, by default the width of the code. IllegalEvent for
    another.
    """
    require_instruction(cpu, ip)
    require_target(cpu, target)
    cpu.unit.ret(ip, target, operand_size)
