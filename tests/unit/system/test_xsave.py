"""XSAVES and XRSTORS of state component 8 (section 33.3.5.2; layout: Volume 1, 13.5.6)."""

from __future__ import annotations

import struct
from dataclasses import replace
from typing import Any

import pytest

from rtit.errors import GeneralProtection
from rtit.packets import iterate_packets
from rtit.processor import ArchState, Processor
from rtit.registers import BROADWELL, CTL, FULL, Msr
from rtit.unit.events.xsave import IA32_XSS
from rtit.unit.memory import Memory

BUFFER = 0x100_0000
TRACED = CTL.encode(TraceEn=1, OS=1, User=1, BranchEn=1)
ORDER = (
    Msr.CTL,
    Msr.OUTPUT_BASE,
    Msr.OUTPUT_MASK_PTRS,
    Msr.STATUS,
    Msr.CR3_MATCH,
    Msr.ADDR0_A,
    Msr.ADDR0_B,
    Msr.ADDR1_A,
    Msr.ADDR1_B,
)


class Machine:
    """A processor at CPL 0 that may save PT state, and its output."""

    def __init__(self, **more: Any) -> None:
        self.out = bytearray()
        memory = Memory(observer=lambda _, data: self.out.extend(data))
        self.cpu = Processor(checked=False, memory=memory, arch=ArchState(cpl=0), **more)
        if self.cpu.unit.profile.single_range:
            self.cpu.wrmsr(Msr.OUTPUT_BASE, BUFFER)
            self.cpu.wrmsr(Msr.OUTPUT_MASK_PTRS, 0xFFFF)
        self.cpu.wrmsr(IA32_XSS, 1 << 8)

    def names(self) -> list[str]:
        names = [packet.name for packet in iterate_packets(bytes(self.out))]
        self.out.clear()
        return names

    def values(self) -> list[int]:
        return [self.cpu.get_msr(msr) for msr in ORDER]


def component(*values: int) -> bytes:
    return struct.pack("<9Q", *values).ljust(128, b"\0")


def unpack(content: bytes | None) -> list[int]:
    assert content is not None
    assert len(content) == 128
    assert not any(content[72:])
    return list(struct.unpack_from("<9Q", content))


@pytest.mark.spec("XSV-001")
def test_component_has_nine_msrs_in_order() -> None:
    machine = Machine()
    cpu = machine.cpu
    values = {msr: 0x1000 * (n + 1) for n, msr in enumerate(ORDER[4:])}
    for msr, value in values.items():
        cpu.wrmsr(msr, value)
    cpu.wrmsr(Msr.STATUS, 1 << 5)
    cpu.wrmsr(Msr.CTL, TRACED & ~1)
    saved = unpack(cpu.xsaves(0x1000, 0x1004))
    assert saved == [TRACED & ~1, BUFFER, 0xFFFF, 1 << 5, *values.values()]
    assert cpu.ip == 0x1004


@pytest.mark.spec("XSV-002", "XSV-001", "MSRGEN-007")
def test_xsaves_clears_trace_en_between_ctl_and_the_rest() -> None:
    machine = Machine()
    cpu = machine.cpu
    cpu.wrmsr(Msr.CTL, TRACED, next_ip=0x1000)
    cpu.conditional(0x1000, 0x1002, 0x1010, True)
    machine.names()
    saved = unpack(cpu.xsaves(0x1010, 0x1014))
    assert machine.names() == ["TNT", "FUP", "TIP.PGD"]
    assert saved[0] == TRACED
    assert cpu.get_msr(Msr.CTL) == TRACED & ~1
    # Everything is flushed before the output pointer is read.
    assert saved[1:] == machine.values()[1:]


@pytest.mark.spec("XSV-002", "MSRGEN-009")
def test_saved_output_pointer_is_exact() -> None:
    written = bytearray()
    cpu = Processor(
        checked=False,
        memory=Memory(observer=lambda _, data: written.extend(data)),
        arch=ArchState(cpl=0),
    )
    cpu.wrmsr(Msr.OUTPUT_BASE, BUFFER)
    cpu.wrmsr(Msr.OUTPUT_MASK_PTRS, 0xFFFF)
    cpu.wrmsr(IA32_XSS, 1 << 8)
    cpu.wrmsr(Msr.CTL, TRACED, next_ip=0x1000)
    for n in range(20):
        cpu.indirect_jump(0x1000 + n, 0x2000 + n * 0x1_0001)
    saved = unpack(cpu.xsaves(0x1010, 0x1014))
    assert saved[2] >> 32 == len(written)
    assert saved[3] >> 32 & 0x1FFFF == len(written)


