"""Single-range output and the trace transport (sections 33.2.7.1 and 33.2.7.3)."""

from __future__ import annotations

import pytest

from rtit.registers import CTL, FULL, RegisterFile
from rtit.unit.memory import Memory
from rtit.unit.output import ACCEPTED, Output, SingleRange

SINGLE = CTL.encode(TraceEn=1)


def enabled(base: int, mask: int, offset: int = 0) -> tuple[Output, Memory, str | None]:
    memory = Memory()
    output = Output(memory, profile=FULL)
    registers = RegisterFile(ctl=SINGLE, output_base=base, output_mask_ptrs=offset << 32 | mask)
    return output, memory, output.enable(registers).error


@pytest.mark.spec("OSR-001")
@pytest.mark.parametrize(
    ("base", "mask", "offset", "address"),
    [
        (0x1000, 0x7F, 0, 0x1000),
        (0x1080, 0x7F, 0x7F, 0x10FF),
        (0x8_0000_0000, 0xFFFF_FFFF, 0xFFFF_FFFF, 0x8_FFFF_FFFF),
        (0x4000, 0x1FFF, 0x1234, 0x5234),
        (0xF_FFFF_FFFF_F000, 0xFFF, 0x10, 0xF_FFFF_FFFF_F010),
        (0x8_0000_0000_0000, 0xFFFF_FFFF, 0x8000_0000, 0x8_0000_8000_0000),
    ],
)
def test_next_byte_is_at_base_plus_offset(base: int, mask: int, offset: int, address: int) -> None:
    assert SingleRange(base, mask).address_of_offset(offset) == address
    output, memory, error = enabled(base, mask, offset)
    assert error is None
    assert output.write(b"\x5a") is ACCEPTED
    assert memory.read(address, 1) == b"\x5a"


@pytest.mark.spec("OSR-002", "MSROMP-002")
@pytest.mark.parametrize(("base", "mask"), [(0x1080, 0x7F), (0x1_0000_0000, 0xFFFF_FFFF)])
def test_range_is_circular(base: int, mask: int) -> None:
    output, memory, _ = enabled(base, mask, mask - 1)
    assert output.write(b"abcd") is ACCEPTED
    assert memory.read(base + mask - 1, 2) == b"ab"
    assert memory.read(base, 2) == b"cd"
    assert output.msrs() == (base, 2 << 32 | mask)


def test_low_mask_bits_count_as_set() -> None:
    memory = Memory()
    output = Output(memory, profile=FULL)
    output.enable(RegisterFile(ctl=SINGLE, output_base=0x1000, output_mask_ptrs=0x80))
    assert output.write(b"x" * 256) is ACCEPTED
    assert output.msrs() == (0x1000, 0xFF)
    assert memory.read(0x1000, 257) == b"x" * 256 + b"\0"


@pytest.mark.spec("OSR-003", "MSROMP-005")
def test_offset_tracks_the_writes() -> None:
    output, _, _ = enabled(0x2000, 0x1FFF, 0x10)
    for size, offset in ((1, 0x11), (0x10, 0x21), (0x1FDE, 0x1FFF), (1, 0), (0x2001, 1)):
        assert output.write(b"x" * size) is ACCEPTED
        assert output.msrs() == (0x2000, offset << 32 | 0x1FFF)
    output.disable()
    assert output.msrs() == (0x2000, 1 << 32 | 0x1FFF)


@pytest.mark.spec("OSR-004", "MSROMP-007")
@pytest.mark.parametrize("mask", [0x17F, 0x2FF | 0x1000, 0xFFFF_FEFF, 0x8000_007F])
def test_mask_with_a_hole_is_an_error(mask: int) -> None:
    output, _, error = enabled(0, mask)
    assert error is not None
    assert f"{mask:#x}" in error
    assert output.write(b"abc") == (3, False, error, False)


@pytest.mark.spec("OSR-005", "MSROBS-004")
@pytest.mark.parametrize(("base", "mask"), [(0x1080, 0xFF), (0x1000, 0x1FFF), (0x80, 0xFFFF_FFFF)])
def test_base_that_overlaps_the_mask_is_an_error(base: int, mask: int) -> None:
    _, _, error = enabled(base, mask)
    assert error is not None
    assert "common bits" in error


@pytest.mark.spec("OSR-006", "MSROMP-006")
@pytest.mark.parametrize("mask", [0x7F, 0xFFF])
def test_offset_above_the_mask_is_an_error(mask: int) -> None:
    assert enabled(0x1000, mask, mask)[2] is None
    _, _, error = enabled(0x1000, mask, mask + 1)
    assert error is not None
    assert "OutputOffset" in error


def test_disabled_output_writes_nothing() -> None:
    output = Output(Memory(), profile=FULL)
    with pytest.raises(RuntimeError, match="not enabled"):
        output.write(b"a")
    output, _, _ = enabled(0x1000, 0xFFF)
    output.write(b"a")
    output.disable()
    with pytest.raises(RuntimeError, match="not enabled"):
        output.write(b"a")


@pytest.mark.spec("TFAB-001", "TFAB-002", "MSRCTL-009", "MSRCTL-011")
@pytest.mark.parametrize("topa", [0, 1])
def test_fabric_receives_all_bytes_and_changes_no_register(topa: int) -> None:
    got = bytearray()
    memory = Memory()
    output = Output(memory, profile=FULL, fabric=got.extend)
    registers = RegisterFile(
        ctl=CTL.encode(TraceEn=1, FabricEn=1, ToPA=topa),
        output_base=0x1080,
        output_mask_ptrs=0x1234_0000_01FF,
    )
    assert output.enable(registers) is ACCEPTED
    assert output.write(b"abc") is ACCEPTED
    assert output.write(b"d" * 10000) is ACCEPTED
    assert got == b"abc" + b"d" * 10000
    assert output.msrs() == (0x1080, 0x1234_0000_01FF)
    assert memory.snapshot() == {}


def test_single_range_state_is_a_plain_value() -> None:
    output, memory, _ = enabled(0x1000, 0xFFF)
    output.write(b"abc")
    saved = output.snapshot()
    output.write(b"def")
    assert output.state != saved
    output.restore(saved)
    assert output.state == saved
    assert output.state is not saved
    output.write(b"xyz")
    assert memory.read(0x1000, 6) == b"abcxyz"
    assert saved.output_offset == 3
