"""Drives a processor model from an emulator. Guide: docs/howto/emulator.md."""

from __future__ import annotations

from functools import lru_cache

from rtit.processor import Processor
from rtit.unit.enables import linear_address
from rtit.unit.illegal_events import require_legal
from rtit.x86 import Instruction, InstructionClass, decode

_decode = lru_cache(maxsize=1 << 16)(decode)


class EmulatorDriver:
    """Feeds `cpu` with the instructions that an emulator shows before it executes each.

    `execute` derives the outcome of near branches from the address at which execution continues.
    Other effects of instructions, and external events, are not in the code: the emulator calls the
    event methods of `cpu` for them. `instructions` counts instructions that have started, a REP
    instruction once; it is also the clock.

    Before an event between two instructions, call `advance_to`, which completes the earlier one.
    """

    __slots__ = ("_last", "cpu", "instructions")

    def __init__(self, cpu: Processor) -> None:
        self.cpu = cpu
        self.instructions = 0
        self._last: Instruction | None = None

    def execute(self, ip: int, code: bytes) -> None:
        """Execute the instruction at `ip`; `code` starts with its bytes.

        Raises InputError for invalid bytes, and what `advance_to` raises.
        """
        last = self._last
        if last is not None and last.repeats and last.ip == ip:
            return
        instruction = _decode(bytes(code), ip, self.cpu.arch.bits)
        self.advance_to(ip)
        self.instructions += 1
        self.cpu.at(self.instructions)
        self._last = instruction

    def advance_to(self, ip: int) -> None:
        """Complete the last instruction; the one at `ip` is next.

        Raises IllegalEvent if the last instruction cannot lead to `ip`, and no event of `cpu` did.
        """
        last, self._last = self._last, None
        here = linear_address(self.cpu.unit, ip)
        if last is None or self.cpu.ip != linear_address(self.cpu.unit, last.ip):
            came = self.cpu.ip
            require_legal(
                came == here, f"events lead to {came:#x}, but execution continues at {ip:#x}"
            )
        else:
            _report_branch(self.cpu, last, ip)


def _report_branch(cpu: Processor, last: Instruction, ip: int) -> None:
    """Call the event of the last instruction, which led to `ip`."""
    at, kind, following = last.ip, last.kind, last.next_ip
    allowed = _possible_targets(last)
    if allowed is None:
        require_legal(
            False, f"{kind.name} at {at:#x} is over, but no event of the processor reported it"
        )
    elif allowed:
        require_legal(
            ip in allowed, f"{kind.name} at {at:#x} does not lead to {ip:#x}, and no event does"
        )
    if kind == InstructionClass.CONDITIONAL:
        assert last.target is not None
        cpu.conditional(at, following, last.target, ip != following)
    elif kind == InstructionClass.JUMP:
        cpu.jump(at, ip)
    elif kind == InstructionClass.CALL:
        cpu.call(at, following, ip)
    elif kind == InstructionClass.INDIRECT_JUMP:
        cpu.indirect_jump(at, ip)
    elif kind == InstructionClass.INDIRECT_CALL:
        cpu.indirect_call(at, following, ip)
    elif kind == InstructionClass.RETURN:
        cpu.ret(at, ip)
    else:
        cpu.retire(ip)


def _possible_targets(last: Instruction) -> tuple[int, ...] | None:
    """Return where an instruction can lead; () means anywhere, None that the code does not
    determine it.
    """
    if last.kind == InstructionClass.OTHER:
        return (last.next_ip,)
    if last.kind in (
        InstructionClass.INDIRECT_JUMP,
        InstructionClass.INDIRECT_CALL,
        InstructionClass.RETURN,
    ):
        return ()
    if last.target is None or last.kind == InstructionClass.XBEGIN:
        return None
    return (
        (last.target, last.next_ip) if last.kind == InstructionClass.CONDITIONAL else (last.target,)
    )
