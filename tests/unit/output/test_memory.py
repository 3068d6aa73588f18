"""Physical memory: pages, restricted ranges, the observer."""

from __future__ import annotations

import pytest

from rtit.registers import CTL, FULL, RegisterFile
from rtit.unit.memory import Memory
from rtit.unit.output import ACCEPTED, Output, TopaEntry, write_topa_table

TOPA = CTL.encode(TraceEn=1, ToPA=1)
SINGLE = RegisterFile(ctl=CTL.encode(TraceEn=1), output_base=0x10000, output_mask_ptrs=0x3FF)


def test_unwritten_memory_reads_zero() -> None:
    memory = Memory()
    assert memory.read(0xFFFF_FFFF_F000, 5) == bytes(5)
    assert memory.snapshot() == {}


def test_writes_cross_pages() -> None:
    memory = Memory()
    data = bytes(range(1, 251)) * 40
    memory.write(0x1FF0, data)
    assert memory.read(0x1FF0, len(data)) == data
    assert memory.read(0x1FEF, 2) == b"\0\x01"
    memory.store(0x5FFF, b"\xaa\xbb")
    assert memory.read(0x5FFF, 2) == b"\xaa\xbb"
    memory.write_u64(0x8FFC, 0x0102030405060708)
    assert memory.read(0x8FFC, 8) == bytes([8, 7, 6, 5, 4, 3, 2, 1])
    assert memory.read_u64(0x8FFC) == 0x0102030405060708
    memory.write(0x9004, b"\xcc")
    memory.write_u64(0x8FFC, 0)
    assert memory.read(0x8FFC, 9) == bytes(8) + b"\xcc"


def test_snapshots_compare_content() -> None:
    one, two = Memory(), Memory()
    one.write(0x1000, b"abc")
    two.write(0x1000, b"ab")
    assert one.snapshot() != two.snapshot()
    two.store(0x1002, b"c")
    two.store(0x9000, b"\0")
    assert one.snapshot() == two.snapshot()


def test_unobserved_store_gets_the_page_itself() -> None:
    memory = Memory()
    page = memory.page_for_direct_stores(0x1234)
    assert page is not None
    page[0x234] = 7
    assert memory.read(0x1234, 1) == b"\x07"
    for watched in (
        Memory(observer=lambda at, data: None),
        Memory(smrr=[(0, 1)]),
        Memory(mmio=[(0, 1)]),
    ):
        assert watched.page_for_direct_stores(0x1234) is None


@pytest.mark.spec("RMEM-001")
@pytest.mark.parametrize("method", ["write", "store"])
def test_restricted_bytes_are_dropped_and_read_as_ones(method: str) -> None:
    memory = Memory(smrr=[(0x1004, 0x1008), (0x100A, 0x100B)])
    getattr(memory, method)(0x1000, bytes(range(16)))
    expected = bytearray(range(16))
    expected[4:8] = b"\xff" * 4
    expected[10] = 0xFF
    assert memory.read(0x1000, 16) == expected
    memory.smrr = ()
    assert memory.read(0x1004, 4) == bytes(4)


@pytest.mark.spec("RMEM-001")
def test_dropped_bytes_are_not_observed_as_stores() -> None:
    seen: list[tuple[int, bytes]] = []
    smrr = [(0x1004, 0x1008)]
    memory = Memory(smrr=smrr, observer=lambda at, data: seen.append((at, data)))
    memory.store(0x1004, b"abcd")
    assert seen == []
    memory.store(0x1002, b"abcdefgh")
    memory.store(0x1008, b"xy")
    assert seen == [(0x1002, b"ab"), (0x1008, b"gh"), (0x1008, b"xy")]


@pytest.mark.spec("OSR-007")
def test_observer_sees_repeated_stores_to_one_address() -> None:
    seen: list[tuple[int, bytes]] = []
    memory = Memory(mmio=[(0x8000, 0x9000)], observer=lambda at, data: seen.append((at, data)))
    output = Output(memory, profile=FULL)
    registers = RegisterFile(ctl=CTL.encode(TraceEn=1), output_base=0x8000, output_mask_ptrs=0x7F)
    assert output.enable(registers) is ACCEPTED
    for n in range(5):
        assert output.write(bytes([n]) * 64) is ACCEPTED
    assert seen == [(0x8000 + 64 * (n % 2), bytes([n]) * 64) for n in range(5)]
    assert memory.snapshot() == {}


def test_observer_does_not_see_what_software_writes() -> None:
    seen: list[int] = []
    memory = Memory(observer=lambda at, data: seen.append(at))
    memory.write(0x1000, b"abc")
    assert seen == []


@pytest.mark.spec("RMEM-004")
def test_write_to_the_apic_page_is_no_error() -> None:
    seen = bytearray()
    memory = Memory(mmio=[(0xFEE0_0000, 0xFEE0_1000)], observer=lambda at, data: seen.extend(data))
    output = Output(memory, profile=FULL, smrr_policy="error")
    write_topa_table(memory, 0x1000, [TopaEntry(0xFEE0_0000), TopaEntry(0x1000, end=True)])
    assert output.enable(RegisterFile(ctl=TOPA, output_base=0x1000)) is ACCEPTED
    assert output.write(b"x" * 5000) is ACCEPTED
    assert seen == b"x" * 5000


