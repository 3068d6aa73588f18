"""The programs of the world, and the plan of a run."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

from rtit.unit.parameters.table import Parameters

USER, ENCLAVE, KERNEL = 0x40_1000, 0x7F00_0000_1000, 0xFFFF_FFFF_8100_0000
GUEST_USER, GUEST = 0x50_1000, 0xFFFF_FFFF_9100_0000
STEP = 8
"""Bytes of every instruction."""
LENGTH = 20
"""Instructions of a program without the last one."""
BUFFER, SIZE, TABLE = 0x1000_0000, 1 << 20, 0x10_0000
TIMING = frozenset(("CYC", "MTC", "TSC", "TMA", "CBR", "PAD"))

OWN = {
    USER: ("far", "syscall", "eenter", "ptwrite", "xbegin", "xend"),
    ENCLAVE: ("eexit", "ptwrite"),
    KERNEL: ("far", "resume", "cr3", "vm_entry", "mwait", "ptwrite", "cli"),
    GUEST: ("far", "resume", "cr3", "ptwrite", "xbegin", "xend", "cli"),
    GUEST_USER: ("far", "syscall", "ptwrite"),
}
NEAR = ("conditional", "jump", "call", "indirect_jump", "indirect_call", "ret")
STRAIGHT = frozenset(("other", "ptwrite", "mwait", "xbegin", "xend", "cli"))
TIPS = frozenset(("indirect_jump", "indirect_call", "far", "ret", "syscall", "resume", "vm_entry"))
WITH_FUP = frozenset(("eenter", "eexit"))
"""Branches that have a FUP with their own IP. An event before one would have the same packets, so
there is none but an abort, which MODE.TSX reports.
"""

Program = dict[int, tuple[str, int]]


def area(ip: int) -> int:
    """Return the area with the code at `ip`; raise ValueError if there is none."""
    for base in OWN:
        if base <= ip <= base + STEP * LENGTH:
            return base
    raise ValueError(f"{ip:#x} is in no area")


def make_program(random: Random) -> Program:
    """Return instructions of `STEP` bytes. Direct branches lead forward, so that every loop has
    packets.
    """
    program: Program = {}
    for base, own in OWN.items():
        for index in range(LENGTH):
            kinds = ("other", "conditional", "call", "call", "ret", "ret")
            kind = random.choice((*kinds, *NEAR, *own, *own))
            target = base + STEP * random.choice((index + 1, random.randint(index + 1, LENGTH)))
            if kind == "conditional":
                target = base + STEP * random.randrange(LENGTH)
            program[base + STEP * index] = kind, target
        program[base + STEP * LENGTH] = "indirect_jump", 0
    return program


@dataclass
class Plan:
    """Settings of a run.

    `overflows`: probability per instruction that one begins or ends; `opt_in`: share of traced
    enclaves.
    """

    ctl: dict[str, int]
    parameters: Parameters
    seed: int
    steps: int = 300
    conceal: dict[str, bool] = field(default_factory=dict)
    overflows: float = 0.0
    opt_in: float = 0.7
    regions: tuple[int, ...] = ()
