"""Writes of IA32_RTIT_CTL: reserved bits, capabilities, encodings, changes while tracing."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from rtit.errors import GeneralProtection
from rtit.registers import BROADWELL, FULL, SKYLAKE, Msr, Profile, RegisterFile, check_wrmsr, wrmsr

CTL = Msr.CTL
TRACE_EN, TOPA, FABRIC, BRANCH_EN = 1, 1 << 8, 1 << 6, 1 << 13


def change_one_field(name: str, value: Any) -> Profile:
    changes = {name: value}
    return replace(FULL, **changes)


def check(value: int, profile: Profile = FULL, current: int = 0, **more: Any) -> None:
    check_wrmsr(CTL, value, current=RegisterFile(ctl=current), profile=profile, **more)


def faults(value: int, profile: Profile = FULL, current: int = 0, **more: Any) -> str:
    with pytest.raises(GeneralProtection) as caught:
        check(value, profile, current, **more)
    return caught.value.reason


@pytest.mark.spec("MSRCTL-021", "MSRCTL-024", "MSRCTL-028", "MSRCTL-034", "MSRCTL-037")
@pytest.mark.parametrize("bit", [18, 23, *range(28, 31), *range(48, 55), *range(57, 64)])
def test_reserved_bits_fault(bit: int) -> None:
    assert f"{1 << bit:#x}" in faults(1 << bit)


@pytest.mark.parametrize(
    ("bit", "capability", "source"),
    [
        pytest.param(
            1, "psb_cyc", "(14H,0):EBX[1]", marks=pytest.mark.spec("CPUID-006", "MSRCTL-004")
        ),
        pytest.param(
            4, "power_events", "(14H,0):EBX[5]", marks=pytest.mark.spec("CPUID-016", "MSRCTL-007")
        ),
        pytest.param(5, "ptwrite", "(14H,0):EBX[4]", marks=pytest.mark.spec("CPUID-014")),
        pytest.param(
            6, "fabric", "(14H,0):ECX[3]", marks=pytest.mark.spec("CPUID-027", "MSRCTL-009")
        ),
        pytest.param(
            7, "cr3_filtering", "(14H,0):EBX[0]", marks=pytest.mark.spec("CPUID-004", "MSRCTL-010")
        ),
        pytest.param(9, "mtc", "(14H,0):EBX[3]", marks=pytest.mark.spec("CPUID-013", "MSRCTL-014")),
        pytest.param(
            12, "ptwrite", "(14H,0):EBX[4]", marks=pytest.mark.spec("CPUID-014", "MSRCTL-017")
        ),
        pytest.param(
            31, "event_trace", "(14H,0):EBX[7]", marks=pytest.mark.spec("CPUID-019", "MSRCTL-029")
        ),
        pytest.param(
            55, "tnt_disable", "(14H,0):EBX[8]", marks=pytest.mark.spec("CPUID-020", "MSRCTL-035")
        ),
        pytest.param(
            56, "preservation", "(14H,0):EBX[6]", marks=pytest.mark.spec("CPUID-017", "CPUID-018")
        ),
    ],
)
def test_bits_without_their_capability_fault(bit: int, capability: str, source: str) -> None:
    check(1 << bit)
    assert source in faults(1 << bit, change_one_field(capability, False))


@pytest.mark.spec("MSRCTL-015")
@pytest.mark.parametrize("bit", [2, 3, 10, 11, 13])
def test_bits_without_capability_are_accepted(bit: int) -> None:
    check(1 << bit, BROADWELL)
    registers = RegisterFile()
    wrmsr(registers, CTL, 1 << bit, profile=BROADWELL)
    assert registers.ctl == 1 << bit


@pytest.mark.parametrize(
    ("low", "bitmap", "capability"),
    [
        pytest.param(
            14, "mtc_periods", "mtc", marks=pytest.mark.spec("CPUID-013", "CPUID-033", "MSRCTL-020")
        ),
        pytest.param(
            19,
            "cyc_thresholds",
            "psb_cyc",
            marks=pytest.mark.spec("CPUID-006", "CPUID-034", "MSRCTL-023"),
        ),
        pytest.param(
            24,
            "psb_periods",
            "psb_cyc",
            marks=pytest.mark.spec("CPUID-006", "CPUID-035", "MSRCTL-026"),
        ),
    ],
)
def test_encodings_outside_the_bitmap_fault(low: int, bitmap: str, capability: str) -> None:
    profile = change_one_field(bitmap, 0x249)
    for code in range(16):
        if code in (0, 3, 6, 9):
            check(code << low, profile)
        else:
            assert "bitmap" in faults(code << low, profile)
    # Encoding 0 is the reset value: legal even if it is not in the bitmap.
    check(0, change_one_field(bitmap, 0x248))
    without = change_one_field(capability, False)
    check(0, without)
    for code in range(1, 16):
        assert "reserved" in faults(code << low, without)


def test_field_encodings_are_checked_even_if_their_packet_is_disabled() -> None:
    profile = replace(FULL, mtc_periods=0x249)
    assert faults(1 << 14, profile)
    assert faults(1 << 9 | 1 << 14, profile)


@pytest.mark.spec("CPUID-005")
def test_psb_and_cyc_fields_are_accepted_with_their_capability() -> None:
    check(1 << 1 | 15 << 19 | 5 << 24, FULL)
    check(1 << 1 | 13 << 19 | 5 << 24, SKYLAKE)
    assert "CycThresh" in faults(14 << 19, SKYLAKE)
    assert "PSBFreq" in faults(6 << 24, SKYLAKE)
    assert "MTCFreq" in faults(1 << 14, SKYLAKE)


@pytest.mark.spec("MSRCTL-030", "MSRCTL-031", "MSRCTL-032", "MSRCTL-033", "CPUID-031")
@pytest.mark.spec("CPUID-009")
@pytest.mark.parametrize("ranges", range(1, 5))
@pytest.mark.parametrize("n", range(4))
def test_address_configuration_is_accepted_for_existing_ranges(ranges: int, n: int) -> None:
    profile = replace(FULL, ranges=ranges)
    for code in range(16):
        value = code << (32 + 4 * n)
        if code == 0 or (code <= 2 and n < ranges):
            check(value, profile)
        else:
            assert f"ADDR{n}_CFG" in faults(value, profile)


@pytest.mark.spec("CPUID-010")
@pytest.mark.parametrize("n", range(4))
def test_address_configuration_without_ip_filtering_faults(n: int) -> None:
    profile = replace(FULL, ip_filtering=False)
    for code in range(1, 16):
        assert f"ADDR{n}_CFG" in faults(code << (32 + 4 * n), profile)


@pytest.mark.spec("MSRCTL-012", "CPUID-026")
def test_single_range_needs_its_capability_when_enabling() -> None:
    without = replace(FULL, single_range=False)
    check(TRACE_EN, FULL)
    assert "ECX[2]" in faults(TRACE_EN, without)
    check(0, without)
    check(TRACE_EN | FABRIC, without)
    check(TRACE_EN | TOPA, without)
    check(TRACE_EN, replace(FULL, topa=False))
    fabric_alone = replace(without, topa=False)
    assert "ECX[2]" in faults(TRACE_EN, fabric_alone)
    check(TRACE_EN | FABRIC, fabric_alone)


@pytest.mark.spec("MSRCTL-013", "CPUID-022")
@pytest.mark.parametrize("other", [0, TRACE_EN, FABRIC, TRACE_EN | FABRIC])
def test_topa_bit_always_needs_its_capability(other: int) -> None:
    check(TOPA | other, FULL)
    assert "ECX[0]" in faults(TOPA | other, replace(FULL, topa=False))


@pytest.mark.spec("MSRGEN-003", "MSRCTL-038")
def test_while_tracing_only_the_same_value_is_accepted() -> None:
    current = TRACE_EN | TOPA | BRANCH_EN
    check(current, current=current)
    for bit in range(1, 64):
        assert faults(current ^ 1 << bit, current=current)


def test_unchanged_value_is_accepted_though_it_is_illegal_now() -> None:
    current = TRACE_EN | TOPA | 1 << 9
    check(current, replace(FULL, mtc=False), current)


@pytest.mark.spec("MSRCTL-039")
def test_clearing_trace_en_may_change_the_rest() -> None:
    check(0, current=TRACE_EN | TOPA | BRANCH_EN)
    check(1 << 10 | 9 << 14, current=TRACE_EN | TOPA | BRANCH_EN)


@pytest.mark.spec("MSRCTL-040")
@pytest.mark.parametrize("bit", [18, 23, 28, 48, 57, 63])
def test_clearing_trace_en_with_a_reserved_bit_faults(bit: int) -> None:
    registers = RegisterFile(ctl=TRACE_EN | TOPA)
    with pytest.raises(GeneralProtection):
        wrmsr(registers, CTL, 1 << bit, profile=FULL)
    assert registers == RegisterFile(ctl=TRACE_EN | TOPA)


@pytest.mark.parametrize("value", [0, TRACE_EN | TOPA])
def test_write_in_vmx_operation_without_support_faults(value: int) -> None:
    without = replace(FULL, vmx_tracing=False)
    check(value, FULL, vmx=True)
    check(value, without, vmx=False)
    assert "IA32_VMX_MISC[14]" in faults(value, without, vmx=True)


def test_vmx_rule_may_spare_writes_that_clear_trace_en() -> None:
    lenient = replace(FULL, vmx_tracing=False, vmx_no_pt_gp="traceen_only")
    check(BRANCH_EN, lenient, vmx=True)
    assert faults(TRACE_EN | TOPA, lenient, vmx=True)


def test_branch_en_is_required_on_broadwell() -> None:
    check(TRACE_EN | TOPA, FULL)
    check(TRACE_EN | TOPA | BRANCH_EN, BROADWELL)
    assert "BranchEn" in faults(TRACE_EN | TOPA, BROADWELL)


def test_wrmsr_returns_the_old_value() -> None:
    registers = RegisterFile(ctl=BRANCH_EN)
    assert wrmsr(registers, CTL, TRACE_EN | TOPA, profile=FULL) == BRANCH_EN
    assert registers.ctl == TRACE_EN | TOPA


@pytest.mark.parametrize("value", [-1, 1 << 64])
def test_value_beyond_64_bits_raises_value_error(value: int) -> None:
    with pytest.raises(ValueError, match="64 bits"):
        check(value)
