"""Effects of output parameters on the unit (section 33.2.7)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from rtit.processor import Processor
from rtit.registers import CTL, FULL, Msr, Profile
from rtit.unit.memory import Memory, PhysicalRange
from rtit.unit.output import TopaEntry, write_topa_table
from rtit.unit.parameters.table import Parameters

TABLE, SECOND = 0x10_0000, 0x11_0000
A, B = 0x20_0000, 0x30_0000


def start(
    *entries: TopaEntry,
    profile: Profile = FULL,
    smrr: tuple[PhysicalRange, ...] = (),
    **parameters: Any,
) -> Processor:
    cpu = Processor(profile=profile, memory=Memory(smrr=smrr), parameters=Parameters(**parameters))
    write_topa_table(cpu.unit.output.memory, TABLE, entries)
    write_topa_table(cpu.unit.output.memory, SECOND, [TopaEntry(B), TopaEntry(TABLE, end=True)])
    cpu.set_msr(Msr.OUTPUT_BASE, TABLE)
    ctl = CTL.encode(TraceEn=1, User=1, BranchEn=1, ToPA=1, PSBFreq=5)
    cpu.set_msr(Msr.CTL, ctl, next_ip=0x1000)
    return cpu


def fill(cpu: Processor, size: int) -> None:
    """Write PADs until the region holds `size` bytes."""
    cpu.unit.pad(size - (cpu.get_msr(Msr.OUTPUT_MASK_PTRS) >> 32))


@pytest.mark.parametrize(("follow", "base", "index"), [("eager", SECOND, 0), ("lazy", TABLE, 1)])
def test_end_entry_is_followed_early_or_late(follow: str, base: int, index: int) -> None:
    cpu = start(TopaEntry(A), TopaEntry(SECOND, end=True), topa_follow=follow)
    fill(cpu, 4096)
    assert cpu.get_msr(Msr.OUTPUT_BASE) == base
    assert cpu.get_msr(Msr.OUTPUT_MASK_PTRS) == index << 7 | 0x7F
    cpu.unit.pad(1)
    assert cpu.get_msr(Msr.OUTPUT_BASE) == SECOND
    assert cpu.get_msr(Msr.OUTPUT_MASK_PTRS) == 1 << 32 | 0x7F


@pytest.mark.parametrize("margin", [512, 100, 0])
def test_single_region_pmi_precedes_the_end_by_the_parameter(margin: int) -> None:
    given: dict[str, Any] = {} if margin == 512 else {"topa_pmi_margin": margin}
    profile = replace(FULL, multi_entry=False)
    cpu = start(TopaEntry(A, interrupt=True), TopaEntry(TABLE, end=True), profile=profile, **given)
    fill(cpu, 4096 - margin - 1)
    assert cpu.unit.state.pmis == 0
    cpu.unit.pad(1)
    assert cpu.unit.state.pmis == 1


@pytest.mark.parametrize(("policy", "error"), [("drop", False), ("error", True)])
def test_region_in_restricted_memory_is_handled_by_parameter(policy: str, error: bool) -> None:
    smrr = ((A + 0x800, A + 0x900),)
    cpu = start(TopaEntry(A), TopaEntry(TABLE, end=True), smrr=smrr, smrr_policy=policy)
    fill(cpu, 0x7FF)
    assert not cpu.unit.error
    cpu.unit.pad(2)
    assert cpu.unit.error == error
    cpu.unit.pad(0x200)
    assert (cpu.get_msr(Msr.OUTPUT_MASK_PTRS) >> 32) == (0x800 if error else 0xA01)
