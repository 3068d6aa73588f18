"""A machine of one CPU with the generated kernel: executes its instructions under a trace unit, and
records the path.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from itertools import cycle

from kernel import made
from rtit.emulator_driver import EmulatorDriver
from rtit.processor import Processor
from rtit.registers import CTL, Msr
from rtit.unit.arch_state import ArchState
from rtit.unit.time_model import TimeModel
from rtit.x86 import Instruction, InstructionClass, decode

_BUFFER, _SIZE = 0x1000_0000, 1 << 20
USER_CR3 = 0x1000
"""Difference between the two CR3s of a process with isolated page tables."""
VALUE = 0x1234_5678
"""Payload of PTWRITE."""
ASLEEP = 5000
"""Ticks from MWAIT to the wake."""
BPF, BPF_CODE = made.MODULE + 0x3040, bytes.fromhex("90 31c0 c3")


@dataclass
class Thread:
    """`kernel` has the return addresses on its kernel stack; `ip` is where its user code
    continues.
    """

    pid: int
    tid: int
    cr3: int
    program: str
    ip: int
    kernel: list[int] = field(default_factory=list)


@dataclass(frozen=True)
class Poke:
    """Kernel code changed at a time (TSC)."""

    time: int
    address: int
    old: bytes
    new: bytes


@dataclass(frozen=True)
class Switch:
    """A switch to another thread: the times (TSC) of the records out and in."""

    time: int
    back: int
    before: Thread
    after: Thread


class Machine:
    """Executes the kernel and its threads under a trace unit; `trace` has the packets.

    `ran` is (tid, address) of each instruction; the kernel attributes code from __switch_to on to
    the next thread. `isolated`: the kernel has separate page tables; `cyc`: packets have exact
    times, else an MTC every 320 instructions; `more` are other bits of IA32_RTIT_CTL.
    """

    def __init__(self, *, isolated: bool = True, cyc: bool = True, **more: int) -> None:
        kernel = made.kernel()
        self.at = {name: address + made.MOVED for name, address in kernel.symbols.items()}
        self.memory = {
            address + made.MOVED: bytearray(code) for address, code in kernel.code.items()
        }
        module = made.loaded_module()
        self.at["made_open"] = module.symbols["made_open"]
        self.memory |= {address: bytearray(code) for address, code in module.code.items()}
        self._without_tracer()
        self.booted = {address: bytes(code) for address, code in self.memory.items()}
        self.memory[BPF] = bytearray(BPF_CODE)
        self._user = {name: made.user(name) for name in ("one", "two")}
        cr3 = cycle((0x1_0000, 0x2_0000))
        start = self._user["one"].symbols["_start"]
        self.threads = [
            Thread(100, 100, next(cr3), "one", start),
            Thread(200, 200, next(cr3), "two", start),
        ]
        waiting = ("after_call", "after_schedule", "after_switch")
        self.threads[1].kernel = [self.at[name] for name in waiting]
        self.isolated = isolated
        self.now = self.threads[0]
        self.named = self.now
        self.ran: list[tuple[int, int]] = []
        self.switches: list[Switch] = []
        self.pokes: list[Poke] = []
        self.interrupts: dict[int, int] = {}
        self._next: Thread | None = None
        self._then: int | None = None
        self._back: int | None = None
        self._out = 0, self.now
        self._slept = 0
        arch = ArchState(cpl=3, cr3=self._cr3(self.now, user=True))
        self._clock = TimeModel()
        self.cpu = Processor(arch=arch, time=self._clock)
        self.cpu.set_msr(Msr.OUTPUT_BASE, _BUFFER)
        self.cpu.set_msr(Msr.OUTPUT_MASK_PTRS, _SIZE - 1)
        self.cyc = cyc
        time = {"CYCEn": 1} if cyc else {"MTCEn": 1, "MTCFreq": 3}
        ctl = CTL.encode(TraceEn=1, User=1, OS=1, TSCEn=1, BranchEn=1, **time, **more)
        self.options = ctl
        self.ip = start
        self.cpu.set_msr(Msr.CTL, ctl, next_ip=self.ip)
        self.driver = EmulatorDriver(self.cpu)

    @property
    def time(self) -> int:
        """The TSC."""
        return self._clock.tsc(self.driver.instructions) + self._slept

    @property
    def trace(self) -> bytes:
        """End tracing, and return all packets."""
        self.driver.advance_to(self.ip)
        self.cpu.set_msr(Msr.CTL, 0, ip=self.ip)
        written = self.cpu.get_msr(Msr.OUTPUT_MASK_PTRS) >> 32
        return self.cpu.unit.output.memory.read(_BUFFER, written)

    def syscall(self, to: Thread | None = None, calls: str | int | None = None) -> None:
        """Run a system call that switches to another thread and calls a function, up to the return
        to user code.
        """
        self._next = to
        self._then = self.at[calls] if isinstance(calls, str) else calls
        user = self.ip < 1 << 63
        assert user
        while self.ip < 1 << 63:
            self._step()
        while self.ip >= 1 << 63:
            self._step()

    def interrupt(self, after: int = 1, *, cr2: int | None = None) -> None:
        """Run some instructions of user code, then an interrupt, or a page fault at `cr2`."""
        for _ in range(after):
            self._step()
        self.driver.advance_to(self.ip)
        self._back = self.ip
        handler = self.at["asm_interrupt"]
        if cr2 is None:
            self.cpu.interrupt(self.ip, handler, vector=0xEC)
        else:
            self.cpu.exception(self.ip, handler, cr2=cr2)
        self.ip = self.at["asm_interrupt"]
        while self.ip >= 1 << 63:
            self._step()

    def poke(self, label: str, new: bytes) -> None:
        """Change kernel code."""
        address = self.at[label]
        base = next(b for b, code in self.memory.items() if b <= address < b + len(code))
        offset = slice(address - base, address - base + len(new))
        old = bytes(self.memory[base][offset])
        self.memory[base][offset] = new
        self.pokes.append(Poke(self.time, address, old, new))

    def flip_static_key(self, on: bool) -> None:
        """Flip the static key."""
        jump = b"\xe9" + struct.pack("<i", self.at["key_on"] - self.at["key"] - 5)
        self.poke("key", jump if on else made.NOP)

    def _cr3(self, thread: Thread, *, user: bool) -> int:
        return thread.cr3 | (USER_CR3 if user and self.isolated else 0)

    def _without_tracer(self) -> None:
        for base, code in self.memory.items():
            for offset in range(len(code) - 4):
                (distance,) = struct.unpack_from("<i", code, offset + 1)
                if code[offset] == 0xE8 and base + offset + 5 + distance == self.at["__fentry__"]:
                    code[offset : offset + 5] = made.NOP

    def _fetch(self) -> bytes:
        spaces = self.memory if self.ip >> 63 else self._user[self.now.program].code
        base = next(b for b, code in spaces.items() if b <= self.ip < b + len(code))
        return bytes(spaces[base][self.ip - base : self.ip - base + 15])

    def _step(self) -> None:
        ip, code = self.ip, self._fetch()
        if ip == self.at["__switch_to"]:
            assert self._next is not None
            self.named = self._next
        self.driver.execute(ip, code)
        self.ran.append((self.named.tid, ip))
        if ip == self.at["tells_out"]:
            assert self._next is not None
            self._out = self.time, self.now
        if ip == self.at["tells_in"]:
            time, before = self._out
            self.switches.append(Switch(time, self.time, before, self.now))
        self.ip = self._after(decode(code, ip))
        if ip == self.at["stacks"]:
            assert self._next is not None
            self.now, self._next = self._next, None

    def _after(self, now: Instruction) -> int:
        kind, ip, following = now.kind, now.ip, now.next_ip
        stack = self.now.kernel
        if kind == InstructionClass.PTWRITE:
            self.cpu.ptwrite(ip, following, VALUE, 8 if ip == self.at["writes"] else 4)
            return following
        if ip == self.at["idles"]:
            self.cpu.mwait(ip, following, 0x21, 1)
            self._slept += ASLEEP
            self.cpu.wake(last=1, deepest=3, ticks=ASLEEP)
            return following
        if kind in (
            InstructionClass.OTHER,
            InstructionClass.INDIRECT_JUMP,
        ):  # to the next one: packets on the way
            return following
        if kind == InstructionClass.JUMP:
            assert now.target is not None
            return now.target
        if kind == InstructionClass.CALL:
            stack.append(following)
            assert now.target is not None
            return now.target
        if kind == InstructionClass.INDIRECT_CALL:
            stack.append(following)
            assert self._then is not None
            target, self._then = self._then, None
            return target
        if kind == InstructionClass.RETURN:
            return stack.pop()
        if kind == InstructionClass.CONDITIONAL:
            assert now.target is not None
            return now.target if self._taken(ip) else following
        if kind == InstructionClass.MOV_CR3:
            value = {
                self.at["to_kernel"]: self._cr3(self.now, user=False),
                self.at["to_user"]: self._cr3(self.now, user=True),
                self.at["switch_mm"]: self._cr3(self._next or self.now, user=False),
            }[ip]
            self.cpu.mov_cr3(ip, following, value)
            return following
        if kind == InstructionClass.SYSCALL:
            self.now.ip = following
            entry = self.at["entry_SYSCALL_64"]
            self.cpu.syscall(ip, entry)
            return entry
        assert kind == InstructionClass.FAR_TRANSFER
        back, self._back = self._back, None
        if back is None:
            self.cpu.resume(self.now.ip)
            return self.now.ip
        self.cpu.iret(ip, back, cpl=3)
        return back

    def _taken(self, ip: int) -> bool:
        if ip == self.at["if_not_switching"]:
            return self._next is None
        if ip == self.at["if_not_calling"]:
            return self._then is None
        assert ip == self.at["if_short"]
        return len(self.ran) % 2 == 0
