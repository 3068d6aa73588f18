"""Random programs and their settings."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from hypothesis import strategies as st

from rtit.unit.parameters.table import PSB_PLUS_ORDER, Parameters

USER, HIGH, KERNEL = 0x40_1000, 0x7F00_0000_1000, 0xFFFF_FFFF_8100_0000
STEP = 8
"""Bytes of every instruction."""
LENGTH = 24
"""Instructions of a program without the last one."""
CR3S = (0x5000, 0x7000)
BUFFER, SIZE, TABLE = 0x1000_0000, 1 << 22, 0x10_0000
TRANSFERS = {"indirect_jump", "indirect_call", "far", "ret", "syscall", "resume"}

Program = dict[int, tuple[str, int]]


def region_address(number: int) -> int:
    """Return the address of ToPA region `number`."""
    return BUFFER + number * 0x10_0000


def make_program(random: Random) -> Program:
    """Return instructions of `STEP` bytes. Direct branches lead forward, so that every loop has
    packets.
    """
    program: Program = {}
    for base in (USER, HIGH, KERNEL):
        kernel = base == KERNEL
        for index in range(LENGTH):
            kinds = ["other", "conditional", "conditional", "jump", "call", "indirect_jump"]
            kinds += ["call", "call", "indirect_call", "ret", "ret", "ret", "ret"]
            kinds += ["far"] + (["resume", "cr3"] if kernel else ["syscall"])
            kind = random.choice(kinds)
            target = base + STEP * random.choice((index + 1, random.randint(index + 1, LENGTH)))
            if kind == "conditional":
                target = base + STEP * random.randrange(LENGTH)
            program[base + STEP * index] = kind, target
        program[base + STEP * LENGTH] = ("resume" if kernel else "indirect_jump"), 0
    return program


@dataclass
class Settings:
    ctl: dict[str, int]
    ranges: list[tuple[int, int, int]]
    parameters: Parameters
    seed: int
    steps: int

    @property
    def gap(self) -> int:
        return max(1, (1 << self.ctl["CycThresh"]) >> 1)


@st.composite
def all_settings(draw: st.DrawFn) -> Settings:
    def flag() -> int:
        return draw(st.integers(0, 1))

    names = ("OS", "TSCEn", "MTCEn", "CYCEn", "CR3Filter")
    ctl = {name: flag() for name in names} | {"BranchEn": 1}
    # Mostly settings that trace much.
    ctl |= {"User": int(draw(st.integers(0, 3)) < 3), "DisRETC": int(draw(st.integers(0, 3)) == 3)}
    ctl |= {"MTCFreq": draw(st.integers(0, 9)), "CycThresh": draw(st.integers(0, 15))}
    ctl |= {"InjectPsbPmiOnEnable": flag()}
    ranges = []
    for number in range(draw(st.integers(0, 2))):
        base = draw(st.sampled_from((USER, HIGH, KERNEL)))
        first = draw(st.integers(0, LENGTH))
        last = draw(st.integers(first, LENGTH))
        ctl[f"ADDR{number}_CFG"] = draw(st.sampled_from((1, 1, 2)))
        ranges.append((ctl[f"ADDR{number}_CFG"], base + STEP * first, base + STEP * last))
    form = draw(st.sampled_from(("short", "long", "mixed")))
    parameters = Parameters(
        tnt_form=form,  # type: ignore[arg-type]
        tnt_flush=draw(st.integers(0, 6)),
        ip_compression=draw(st.sampled_from(("shortest", "none", "sext48_only", "bdw"))),
        ret_compression_depth=draw(st.sampled_from((64, 5, 1, 0))),
        modeexec_suppress=draw(st.booleans()),
        psb_on_enable_order=draw(st.sampled_from(("before_pge", "after_pge"))),
        psb_delay=draw(st.integers(0, 300)),
        psb_plus_order=tuple(draw(st.permutations(PSB_PLUS_ORDER))),
        cyc_counter_bits=draw(st.integers(12, 19)),
    )
    return Settings(
        ctl,
        ranges,
        parameters,
        draw(st.integers(0, 1 << 32)),
        draw(st.sampled_from((900, 300, 40))),
    )
