"""A random path through a program on a traced processor; the run records the expected path."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

from rtit.packets import Packet, iterate_packets
from rtit.processor import ArchState, Processor
from rtit.registers import CTL, STATUS, Msr
from rtit.unit.memory import Memory
from rtit.unit.output import TopaEntry, write_topa_table
from unit.execution.program import (
    BUFFER,
    CR3S,
    HIGH,
    KERNEL,
    LENGTH,
    SIZE,
    STEP,
    TABLE,
    USER,
    Program,
    Settings,
    make_program,
    region_address,
)


@dataclass
class Run:
    """Executes a program, and records the truth: the IPs of instructions that began while the
    filters admitted them.
    """

    chosen: Settings
    sink: Callable[[bytes], None]
    regions: tuple[int, ...] = ()
    program: Program = field(init=False)
    truth: list[int] = field(default_factory=list)
    active: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.random = Random(self.chosen.seed)
        self.program = make_program(self.random)
        self.cpu = Processor(
            memory=Memory(observer=lambda _, data: self.sink(data)),
            parameters=self.chosen.parameters,
            arch=ArchState.user64(cr3=CR3S[0]),
        )
        self.install()
        self.cpu.set_msr(Msr.CR3_MATCH, CR3S[0])
        for number, (_, first, last) in enumerate(self.chosen.ranges):
            self.cpu.set_msr(Msr.ADDR0_A + 2 * number, first)
            self.cpu.set_msr(Msr.ADDR0_B + 2 * number, last)
        self.clock, self.started = 0, 0
        self.ip, self.cr3, self.kernel, self.back = USER, CR3S[0], False, USER
        self.calls: dict[bool, list[int]] = {False: [], True: []}
        self.triggered = self.context = self.inside = False

    def install(self) -> None:
        """Set up a single range, or a circular table with a region of each size."""
        if not self.regions:
            self.cpu.set_msr(Msr.OUTPUT_BASE, BUFFER)
            self.cpu.set_msr(Msr.OUTPUT_MASK_PTRS, SIZE - 1)
            return
        entries = [
            TopaEntry(region_address(number), size) for number, size in enumerate(self.regions)
        ]
        write_topa_table(self.cpu.unit.output.memory, TABLE, [*entries, TopaEntry(TABLE, end=True)])
        self.cpu.set_msr(Msr.OUTPUT_BASE, TABLE)
        self.chosen.ctl["ToPA"] = 1

    # The model of section 33.2.6, literal and slow.

    def enable(self) -> None:
        self.cpu.set_msr(Msr.CTL, CTL.encode(TraceEn=1, **self.chosen.ctl), next_ip=self.ip)
        self.triggered, self.started = True, self.clock
        self.context, self.inside = False, not any(c == 1 for c, _, _ in self.chosen.ranges)
        self.entered(self.ip)

    def disable(self) -> None:
        self.cpu.set_msr(Msr.CTL, 0, ip=self.ip)
        self.cpu.set_msr(Msr.STATUS, self.cpu.get_msr(Msr.STATUS) & ~STATUS["Stopped"].mask)
        self.untrigger()

    def untrigger(self) -> None:
        if self.triggered:
            self.triggered = False
            self.active.append(self.clock - self.started)

    def allowed(self) -> bool:
        ctl = self.chosen.ctl
        level = ctl["OS"] if self.kernel else ctl["User"]
        return bool(level) and not (ctl["CR3Filter"] and self.cr3 != CR3S[0])

    def entered(self, target: int) -> None:
        if not self.triggered:
            return
        self.context = self.allowed()
        if self.context:
            self.inside = self.passes(target)
            if 2 in self.hit(target):
                self.untrigger()

    def hit(self, ip: int) -> set[int]:
        return {cfg for cfg, first, last in self.chosen.ranges if first <= ip <= last}

    def passes(self, ip: int) -> bool:
        return 1 in self.hit(ip) or not any(cfg == 1 for cfg, _, _ in self.chosen.ranges)

    def note(self) -> None:
        if self.triggered and self.context and self.inside:
            self.truth.append(self.ip)

    # Execution

    def step(self) -> None:
        random = self.random
        self.clock += random.choice(
            (0, 1, 1, 3, 40, 1000, 9000) if random.random() < 0.1 else (1, 2)
        )
        self.cpu.at(self.clock)
        choice = random.random()
        if choice < 0.005:
            self.cpu.unit.insert_psb()
        elif choice < 0.01:
            (self.disable if self.cpu.unit.registers.trace_en else self.enable)()
        elif choice < 0.04 and not self.kernel:
            name = random.choice(("interrupt", "exception", "software_interrupt"))
            handler = KERNEL + STEP * random.randrange(LENGTH)
            self.back, self.kernel = self.ip, True
            getattr(self.cpu, name)(self.ip, handler)
            self.arrive(handler)
        else:
            self.note()
            self.execute(*self.program[self.ip])

    def arrive(self, target: int) -> None:
        self.entered(target)
        self.ip = target

    def anywhere(self) -> int:
        base = KERNEL if self.kernel else self.random.choice((USER, HIGH))
        return base + STEP * self.random.randrange(LENGTH + 1)

    def execute(self, kind: str, target: int) -> None:
        cpu, ip, following = self.cpu, self.ip, self.ip + STEP
        if kind == "other":
            self.ip = following
        elif kind == "conditional":
            taken = self.random.random() < 0.5
            cpu.conditional(ip, following, target, taken)
            if taken:
                self.arrive(target)
            else:
                self.ip = following
        elif kind == "jump":
            cpu.jump(ip, target)
            self.arrive(target)
        elif kind == "call":
            cpu.call(ip, following, target)
            if target != following:
                self.calls[self.kernel].append(following)
            self.arrive(target)
        elif kind == "cr3":
            self.move_cr3(following)
        elif kind == "syscall":
            handler = KERNEL + STEP * self.random.randrange(LENGTH)
            self.back, self.kernel = following, True
            cpu.syscall(ip, handler)
            self.arrive(handler)
        elif kind == "resume":
            self.kernel = False
            cpu.resume(self.back)
            self.arrive(self.back)
        else:
            self.indirect(kind, following)

    def move_cr3(self, following: int) -> None:
        self.cr3 = self.random.choice(CR3S)
        self.cpu.mov_cr3(self.ip, following, self.cr3)
        if self.triggered:
            was, self.context = self.context, self.allowed()
            if self.context and not was:
                self.inside = self.passes(following)
            # "executed in" a TraceStop range (table 33-28), not followed by one
            if self.context and 2 in self.hit(self.ip):
                self.untrigger()
        self.ip = following

    def indirect(self, kind: str, following: int) -> None:
        target = self.anywhere()
        if kind == "ret":
            own = self.calls[self.kernel]
            if own and self.random.random() < 0.95:
                target = own.pop()
            self.cpu.ret(self.ip, target)
        elif kind == "indirect_call":
            self.calls[self.kernel].append(following)
            self.cpu.indirect_call(self.ip, following, target)
        else:
            getattr(self.cpu, kind)(self.ip, target)
        self.arrive(target)

    def go(self, steps: int) -> None:
        for _ in range(steps):
            self.step()


def trace_program(
    chosen: Settings, regions: tuple[int, ...] = ()
) -> tuple[Run, list[Packet], bytes]:
    out = bytearray()
    run = Run(chosen, out.extend, regions)
    run.enable()
    run.go(chosen.steps)
    if run.cpu.unit.registers.trace_en:
        run.disable()
    return run, list(iterate_packets(bytes(out))), bytes(out)
