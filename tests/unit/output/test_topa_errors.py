"""Operational errors of ToPA output: each is raised when the bad entry becomes current."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import pytest

from rtit.registers import BROADWELL, CTL, FULL, Msr, Profile, RegisterFile, wrmsr
from rtit.unit.memory import Memory
from rtit.unit.output import ACCEPTED, Output, TopaEntry, write_topa_table

TABLE = 0x1000
A, B = 0x10000, 0x20000
MEGA = 1 << 20


def start(
    entries: list[TopaEntry | int],
    *,
    base: int = TABLE,
    index: int = 0,
    offset: int = 0,
    profile: Profile = FULL,
) -> tuple[Output, str | None]:
    memory = Memory()
    write_topa_table(memory, base, entries)
    output = Output(memory, profile=profile)
    registers = RegisterFile(
        ctl=CTL.encode(TraceEn=1, ToPA=1),
        output_base=base,
        output_mask_ptrs=offset << 32 | index << 7 | 0x7F,
    )
    return output, output.enable(registers).error


def assert_bad_entry(value: int, profile: Profile = FULL) -> str:
    """Assert the error of `value` as entry 0, and after two regions, 8192 bytes later."""
    _, first = start([value], profile=profile)
    output, error = start([TopaEntry(A), TopaEntry(B), value], profile=profile)
    assert error is None
    assert output.write(b"x" * 8191) is ACCEPTED
    result = output.write(b"xyz")
    assert result.lost == 2
    assert result.error is not None
    assert first is not None
    assert result.error.replace("entry 2", "entry 0") == first
    assert output.msrs() == (TABLE, 2 << 7 | 0x7F)
    assert output.write(b"1") == (1, False, result.error, False)
    return result.error


@pytest.mark.spec("TERR-001", "TOPA-011")
@pytest.mark.parametrize("bit", [1, 3, 5, 10, 11])
def test_reserved_bits_of_an_entry_are_an_error(bit: int) -> None:
    assert f"{1 << bit:#x}" in assert_bad_entry(A | 1 << bit)


@pytest.mark.spec("TERR-002")
@pytest.mark.parametrize("base", [0x1080, 0x1100, 0x1200, 0x1400, 0x1800, 0x1F80])
def test_misaligned_table_base_in_the_msr_is_an_error(base: int) -> None:
    _, error = start([TopaEntry(A)], base=base)
    assert error is not None
    assert f"{base:#x}" in error


@pytest.mark.spec("MSROBS-003")
def test_table_base_is_accepted_by_wrmsr_and_refused_at_enable() -> None:
    registers = RegisterFile()
    for bit in range(7, 12):
        wrmsr(registers, Msr.OUTPUT_BASE, 0x8000 | 1 << bit, profile=FULL)
        wrmsr(registers, Msr.CTL, 0x101, profile=FULL)
        assert Output(Memory(), profile=FULL).enable(registers).error is not None
        wrmsr(registers, Msr.CTL, 0, profile=FULL)


@pytest.mark.spec("TOPA-013", "TERR-003")
@pytest.mark.parametrize("code", range(1, 16))
def test_region_misaligned_to_its_size_is_an_error(code: int) -> None:
    size = 4096 << code
    assert start([TopaEntry(3 * size, size)])[1] is None
    assert f"{size:#x}" in assert_bad_entry(TopaEntry(3 * size + size // 2, size).encode())
    assert f"{size:#x}" in assert_bad_entry(TopaEntry(4096, size).encode())


@pytest.mark.spec("TERR-002")
@pytest.mark.parametrize("bit", [10, 11])
def test_misaligned_table_base_in_an_end_entry_is_an_error(bit: int) -> None:
    """Only bits 11:10 of 11:0 can misalign it: 9:6 are the ignored size."""
    output, _ = start([TopaEntry(A), 0x5000 | 1 << bit | 1])
    result = output.write(b"x" * 4097)
    assert result.lost == 1
    assert result.error is not None


@pytest.mark.spec("TERR-003", "TOPA-013")
@pytest.mark.parametrize("bit", range(12, 21))
def test_region_aligned_below_its_size_is_an_error(bit: int) -> None:
    assert "aligned" in assert_bad_entry(4 * MEGA | 1 << bit | 9 << 6)


@pytest.mark.spec("TOPA-013")
@pytest.mark.parametrize("code", range(16))
def test_region_aligned_to_its_size_is_accepted(code: int) -> None:
    assert start([(0x1000 << code) | code << 6])[1] is None


@pytest.mark.spec("TERR-004")
@pytest.mark.parametrize("maxphyaddr", [36, 39, 46, 52])
def test_address_bits_beyond_maxphyaddr_are_an_error(maxphyaddr: int) -> None:
    profile = replace(FULL, maxphyaddr=maxphyaddr)
    assert start([1 << (maxphyaddr - 1)], profile=profile)[1] is None
    for bit in range(maxphyaddr, 64):
        assert "MAXPHYADDR" in assert_bad_entry(1 << bit, profile)
        output, _ = start([TopaEntry(A), 1 << bit | TABLE | 1], profile=profile)
        assert output.write(b"x" * 4096).error is not None


@pytest.mark.spec("TERR-005", "MSROMP-008")
@pytest.mark.parametrize("code", [0, 3, 15])
def test_output_offset_beyond_the_region_is_an_error(code: int) -> None:
    size = 4096 << code
    assert start([code << 6], offset=size - 1)[1] is None
    for offset in (size, size + 1, 0xFFFF_FFFF):
        _, error = start([code << 6], offset=offset)
        assert error is not None
        assert f"{offset:#x}" in error


@pytest.mark.spec("TERR-006")
@pytest.mark.parametrize("bits", [4, 16, 20])
def test_end_with_int_or_stop_is_an_error(bits: int) -> None:
    assert "END with INT or STOP" in assert_bad_entry(TABLE | 1 | bits)


@pytest.mark.spec("TERR-007")
def test_end_in_entry_0_is_an_error() -> None:
    _, error = start([TopaEntry(TABLE, end=True)])
    assert error == "ToPA entry 0 has END"


@pytest.mark.spec("TERR-007")
def test_end_in_entry_0_of_the_next_table_is_an_error() -> None:
    output, _ = start([TopaEntry(A), TopaEntry(0x8000, end=True)])
    write_topa_table(output.memory, 0x8000, [TopaEntry(TABLE, end=True)])
    result = output.write(b"x" * 4096)
    assert result.error == "ToPA entry 0 has END"
    assert result.lost == 0
    assert output.msrs() == (0x8000, 0x7F)


@pytest.mark.spec("TERR-008", "CPUID-025")
def test_single_entry_processor_rejects_two_regions() -> None:
    output, error = start(
        [TopaEntry(A), TopaEntry(B), TopaEntry(TABLE, end=True)], profile=BROADWELL
    )
    assert error is None
    result = output.write(b"x" * 4097)
    assert result.lost == 1
    assert result.error is not None
    assert "no END" in result.error
    assert output.msrs() == (TABLE, 1 << 7 | 0x7F)


@pytest.mark.spec("TERR-009", "CPUID-025")
def test_single_entry_processor_rejects_an_end_to_another_table() -> None:
    output, error = start([TopaEntry(A), TopaEntry(0x5000, end=True)], profile=BROADWELL)
    assert error is None
    result = output.write(b"x" * 4096)
    assert result.error is not None
    assert "0x5000" in result.error


@pytest.mark.spec("CPUID-025")
def test_single_entry_processor_rejects_a_start_beyond_its_table() -> None:
    table: list[TopaEntry | int] = [
        TopaEntry(A),
        TopaEntry(TABLE, end=True),
        TopaEntry(TABLE, end=True),
        TopaEntry(B),
    ]
    assert start(table, index=1, profile=BROADWELL)[1] is None
    assert start(table, index=2, profile=BROADWELL)[1] is not None
    assert start(table, index=3, profile=BROADWELL)[1] is not None


@pytest.mark.parametrize("follow", ["eager", "lazy"])
def test_lazy_output_reports_the_error_at_the_next_byte(follow: Literal["eager", "lazy"]) -> None:
    memory = Memory()
    write_topa_table(memory, TABLE, [TopaEntry(A, interrupt=True), TopaEntry(B).encode() | 2])
    output = Output(memory, profile=FULL, follow=follow)
    output.enable(RegisterFile(ctl=0x101, output_base=TABLE))
    result = output.write(b"x" * 4096)
    assert result.pmi
    assert (result.error is not None) == (follow == "eager")
    result = output.write(b"y")
    assert result.lost == 1
    assert result.error is not None
