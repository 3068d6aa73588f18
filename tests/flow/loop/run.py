"""A random path through a random program, on a processor that is traced with random parameters."""

from __future__ import annotations

from random import Random
from typing import Any

from flow.loop.program import AREAS, KERNEL, USERS, Instruction, make_program
from rtit.packets import PSB
from rtit.processor import ArchState, Processor
from rtit.registers import CTL, Msr
from rtit.unit.memory import Memory
from rtit.unit.parameters.table import PSB_EVENTS, PSB_PLUS_ORDER, Parameters

_BUFFER, _SIZE = 0x1000_0000, 1 << 22
_FLAGS = ("TSCEn", "MTCEn", "CYCEn")


def parameters(random: Random) -> Parameters:
    """Return random parameters that affect the form of packets, never the path."""
    forms: dict[str, tuple[Any, ...]] = {
        "tnt_form": ("short", "long", "mixed"),
        "tnt_flush": (0, 0, 1, 5),
        "tnt_flush_cycles": (0, 0, 7, 100),
        "deferred_tips": (0, 0, 1, 9),
        "ip_compression": ("shortest", "none", "sext48_only", "bdw"),
        "ret_compression_depth": (64, 64, 3, 0),
        "modeexec_suppress": (True, False),
        "psb_on_enable_order": ("before_pge", "after_pge"),
        "psb_delay": (0, 0, 100),
        "cyc_counter_bits": (12, 14, 19),
        "psb_guard_pad": (False, True),
        "pad_align": (1, 1, 4, 16),
        "held_bytes": (0, 0, 40),
    }
    order = list(PSB_PLUS_ORDER)
    random.shuffle(order)
    chosen = {name: random.choice(values) for name, values in forms.items()}
    extra = tuple(random.sample(sorted(PSB_EVENTS), random.randrange(3)))
    return Parameters(**chosen, psb_plus_order=tuple(order), psb_extra=extra)


class Run:
    """`truth`: the addresses of all instructions that ran while tracing was on. `begun`: how many
    of them, at most, had run at the first PSB. `deepest`: largest depth of open calls.
    """

    def __init__(self, seed: int, steps: int) -> None:
        self.random = Random(seed)
        self.program = make_program(self.random)
        self.entries = {
            area: [
                each
                for each in self.program.values()
                if self.area(each.ip) == area and each.kind != "trap"
            ]
            for area in AREAS
        }
        self.out = bytearray()
        self.cpu = Processor(
            memory=Memory(observer=lambda _, data: self.out.extend(data)),
            parameters=parameters(self.random),
            arch=ArchState.user64(),
        )
        self.cpu.set_msr(Msr.OUTPUT_BASE, _BUFFER)
        self.cpu.set_msr(Msr.OUTPUT_MASK_PTRS, _SIZE - 1)
        self.ctl = {name: self.random.randrange(2) for name in _FLAGS}
        self.ctl["DisRETC"] = int(self.random.randrange(6) == 0)
        self.ctl["CycThresh"] = self.random.choice((0, 0, 3, 9))
        self.clock = 0
        self.ip = self.back = self.anywhere(USERS[0]).ip
        self.calls: list[int] = []
        self.deepest = 0
        self.truth: list[int] = []
        self.on = False
        self.begun: int | None = None
        self.toggle()
        for _ in range(steps):
            self.step()
            self.deepest = max(self.deepest, len(self.calls))
            if self.begun is None and PSB in self.out:
                self.begun = len(self.truth)
        if self.on:
            self.toggle()

    @property
    def stream(self) -> bytes:
        return bytes(self.out)

    def sections(self) -> list[tuple[int, bytes]]:
        """The code of each area."""
        found: dict[int, bytes] = {}
        for each in self.program.values():
            area = self.area(each.ip)
            found[area] = found.get(area, b"") + each.code()
        return list(found.items())

    @staticmethod
    def area(ip: int) -> int:
        return max(area for area in AREAS if area <= ip)

    @property
    def kernel(self) -> bool:
        return self.ip >= KERNEL

    def anywhere(self, *areas: int) -> Instruction:
        return self.random.choice([each for area in areas for each in self.entries[area]])

    def toggle(self) -> None:
        self.on = not self.on
        if self.on:
            ctl = CTL.encode(TraceEn=1, OS=1, User=1, BranchEn=1, **self.ctl)
            self.cpu.set_msr(Msr.CTL, ctl, next_ip=self.ip)
        else:
            self.cpu.set_msr(Msr.CTL, 0, ip=self.ip)

    def step(self) -> None:
        self.clock += self.random.choice((0, 1, 1, 2, 2, 2, 30, 1500))
        self.cpu.at(self.clock)
        choice = self.random.random()
        # WRMSR runs in the kernel; it has no address here, and all before it has retired.
        if choice < 0.01 and self.kernel:
            self.cpu.retire(self.ip)
            self.toggle()
        elif choice < 0.02:
            self.cpu.retire(self.ip)
            self.cpu.unit.insert_psb()
        elif choice < 0.04 and not self.kernel:
            self.back = self.ip
            self.ip = self.anywhere(KERNEL).ip
            self.cpu.interrupt(self.back, self.ip)
        else:
            if self.on:
                self.truth.append(self.ip)
            self.execute(self.program[self.ip])

    def execute(self, each: Instruction) -> None:
        cpu, here, ip = self.cpu, self.area(each.ip), each.ip
        match each.kind:
            case "other":
                self.ip = each.next
                cpu.retire(self.ip)
            case "conditional":
                taken = self.random.random() < each.often
                self.ip = each.target if taken else each.next
                cpu.conditional(ip, each.next, each.target, taken)
            case "jump":
                self.ip = each.target
                cpu.jump(ip, each.target)
            case "call":
                self.ip = each.target
                self.calls.append(each.next)
                cpu.call(ip, each.next, each.target)
            case "indirect_jump":
                self.ip = self.anywhere(here).ip
                cpu.indirect_jump(ip, self.ip)
            case "indirect_call":
                self.ip = self.anywhere(here).ip
                self.calls.append(each.next)
                cpu.indirect_call(ip, each.next, self.ip)
            case "ret" | "retpoline":
                self.ip = self.popped(here, each.kind == "retpoline")
                cpu.ret(ip, self.ip)
            case _:
                self.leave(each)

    def popped(self, here: int, elsewhere: bool) -> int:
        to = self.calls.pop() if self.calls else 0
        back = self.program.get(to)
        if elsewhere or back is None or self.area(to) != here or back.kind == "trap":
            return self.anywhere(here).ip
        return to

    def leave(self, each: Instruction) -> None:
        cpu, ip = self.cpu, each.ip
        if each.kind == "syscall":
            self.back, self.ip = each.next, self.anywhere(KERNEL).ip
            cpu.syscall(ip, self.ip)
        elif each.kind == "resume":
            self.ip = self.back
            cpu.resume(self.ip, bits=AREAS[self.area(self.ip)])
        else:
            to = self.anywhere(*((KERNEL,) if self.kernel else USERS))
            self.ip = to.ip
            cpu.far(ip, self.ip, cs_l=to.bits == 64, cs_d=to.bits == 32)