@pytest.mark.spec("XSV-001", "XSV-002", "XSV-004")
def test_xsave_area_survives_another_thread() -> None:
    """The stream of the first thread continues in its own buffer."""
    machine = Machine()
    cpu = machine.cpu
    cpu.wrmsr(Msr.CTL, TRACED, next_ip=0x1000)
    first = cpu.xsaves(0x1000, 0x1004)
    cpu.xrstors(0x1004, 0x1008, component(0, 0x200_0000, 0xFFF, 0, 0, 0, 0, 0, 0))
    assert cpu.get_msr(Msr.OUTPUT_BASE) == 0x200_0000
    cpu.wrmsr(Msr.CTL, TRACED, next_ip=0x1008)
    second = cpu.xsaves(0x1008, 0x100C)
    machine.names()
    cpu.xrstors(0x100C, 0x1010, first)
    assert cpu.get_msr(Msr.CTL) == TRACED
    assert machine.names() == ["CBR", "MODE.Exec", "TIP.PGE"]
    offset = unpack(first)[2] >> 32
    cpu.wrmsr(Msr.CTL, TRACED & ~1, ip=0x1010)
    assert cpu.get_msr(Msr.OUTPUT_BASE) == BUFFER
    assert cpu.get_msr(Msr.OUTPUT_MASK_PTRS) >> 32 > offset
    assert unpack(second)[1] == 0x200_0000


@pytest.mark.spec("XSV-004")
def test_manual_save_equals_xsaves() -> None:
    """RDMSR and WRMSR in the order of section 33.3.5.1 save what XSAVES saves."""
    states = []
    for by_hand in (False, True):
        cpu = Machine().cpu
        cpu.wrmsr(Msr.CR3_MATCH, 0x5000)
        cpu.wrmsr(Msr.CTL, TRACED, next_ip=0x1000)
        cpu.conditional(0x1000, 0x1002, 0x1010, True)
        if by_hand:
            ctl = cpu.get_msr(Msr.CTL)
            cpu.wrmsr(Msr.CTL, ctl & ~1, ip=0x1010, next_ip=0x1014)
            states.append([ctl, *(cpu.get_msr(msr) for msr in ORDER[1:])])
            for msr, value in zip(ORDER[1:], states[-1][1:], strict=True):
                cpu.wrmsr(msr, value)
            cpu.wrmsr(Msr.CTL, ctl, next_ip=0x1018)
        else:
            saved = cpu.xsaves(0x1010, 0x1014)
            states.append(unpack(saved))
            cpu.xrstors(0x1014, 0x1018, saved)
        states.append([cpu.get_msr(msr) for msr in ORDER])
    assert states[0] == states[2]
    assert states[1] == states[3]


@pytest.mark.spec("XSV-003")
def test_xrstors_while_tracing_faults() -> None:
    machine = Machine()
    cpu = machine.cpu
    cpu.wrmsr(Msr.CTL, TRACED, next_ip=0x1000)
    before = cpu.unit.snapshot()
    for image in (None, component(TRACED, BUFFER, 0xFFFF, 0, 0, 0, 0, 0, 0)):
        with pytest.raises(GeneralProtection, match="TraceEn=1"):
            cpu.xrstors(0x1000, 0x1004, image)
        assert cpu.unit.snapshot() == before


@pytest.mark.spec("XSV-001")
def test_initial_configuration_is_zero() -> None:
    cpu = Machine().cpu
    cpu.wrmsr(Msr.CR3_MATCH, 0x5000)
    cpu.wrmsr(Msr.ADDR1_B, 0x5000)
    cpu.wrmsr(Msr.CTL, TRACED & ~1)
    cpu.xrstors(0x1000, 0x1004, None)
    # LowerMask reads as ones in any case.
    assert [cpu.get_msr(msr) for msr in ORDER] == [0, 0, 0x7F, 0, 0, 0, 0, 0, 0]


@pytest.mark.spec("XSV-001")
def test_ranges_2_and_3_are_not_in_the_component() -> None:
    cpu = Machine().cpu
    cpu.wrmsr(Msr.ADDR2_A, 0x5000)
    cpu.wrmsr(Msr.ADDR3_B, 0x6000)
    cpu.xrstors(0x1000, 0x1004, None)
    assert (cpu.get_msr(Msr.ADDR2_A), cpu.get_msr(Msr.ADDR3_B)) == (0x5000, 0x6000)


BAD = {
    "reserved bit of CTL": (Msr.CTL, 1 << 57),
    "reserved encoding": (Msr.CTL, 3 << 32),
    "reserved bit of STATUS": (Msr.STATUS, 1 << 60),
    "CR3_MATCH below bit 5": (Msr.CR3_MATCH, 1),
    "above MAXPHYADDR": (Msr.OUTPUT_BASE, 1 << 60),
    "not canonical": (Msr.ADDR0_A, 1 << 62),
}


