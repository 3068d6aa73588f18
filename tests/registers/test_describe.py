"""Texts of register values, and parsing of register names."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rtit.errors import UsageError
from rtit.registers import (
    CTL,
    FULL,
    GOLDMONT_PLUS,
    MSRS,
    OUTPUT_MASK_PTRS,
    STATUS,
    Msr,
    Register,
    RegisterFile,
    describe_fields,
    wrmsr_faults,
)
from rtit.registers.describe import format_set_bits, register_of_leaf
from rtit.registers.parse_names import find_profile, find_register, parse_value, sort_by_similarity
from rtit.unit.configuration import decode_configuration


def describe_lines(register: Register, value: int, name: str) -> str:
    return next(row.words for row in describe_fields(register, value) if row.name == name)


# Table 33-6: the threshold in core cycles, by encoding.
THRESHOLDS = [0, 1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384]


@pytest.mark.spec("MSRCTL-022")
def test_cyc_threshold_is_described_in_core_cycles() -> None:
    for code, cycles in enumerate(THRESHOLDS):
        words = describe_lines(CTL, code << 19 | 1, "CycThresh")
        assert words == f"CYC threshold {cycles} core cycle{'s' * (cycles != 1)}"
        # A CYC covers at least one cycle, so thresholds of 0 and 1 mean the same.
        registers = RegisterFile(ctl=code << 19)
        assert decode_configuration(registers).cyc_gap == max(cycles, 1)


def test_mtc_period_is_described_in_ticks_and_time() -> None:
    assert (
        describe_lines(CTL, 9 << 14, "MTCFreq")
        == "an MTC every 512 crystal ticks, as ART bit 9 toggles"
    )
    assert describe_lines(CTL, 0, "MTCFreq") == "an MTC every 1 crystal tick, as ART bit 0 toggles"
    rows = describe_fields(CTL, 6 << 14, GOLDMONT_PLUS)
    words = next(row.words for row in rows if row.name == "MTCFreq")
    assert words.endswith("; every 3,333 ns at 19.2 MHz")  # 64 / 19.2 MHz


@pytest.mark.parametrize(("code", "period"), [(0, "2K"), (5, "64K"), (9, "1M"), (15, "64M")])
def test_psb_period_is_described_in_bytes(code: int, period: str) -> None:
    assert describe_lines(CTL, code << 24, "PSBFreq") == f"a PSB about every {period} bytes"


def test_period_of_zero_is_shown_while_its_packet_is_enabled() -> None:
    def shown(value: int) -> set[str]:
        return {row.name for row in describe_fields(CTL, value) if row.shown}

    assert shown(0) == set()
    assert shown(1) == {"TraceEn", "PSBFreq"}
    assert shown(1 << 9 | 1 << 1) == {"MTCEn", "MTCFreq", "CYCEn", "CycThresh"}
    fixed = describe_fields(CTL, 1, replace(FULL, psb_cyc=False))
    assert [row.name for row in fixed if row.shown] == ["TraceEn"]


def test_output_registers_are_described_in_bytes() -> None:
    value = 0x1234_0000_00FF
    assert "256 bytes" in describe_lines(OUTPUT_MASK_PTRS, value, "MaskOrTableOffset")
    assert "entry 1 " in describe_lines(OUTPUT_MASK_PTRS, value, "MaskOrTableOffset")
    assert describe_lines(OUTPUT_MASK_PTRS, value, "OutputOffset").endswith("4,660 bytes")
    assert "holes" in describe_lines(OUTPUT_MASK_PTRS, 0x17F, "MaskOrTableOffset")
    assert "4G bytes" in describe_lines(OUTPUT_MASK_PTRS, 0xFFFF_FFFF, "MaskOrTableOffset")
    assert describe_lines(MSRS[Msr.OUTPUT_BASE], 0x1234_5680, "BasePhysAddr").endswith("0x12345680")
    assert describe_lines(STATUS, 18 << 32, "PacketByteCnt").endswith("18 bytes")


def test_bitmaps_of_leaf_14h_are_described_as_periods() -> None:
    eax, ebx = register_of_leaf(0x14, 1, "eax"), register_of_leaf(0x14, 1, "ebx")
    assert "0, 3, 6, 9: 1, 8, 64, 512 crystal ticks" in describe_lines(
        eax, 0x0249_0002, "MTCPeriods"
    )
    assert "0 to 5: 2K to 64K bytes" in describe_lines(ebx, 0x003F_0000, "PSBPeriods")
    assert "0, 1: 0, 1 core cycles" in describe_lines(ebx, 3, "CycThresholds")
    assert describe_lines(ebx, 0, "CycThresholds") == "no encoding but 0"
    assert register_of_leaf(0x14, 0, "edx").reserved_mask == 0xFFFF_FFFF


def test_set_bits_are_printed_as_ranges() -> None:
    assert format_set_bits(1 << 18) == "bit 18"
    assert format_set_bits(1 << 63 | 0xF << 45 | 1) == "bits 63, 48:45, 0"


def test_wrmsr_faults_lists_every_reason_in_order() -> None:
    profile = replace(FULL, mtc=False, ptwrite=False)
    value = 1 << 63 | 1 << 12 | 1 << 9
    reasons = wrmsr_faults(Msr.CTL, value, current=RegisterFile(), profile=profile)
    assert [reason.split()[0] for reason in reasons] == [
        "IA32_RTIT_CTL",
        "IA32_RTIT_CTL.MTCEn",
        "IA32_RTIT_CTL.PTWEn",
    ]
    assert wrmsr_faults(Msr.CTL, 0, current=RegisterFile(), profile=profile) == ()


@pytest.mark.parametrize(
    "text", ["IA32_RTIT_CTL", "ia32_rtit_ctl", "RTIT_CTL", "ctl", "570H", "570h", "0x570", "570"]
)
def test_register_is_found_by_each_of_its_names(text: str) -> None:
    assert find_register(text) is CTL


@pytest.mark.parametrize("msr", Msr)
def test_every_register_is_found(msr: Msr) -> None:
    assert find_register(f"{int(msr):X}H") is MSRS[msr]
    assert find_register(msr.name.lower()) is MSRS[msr]


@pytest.mark.parametrize(
    ("text", "first"),
    [
        ("IA32_RTIT_CLT", "IA32_RTIT_CTL"),
        ("ststus", "IA32_RTIT_STATUS"),
        ("outputbase", "IA32_RTIT_OUTPUT_BASE"),
        ("adr2_b", "IA32_RTIT_ADDR2_B"),
        ("573H", "572H IA32_RTIT_CR3_MATCH"),
        ("", ""),
    ],
)
def test_typo_lists_the_nearest_name_first(text: str, first: str) -> None:
    with pytest.raises(UsageError, match="valid: " + first) as caught:
        find_register(text)
    assert all(register.name in str(caught.value) for register in MSRS.values())


def test_profile_is_found_by_its_name() -> None:
    assert find_profile("Goldmont-Plus") is GOLDMONT_PLUS
    with pytest.raises(UsageError, match="valid: skylake, "):
        find_profile("skylak")
    assert sort_by_similarity("b", ["a", "b"]) == ["b", "a"]


@pytest.mark.parametrize(
    ("text", "value"),
    [("9217", 9217), ("0x2401", 9217), ("2401H", 9217), ("0b101", 5), ("0x1_0000", 65536)],
)
def test_register_value_is_parsed_in_each_notation(text: str, value: int) -> None:
    assert parse_value(text) == value


@pytest.mark.parametrize("text", ["", "x", "0x", "-1", "1.0", "FFH", "9" * 5000, "1__0", "٣"])
def test_malformed_register_value_is_rejected(text: str) -> None:
    with pytest.raises(UsageError, match="is no number"):
        parse_value(text)


def test_number_beyond_64_bits_is_rejected() -> None:
    assert parse_value("0xFFFFFFFF", width=32) == 0xFFFF_FFFF
    with pytest.raises(UsageError, match="does not fit in 32 bits"):
        parse_value("0x100000000", width=32)