@pytest.mark.spec("RMEM-001")
def test_region_over_restricted_memory_loses_bytes_and_continues() -> None:
    memory = Memory(smrr=[(0x10100, 0x10200)])
    output = Output(memory, profile=FULL)
    write_topa_table(
        memory, 0x1000, [TopaEntry(0x10000), TopaEntry(0x20000), TopaEntry(0x1000, end=True)]
    )
    assert output.enable(RegisterFile(ctl=TOPA, output_base=0x1000)) is ACCEPTED
    stream = bytes(n % 251 for n in range(8192))
    assert output.write(stream[:5000]) is ACCEPTED
    assert output.write(stream[5000:]) is ACCEPTED
    assert memory.read(0x10000, 0x100) == stream[:0x100]
    assert memory.read(0x10100, 0x100) == b"\xff" * 0x100
    assert memory.read(0x10200, 0xE00) == stream[0x200:0x1000]
    assert memory.read(0x20000, 0x1000) == stream[0x1000:]


@pytest.mark.spec("RMEM-006")
def test_single_range_over_restricted_memory_loses_bytes_and_continues() -> None:
    memory = Memory(smrr=[(0x10100, 0x10200)])
    output = Output(memory, profile=FULL)
    assert output.enable(SINGLE) is ACCEPTED
    stream = bytes(n % 251 for n in range(0x400))
    for start in range(0, 0x400, 100):
        assert output.write(stream[start : start + 100]) is ACCEPTED
    assert memory.read(0x10000, 0x100) == stream[:0x100]
    assert memory.read(0x10100, 0x100) == b"\xff" * 0x100
    assert memory.read(0x10200, 0x200) == stream[0x200:]
    memory.smrr = ()
    assert memory.read(0x10100, 0x100) == bytes(0x100)


@pytest.mark.spec("RMEM-006")
@pytest.mark.parametrize("step", [1, 7, 5000])
def test_single_range_reaching_restricted_memory_is_an_error(step: int) -> None:
    memory = Memory(smrr=[(0x10100, 0x10200)])
    output = Output(memory, profile=FULL, smrr_policy="error")
    assert output.enable(SINGLE) is ACCEPTED
    written, result = 0, ACCEPTED
    while result is ACCEPTED and written < 0x400:
        result = output.write(b"x" * step)
        written += step
    assert result.error is not None
    assert written - result.lost == 0x100
    memory.smrr = ()
    assert memory.read(0x10000, 0x400) == (b"x" * 0x100).ljust(0x400, b"\0")


@pytest.mark.spec("RMEM-002")
@pytest.mark.parametrize("step", [1, 7, 256, 5000])
def test_region_reaching_restricted_memory_is_an_error(step: int) -> None:
    memory = Memory(smrr=[(0x10100, 0x10200)])
    output = Output(memory, profile=FULL, smrr_policy="error")
    write_topa_table(memory, 0x1000, [TopaEntry(0x10000), TopaEntry(0x1000, end=True)])
    assert output.enable(RegisterFile(ctl=TOPA, output_base=0x1000)) is ACCEPTED
    written = 0
    while True:
        result = output.write(b"y" * step)
        written += step - result.lost
        if result is not ACCEPTED:
            break
    assert result.error is not None
    assert "0x10100" in result.error
    assert written == 0x100
    assert memory.read(0x10000, 0x100) == b"y" * 0x100
    assert output.msrs() == (0x1000, 0x100 << 32 | 0x7F)


@pytest.mark.spec("RMEM-006")
def test_pointer_in_restricted_memory_is_an_error() -> None:
    memory = Memory(smrr=[(0x8000, 0x8010)])
    output = Output(memory, profile=FULL, smrr_policy="error")
    registers = RegisterFile(ctl=1, output_base=0x8000, output_mask_ptrs=0xFF)
    assert output.enable(registers).error is not None
    registers.output_mask_ptrs = 0x10 << 32 | 0xFF
    assert output.enable(registers) is ACCEPTED
    # The range is circular: after its end the pointer is at its base.
    result = output.write(b"z" * 0xF8)
    assert result.error is not None
    assert result.lost == 8


@pytest.mark.spec("RMEM-003")
@pytest.mark.parametrize("policy", ["drop", "error"])
def test_table_entry_in_restricted_memory_is_an_error(policy: str) -> None:
    memory = Memory()
    output = Output(memory, profile=FULL, smrr_policy="drop" if policy == "drop" else "error")
    write_topa_table(
        memory, 0x1000, [TopaEntry(0x10000), TopaEntry(0x20000), TopaEntry(0x1000, end=True)]
    )
    memory.smrr = ((0x1008, 0x1010),)
    assert output.enable(RegisterFile(ctl=TOPA, output_base=0x1000)) is ACCEPTED
    assert output.write(b"x" * 4095) is ACCEPTED
    result = output.write(b"abc")
    assert result.lost == 2
    assert result.error is not None
    assert "0x1008" in result.error
    assert output.msrs() == (0x1000, 1 << 7 | 0x7F)


@pytest.mark.spec("RMEM-005")
def test_changed_restricted_ranges_take_effect_at_enable() -> None:
    memory = Memory()
    output = Output(memory, profile=FULL, smrr_policy="error")
    write_topa_table(memory, 0x1000, [TopaEntry(0x10000), TopaEntry(0x1000, end=True)])
    registers = RegisterFile(ctl=TOPA, output_base=0x1000)
    assert output.enable(registers) is ACCEPTED
    assert output.write(b"x" * 16) is ACCEPTED
    memory.smrr = ((0x10020, 0x10021),)
    output.disable()
    registers.output_base, registers.output_mask_ptrs = output.msrs()
    assert output.enable(registers) is ACCEPTED
    assert output.write(b"x" * 17).lost == 1