@pytest.mark.spec("MSRGEN-007")
@pytest.mark.parametrize("name", BAD)
def test_xrstors_keeps_the_rules_of_wrmsr(name: str) -> None:
    msr, value = BAD[name]
    cpu = Machine().cpu
    before = cpu.unit.snapshot()
    values = dict.fromkeys(ORDER, 0) | {msr: value}
    with pytest.raises(GeneralProtection):
        cpu.xrstors(0x1000, 0x1004, component(*values.values()))
    assert cpu.unit.snapshot() == before


@pytest.mark.spec("XSV-001")
def test_nonzero_reserved_bytes_fault() -> None:
    """All bytes after the nine MSRs."""
    cpu = Machine().cpu
    for at in range(72, 128):
        with pytest.raises(GeneralProtection, match="reserved bytes"):
            cpu.xrstors(0x1000, 0x1004, bytes(at) + b"\x01" + bytes(127 - at))
    with pytest.raises(ValueError, match="128 bytes"):
        cpu.xrstors(0x1000, 0x1004, bytes(72))


@pytest.mark.spec("XSV-001")
def test_xsaves_stores_only_requested_components() -> None:
    machine = Machine()
    cpu = machine.cpu
    cpu.wrmsr(Msr.CTL, TRACED, next_ip=0x1000)
    machine.names()
    assert cpu.xsaves(0x1000, 0x1004, rfbm=0xFF) is None
    cpu.wrmsr(IA32_XSS, 0)
    assert cpu.xsaves(0x1004, 0x1008) is None
    cpu.xrstors(0x1008, 0x100C, None)
    assert cpu.get_msr(Msr.CTL) == TRACED
    assert machine.names() == []
    assert cpu.ip == 0x100C
    with pytest.raises(GeneralProtection):
        cpu.wrmsr(IA32_XSS, 1 << 9)
    assert cpu.get_msr(IA32_XSS) == 0


def test_xsaves_and_xrstors_need_cpl_0() -> None:
    machine = Machine()
    machine.cpu.resume(0x1000)
    with pytest.raises(GeneralProtection, match="CPL 3"):
        machine.cpu.xsaves(0x1000, 0x1004)
    with pytest.raises(GeneralProtection, match="CPL 3"):
        machine.cpu.xrstors(0x1000, 0x1004, None)


@pytest.mark.spec("XSV-002", "XSV-003")
def test_faulting_xsaves_and_xrstors_restore_trace_en() -> None:
    """XSAVES that faults has TraceEn back; XRSTORS that faults has not set it yet."""
    machine = Machine()
    cpu = machine.cpu
    cpu.wrmsr(Msr.CTL, TRACED, next_ip=0x1000)
    machine.names()
    assert cpu.xsaves(0x1000, 0x1004, completes=False) is None
    assert machine.names() == ["FUP", "TIP.PGD", "CBR", "MODE.Exec", "TIP.PGE"]
    assert cpu.get_msr(Msr.CTL) == TRACED
    assert cpu.ip == 0x1000
    image = cpu.xsaves(0x1000, 0x1004)
    machine.names()
    cpu.wrmsr(Msr.CR3_MATCH, 0x5000)
    cpu.xrstors(0x1004, 0x1008, image, completes=False)
    assert machine.names() == []
    assert (cpu.get_msr(Msr.CTL), cpu.get_msr(Msr.CR3_MATCH)) == (TRACED & ~1, 0)
    assert cpu.ip == 0x1004


@pytest.mark.spec("XSV-002")
def test_xsaves_that_does_not_complete_sets_nothing_that_was_clear() -> None:
    machine = Machine()
    machine.cpu.wrmsr(Msr.CTL, TRACED & ~1)
    assert machine.cpu.xsaves(0x1000, 0x1004, completes=False) is None
    assert machine.cpu.get_msr(Msr.CTL) == TRACED & ~1
    assert machine.names() == []


@pytest.mark.spec("XSV-001")
def test_component_omits_msrs_that_the_processor_lacks() -> None:
    machine = Machine(profile=replace(BROADWELL, xsaves=True))
    cpu = machine.cpu
    saved = unpack(cpu.xsaves(0x1000, 0x1004))
    assert saved[5:] == [0, 0, 0, 0]
    cpu.xrstors(0x1004, 0x1008, component(*saved))
    assert FULL.range1
    with pytest.raises(GeneralProtection, match="ADDR1_B"):
        cpu.xrstors(0x1004, 0x1008, component(*saved[:8], 0x1000))
