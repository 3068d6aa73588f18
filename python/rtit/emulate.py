"""Drive a processor from an emulator: the guide is docs/howto/emulator.md."""

from __future__ import annotations

from functools import lru_cache

from rtit.processor import Processor
from rtit.unit.enables import linear_address
from rtit.unit.illegal_events import require
from rtit.x86 import Class, Instruction, decode

_decode = lru_cache(maxsize=1 << 16)(decode)


class Driver:
    """Feeds `cpu` with the instructions that an emulator shows before it executes each.

    `execute` finds out what near branches did from where execution goes on. What instructions do
    besides and what comes from outside is not in the code: the emulator calls the event of `cpu`.
    `instructions` counts those that have begun, a REP instruction once; it is the clock, too.

    With an event that comes between two instructions, call `reach` before it, so that the
    instruction before is over.
    """

    __slots__ = ("_last", "cpu", "instructions")

    def __init__(self, cpu: Processor) -> None:
        self.cpu = cpu
        self.instructions = 0
        self._last: Instruction | None = None

    def execute(self, ip: int, code: bytes) -> None:
        """The instruction at `ip`, whose bytes `code` begins with, executes now.

        Raises InputError for bytes that are no instruction, and what `reach` raises.
        """
        last = self._last
        if last is not None and last.repeats and last.ip == ip:
            return
        now = _decode(bytes(code), ip, self.cpu.arch.bits)
        self.reach(ip)
        self.instructions += 1
        self.cpu.at(self.instructions)
        self._last = now

    def reach(self, ip: int) -> None:
        """The instruction that was executed last is over, and the one at `ip` comes next.

        Raises IllegalEvent if it cannot lead there, and no event of `cpu` does.
        """
        last, self._last = self._last, None
        here = linear_address(self.cpu.unit, ip)
        if last is None or self.cpu.ip != linear_address(self.cpu.unit, last.ip):
            came = self.cpu.ip
            require(came == here, f"events lead to {came:#x}, and execution goes on at {ip:#x}")
        else:
            _near(self.cpu, last, ip)


def _near(cpu: Processor, last: Instruction, ip: int) -> None:
    """The event of `last`, which led to `ip`."""
    at, kind, following = last.ip, last.kind, last.next_ip
    allowed = _leads_to(last)
    if allowed is None:
        require(False, f"{kind.name} at {at:#x} is over, but no event of the processor told of it")
    elif allowed:
        require(
            ip in allowed, f"{kind.name} at {at:#x} does not lead to {ip:#x}, and no event does"
        )
    if kind == Class.CONDITIONAL:
        assert last.target is not None
        cpu.conditional(at, following, last.target, ip != following)
    elif kind == Class.JUMP:
        cpu.jump(at, ip)
    elif kind == Class.CALL:
        cpu.call(at, following, ip)
    elif kind == Class.INDIRECT_JUMP:
        cpu.indirect_jump(at, ip)
    elif kind == Class.INDIRECT_CALL:
        cpu.indirect_call(at, following, ip)
    elif kind == Class.RETURN:
        cpu.ret(at, ip)
    else:
        cpu.retire(ip)


def _leads_to(last: Instruction) -> tuple[int, ...] | None:
    """Where an instruction can lead: () anywhere, None if the code alone does not say."""
    if last.kind == Class.OTHER:
        return (last.next_ip,)
    if last.kind in (Class.INDIRECT_JUMP, Class.INDIRECT_CALL, Class.RETURN):
        return ()
    if last.target is None or last.kind == Class.XBEGIN:
        return None
    return (last.target, last.next_ip) if last.kind == Class.CONDITIONAL else (last.target,)
