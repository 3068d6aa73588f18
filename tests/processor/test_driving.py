"""Use of `Processor` by a program: state can be set, and mistakes raise errors at once."""

from __future__ import annotations

import pytest

from rtit.errors import GeneralProtection, IllegalEvent
from rtit.processor import ArchState, Processor
from rtit.registers import CTL, FULL, Msr
from rtit.unit.memory import Memory

BUFFER = 0x10_0000
ON = CTL.encode(TraceEn=1, BranchEn=1, User=1, DisRETC=1)


def start_traced() -> Processor:
    cpu = Processor()
    cpu.set_msr(Msr.OUTPUT_BASE, BUFFER)
    cpu.set_msr(Msr.OUTPUT_MASK_PTRS, 0xFFF)
    cpu.set_msr(Msr.CTL, ON, next_ip=0x1000)
    return cpu


def test_state_can_be_set_while_tracing_is_off() -> None:
    cpu = Processor()
    elsewhere = ArchState(cpl=0, cr3=0x7000, cs_l=False, cs_d=True)
    cpu.arch = elsewhere
    assert cpu.arch == elsewhere
    cpu.resume(0x1000)
    assert cpu.arch.cr3 == 0x7000


def test_state_cannot_be_set_while_tracing_is_on() -> None:
    cpu = start_traced()
    before = cpu.snapshot()
    with pytest.raises(IllegalEvent, match="TraceEn is 1"):
        cpu.arch = ArchState(cpl=0)
    assert cpu.snapshot() == before
    cpu.set_msr(Msr.CTL, 0, ip=0x1000)
    cpu.arch = ArchState(cpl=0)
    assert cpu.arch.cpl == 0


def test_restored_snapshot_equals_the_processor() -> None:
    cpu = start_traced()
    cpu.indirect_jump(0x1000, 0x2000)
    before = cpu.snapshot()
    cpu.syscall(0x2000, 0xFFFF_FFFF_8100_0000)
    cpu.mov_cr3(0xFFFF_FFFF_8100_0000, 0xFFFF_FFFF_8100_0003, 0x9000)
    assert cpu.snapshot() != before
    cpu.restore(before)
    assert (cpu.snapshot(), cpu.arch, cpu.ip) == (before, ArchState.user64(), 0x2000)


@pytest.mark.parametrize("scheme", [{}, {"ToPA": 1}])
def test_enabling_without_an_output_is_rejected(scheme: dict[str, int]) -> None:
    cpu = Processor()
    before = cpu.snapshot()
    with pytest.raises(IllegalEvent, match="OUTPUT_BASE"):
        cpu.set_msr(Msr.CTL, ON | CTL.encode(**scheme), next_ip=0x1000)
    assert cpu.snapshot() == before
    # Errors of the architecture take precedence.
    with pytest.raises(GeneralProtection):
        cpu.set_msr(Msr.CTL, ON | 1 << 63)


def test_region_at_address_0_is_valid() -> None:
    cpu = Processor()
    cpu.set_msr(Msr.OUTPUT_MASK_PTRS, 0xFFF)
    cpu.set_msr(Msr.CTL, ON, next_ip=0x1000)
    assert cpu.unit.output.memory.read(0, 2) == b"\x02\x82"


def test_fabric_output_without_receiver_is_rejected() -> None:
    fabric = CTL.encode(FabricEn=1)
    cpu = Processor(profile=FULL)
    before = cpu.snapshot()
    with pytest.raises(IllegalEvent, match="made without `fabric`"):
        cpu.set_msr(Msr.CTL, ON | fabric, next_ip=0x1000)
    assert cpu.snapshot() == before
    out = bytearray()
    cpu = Processor(fabric=out.extend, memory=Memory())
    cpu.set_msr(Msr.CTL, ON | fabric, next_ip=0x1000)
    assert out.startswith(b"\x02\x82")
