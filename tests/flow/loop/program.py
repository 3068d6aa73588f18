"""Random programs as machine code: conditions, loops, calls, recursion, retpolines, far transfers,
in code of 64, 32 and 16 bits, and a kernel that they enter and leave.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from scenario.encoding import encode

AREAS = {
    0x40_1000: 64,
    0x7F00_0000_1000: 64,
    0x9_0000: 32,
    0x2000: 16,
    0xFFFF_FFFF_8100_0000: 64,
}
"""Address and bits of each code area. The last area is the kernel."""

KERNEL = 0xFFFF_FFFF_8100_0000
USERS = tuple(area for area in AREAS if area != KERNEL)

DIRECT = ("conditional", "jump", "call", "trap")
NEAR = ("indirect_jump", "indirect_call", "ret")
KINDS = ("other", "conditional", "conditional", "jump", "call", "call")


@dataclass(frozen=True)
class Instruction:
    """`target`: of a direct branch. `often`: probability that a conditional branch is taken. A RET
    returns to its CALL, unless a branch between them left the nesting.
    """

    ip: int
    kind: str
    size: int
    target: int
    bits: int
    often: float

    @property
    def next(self) -> int:
        return self.ip + self.size

    def code(self) -> bytes:
        kind = {"retpoline": "ret", "trap": "jump"}.get(self.kind, self.kind)
        return encode(kind, self.ip, self.size, self.target, self.bits, None)


Program = dict[int, Instruction]


def make_program(random: Random) -> Program:
    program: Program = {}
    for area, bits in AREAS.items():
        for each in _area(random, area, bits):
            program[each.ip] = each
    return program


def _area(random: Random, area: int, bits: int) -> list[Instruction]:
    # Kind, which instruction a direct branch leads to, how often a conditional one is taken.
    plan: list[tuple[str, int, float]] = []
    wanted = random.choice((6, 15, 40))
    while len(plan) < wanted:
        at = len(plan)
        choice = random.random()
        if choice < 0.1:
            # f: jcc out; call f; out: ret
            plan += [("conditional", at + 2, 0.02), ("call", at, 0), ("ret", 0, 0)]
        elif choice < 0.15:
            # call over; trap: jmp trap; over: mov [rsp], rax; ret
            plan += [("call", at + 2, 0), ("trap", at + 1, 0), ("other", 0, 0), ("retpoline", 0, 0)]
        elif choice < 0.2:
            # A loop: dec; jnz
            plan += [("other", 0, 0), ("conditional", at, 0.9)]
        else:
            own = ("resume", "resume") if area == KERNEL else ("syscall",) if bits == 64 else ()
            kind = random.choice((*KINDS, *NEAR, "ret", "far", "far", *own))
            # Direct jumps and calls go forward, so that no loop is without a packet.
            first = 0 if kind == "conditional" else at + 1
            plan.append((kind, random.randrange(first, wanted + 1), random.random()))
    plan.append(("resume" if area == KERNEL else "indirect_jump", 0, 0))
    # No path leads to a trap.
    plan = [
        (kind, to + (kind != "trap" and plan[to][0] == "trap"), often) for kind, to, often in plan
    ]
    sizes = [_size(random, kind, bits) for kind, _, _ in plan]
    ips = [area]
    for size in sizes:
        ips.append(ips[-1] + size)
    return [
        Instruction(ip, kind, size, ips[to] if kind in DIRECT else 0, bits, often)
        for ip, size, (kind, to, often) in zip(ips, sizes, plan, strict=False)
    ]


def _size(random: Random, kind: str, bits: int) -> int:
    near = {"conditional": 2, "jump": 1, "call": 1, "trap": 1}
    if kind in near:
        return near[kind] + (2 if bits == 16 else 4) + random.choice((0, 0, 1, 3))
    return random.choice((2, 2, 3, 7))
