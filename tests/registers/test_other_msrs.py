"""Access rules of the PT MSRs other than IA32_RTIT_CTL."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rtit.errors import GeneralProtection
from rtit.registers import FULL, SKYLAKE, Msr, Profile, RegisterFile, check_rdmsr, rdmsr, wrmsr

TRACING = 0x101  # TraceEn, ToPA


def write(msr: int, value: int, profile: Profile = FULL, **state: int) -> RegisterFile:
    registers = RegisterFile(**state)
    wrmsr(registers, msr, value, profile=profile)
    return registers


def write_faults(msr: int, value: int, profile: Profile = FULL, **state: int) -> str:
    registers = RegisterFile(**state)
    with pytest.raises(GeneralProtection) as caught:
        wrmsr(registers, msr, value, profile=profile)
    assert registers == RegisterFile(**state)
    return caught.value.reason


def assert_absent(msr: int, profile: Profile) -> None:
    """Assert that RDMSR and WRMSR fault."""
    assert write_faults(msr, 0, profile)
    with pytest.raises(GeneralProtection):
        check_rdmsr(msr, profile=profile)


@pytest.mark.spec("MSRGEN-001")
@pytest.mark.parametrize("msr", Msr)
def test_without_pt_every_access_faults(msr: Msr) -> None:
    assert_absent(msr, replace(FULL, pt=False))


def test_unknown_msr_faults() -> None:
    assert_absent(0x573, FULL)


@pytest.mark.spec("MSRGEN-002", "MSRSTS-001", "MSRADR-003", "MSRCR3-003")
@pytest.mark.parametrize("msr", [msr for msr in Msr if msr != Msr.CTL])
def test_while_tracing_nothing_but_ctl_is_writable(msr: Msr) -> None:
    write(msr, 0)
    assert "TraceEn" in write_faults(msr, 0, ctl=TRACING)
    assert rdmsr(RegisterFile(ctl=TRACING), msr, profile=FULL) in (0, 0x7F, TRACING)


@pytest.mark.spec("MSRSTS-002")
def test_enable_bits_of_status_ignore_writes() -> None:
    assert write(Msr.STATUS, 0b111).status == 0
    assert write(Msr.STATUS, 0b010, status=0b101).status == 0b101


@pytest.mark.spec("MSRSTS-006", "MSRSTS-015", "MSRSTS-018")
@pytest.mark.parametrize("bit", [3, *range(8, 32), *range(49, 64)])
def test_reserved_bit_of_status_faults(bit: int) -> None:
    assert f"{1 << bit:#x}" in write_faults(Msr.STATUS, 1 << bit)


@pytest.mark.parametrize("bit", [4, 5])
def test_software_may_set_and_clear_error_and_stopped(bit: int) -> None:
    assert write(Msr.STATUS, 1 << bit).status == 1 << bit
    assert write(Msr.STATUS, 0, status=1 << bit).status == 0


@pytest.mark.spec("CPUID-017", "CPUID-018")
@pytest.mark.parametrize("bit", [6, 7])
def test_pending_bits_of_status_need_their_capability(bit: int) -> None:
    assert write(Msr.STATUS, 1 << bit).status == 1 << bit
    reason = write_faults(Msr.STATUS, 1 << bit, replace(FULL, preservation=False))
    assert "(14H,0):EBX[6]" in reason


@pytest.mark.spec("MSRSTS-016", "CPUID-005", "CPUID-006")
def test_packet_byte_count_is_writable_with_its_capability() -> None:
    assert write(Msr.STATUS, 0x1FFFF << 32).status == 0x1FFFF << 32
    without = replace(FULL, psb_cyc=False)
    for bit in range(32, 49):
        assert "PacketByteCnt" in write_faults(Msr.STATUS, 1 << bit, without)


@pytest.mark.spec("MSRADR-001", "CPUID-031", "CPUID-010")
@pytest.mark.parametrize("ranges", range(5))
def test_address_msrs_exist_up_to_the_range_count(ranges: int) -> None:
    profile = replace(FULL, ranges=ranges, ip_filtering=ranges > 0)
    for n in range(4):
        for half in "AB":
            msr = Msr[f"ADDR{n}_{half}"]
            if n < ranges:
                assert write(msr, 0x1234, profile).read(msr) == 0x1234
                check_rdmsr(msr, profile=profile)
            else:
                assert_absent(msr, profile)


@pytest.mark.spec("MSRADR-002")
@pytest.mark.parametrize(
    ("width", "legal", "illegal"),
    [
        (48, (0, 0x7FFF_FFFF_FFFF, 0xFFFF_8000_0000_0000, 2**64 - 1), (1 << 47, 1 << 63)),
        (48, (0xFFFF_FFFF_FFFF_0000,), (0xFFFF_0000_0000_0000, 0xFFFE_8000_0000_0000)),
        (57, (1 << 47, (1 << 56) - 1, 0xFF00_0000_0000_0000), (1 << 56, 0xFE00_0000_0000_0000)),
        (32, (0, 0xFFFF_FFFF), (1 << 32, 2**64 - 1)),
    ],
)
def test_address_msrs_take_canonical_addresses_only(
    width: int, legal: tuple[int, ...], illegal: tuple[int, ...]
) -> None:
    profile = replace(FULL, linear_width=width)
    for msr in (msr for msr in Msr if msr.name.startswith("ADDR")):
        for value in legal:
            assert write(msr, value, profile).read(msr) == value
        for value in illegal:
            assert "canonical" in write_faults(msr, value, profile)


@pytest.mark.spec("MSRCR3-001")
def test_low_bits_of_cr3_match_fault() -> None:
    assert write(Msr.CR3_MATCH, 2**64 - 32).cr3_match == 2**64 - 32
    for bit in range(5):
        assert write_faults(Msr.CR3_MATCH, 1 << bit)


@pytest.mark.spec("MSRCR3-002", "CPUID-003", "CPUID-004")
def test_cr3_match_needs_cr3_filtering() -> None:
    check_rdmsr(Msr.CR3_MATCH, profile=FULL)
    assert write(Msr.CR3_MATCH, 0x1000).cr3_match == 0x1000
    write(Msr.CTL, 1 << 7)
    assert_absent(Msr.CR3_MATCH, replace(FULL, cr3_filtering=False))


@pytest.mark.spec("MSROBS-001")
@pytest.mark.parametrize("maxphyaddr", [36, 39, 46, 52])
def test_reserved_bit_of_output_base_faults(maxphyaddr: int) -> None:
    profile = replace(FULL, maxphyaddr=maxphyaddr)
    for bit in range(64):
        if 7 <= bit < maxphyaddr:
            assert write(Msr.OUTPUT_BASE, 1 << bit, profile).output_base == 1 << bit
        else:
            assert write_faults(Msr.OUTPUT_BASE, 1 << bit, profile)


@pytest.mark.spec("MSROBS-002", "MSROMP-009", "CPUID-023")
@pytest.mark.parametrize("msr", [Msr.OUTPUT_BASE, Msr.OUTPUT_MASK_PTRS])
def test_output_msrs_need_output_to_memory(msr: Msr) -> None:
    for topa, single_range in ((True, False), (False, True), (True, True)):
        profile = replace(FULL, topa=topa, single_range=single_range)
        write(msr, 0, profile)
        check_rdmsr(msr, profile=profile)
        assert write_faults(msr, 0, profile, ctl=TRACING)
    assert_absent(msr, replace(FULL, topa=False, single_range=False))


@pytest.mark.spec("MSROMP-001")
def test_lower_mask_bits_always_read_as_ones() -> None:
    registers = write(Msr.OUTPUT_MASK_PTRS, 0)
    assert rdmsr(registers, Msr.OUTPUT_MASK_PTRS, profile=FULL) == 0x7F
    assert write(Msr.OUTPUT_MASK_PTRS, 0x1_0000_0000).output_mask_ptrs == 0x1_0000_007F
    # The initial configuration of XRSTORS restores 0, which reads the same.
    zero = RegisterFile(output_mask_ptrs=0)
    assert rdmsr(zero, Msr.OUTPUT_MASK_PTRS, profile=FULL) == 0x7F


@pytest.mark.spec("MSRGEN-005")
@pytest.mark.parametrize(
    ("msr", "value"),
    [
        (Msr.CTL, 1 << 18),
        (Msr.CTL, 3 << 32),
        (Msr.CTL, 1 << 14),
        (Msr.STATUS, 1 << 3),
        (Msr.CR3_MATCH, 1),
        (Msr.OUTPUT_BASE, 1 << 39),
        (Msr.ADDR0_A, 1 << 47),
        (Msr.ADDR2_A, 0),
    ],
)
def test_faulting_write_changes_nothing(msr: Msr, value: int) -> None:
    write_faults(msr, value, SKYLAKE, ctl=0x100, status=0x20, addr0_a=0x1000, cr3_match=0x20)
