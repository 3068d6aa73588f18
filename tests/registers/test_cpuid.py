"""CPUID leaves of the profiles."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from rtit.registers import BROADWELL, FULL, LEAVES, PROFILES, SKYLAKE, Leaf, Profile


@pytest.mark.spec("CPUID-001")
def test_pt_support_is_bit_25_of_leaf_7() -> None:
    assert FULL.cpuid(7).ebx >> 25 & 1 == 1
    without = replace(FULL, pt=False)
    assert without.cpuid(7).ebx >> 25 & 1 == 0
    assert without.cpuid(0x14) == Leaf()
    assert without.cpuid(0x14, 1) == Leaf()
    # Tools ignore leaf 14H if that bit is 0.
    leaves: dict[tuple[int, int], Leaf] = {key: FULL.cpuid(*key) for key in LEAVES}
    assert Profile.from_cpuid("x", leaves).pt
    assert not Profile.from_cpuid("x", leaves | {(7, 0): Leaf()}).pt
    assert Profile.from_cpuid("x", leaves | {(7, 0): Leaf()}).cpuid(0x14) == Leaf()


@pytest.mark.spec("CPUID-002")
@pytest.mark.parametrize(
    "capabilities",
    [{"ip_filtering": True, "ranges": 1}, {"mtc": True}, {"psb_cyc": True}],
)
def test_each_capability_of_subleaf_1_makes_it_present(capabilities: dict[str, Any]) -> None:
    assert BROADWELL.cpuid(0x14).eax == 0
    assert replace(BROADWELL, **capabilities).cpuid(0x14).eax == 1


@pytest.mark.spec("CPUID-002")
def test_highest_subleaf_is_that_of_the_profile() -> None:
    assert FULL.cpuid(0x14).eax == 1
    assert SKYLAKE.cpuid(0x14).eax == 1
    assert BROADWELL.cpuid(0x14).eax == 0
    assert BROADWELL.cpuid(0x14, 1) == Leaf()
    assert FULL.cpuid(0x14, 2) == Leaf()


@pytest.mark.spec("CPUID-002")
@pytest.mark.parametrize("only", ["ip_filtering", "mtc", "psb_cyc"])
def test_any_value_in_subleaf_1_raises_the_highest_subleaf(only: str) -> None:
    change: dict[str, Any] = dict.fromkeys(("ip_filtering", "mtc", "psb_cyc"), False)
    assert replace(FULL, **change | {only: True}).cpuid(0x14).eax == 1


@pytest.mark.spec("CPUID-021", "CPUID-028", "CPUID-030", "CPUID-032", "CPUID-036")
def test_reserved_bits_read_zero() -> None:
    leaf = FULL.cpuid(0x14)
    assert leaf.ebx == 0x1FF
    assert leaf.ecx == 0x8000_000F
    assert leaf.edx == 0
    leaf = FULL.cpuid(0x14, 1)
    assert leaf.eax & 0xFFF8 == 0
    assert (leaf.ecx, leaf.edx) == (0, 0)


@pytest.mark.parametrize(
    ("output", "bit", "capability"),
    [
        ("ebx", 0, "cr3_filtering"),
        ("ebx", 1, "psb_cyc"),
        ("ebx", 2, "ip_filtering"),
        ("ebx", 3, "mtc"),
        ("ebx", 4, "ptwrite"),
        ("ebx", 5, "power_events"),
        ("ebx", 6, "preservation"),
        ("ebx", 7, "event_trace"),
        ("ebx", 8, "tnt_disable"),
        ("ecx", 0, "topa"),
        ("ecx", 1, "multi_entry"),
        ("ecx", 2, "single_range"),
        ("ecx", 3, "fabric"),
        ("ecx", 31, "lip"),
    ],
)
def test_each_capability_sets_its_cpuid_bit(output: str, bit: int, capability: str) -> None:
    on = getattr(FULL.cpuid(0x14), output)
    change: dict[str, Any] = {capability: False}
    off = getattr(replace(FULL, **change).cpuid(0x14), output)
    assert on ^ off == 1 << bit


@pytest.mark.spec("CPUID-031")
@pytest.mark.parametrize("ranges", range(1, 5))
def test_range_count_is_in_subleaf_1(ranges: int) -> None:
    assert replace(FULL, ranges=ranges).cpuid(0x14, 1).eax & 7 == ranges


@pytest.mark.spec("CPUID-033", "CPUID-034", "CPUID-035")
def test_bitmaps_are_in_subleaf_1() -> None:
    profile = replace(FULL, mtc_periods=0x249, cyc_thresholds=0x3FFF, psb_periods=0x3F)
    leaf = profile.cpuid(0x14, 1)
    assert leaf.eax >> 16 == 0x249
    assert leaf.ebx == 0x003F_3FFF


@pytest.mark.spec("CPUID-038")
def test_lbr_and_pt_exclude_each_other_on_broadwell_and_skylake() -> None:
    for model in range(256):
        profile = replace(FULL, family=6, model=model)
        assert profile.lbr_exclusive == (model in (0x3D, 0x47, 0x4E, 0x4F, 0x56, 0x5E))
    assert not replace(FULL, family=15, model=0x3D).lbr_exclusive


def test_profiles_equal_real_cpuid_dumps() -> None:
    assert SKYLAKE.cpuid(1).eax == 0x506E3
    assert (SKYLAKE.family, SKYLAKE.model, SKYLAKE.stepping) == (6, 0x5E, 3)
    assert SKYLAKE.cpuid(0x14) == (1, 0xF, 7, 0)
    assert SKYLAKE.cpuid(0x14, 1) == (0x0249_0002, 0x003F_3FFF, 0, 0)
    assert SKYLAKE.cpuid(0x80000008).eax == 0x3027
    assert BROADWELL.cpuid(1).eax == 0x406F1
    assert BROADWELL.cpuid(0x14) == (0, 1, 1, 0)
    assert BROADWELL.maxphyaddr == 46


@pytest.mark.parametrize(
    ("family", "model", "stepping", "eax"),
    [
        (6, 0x5E, 3, 0x506E3),
        (15, 0x47, 1, 0x40F71),
        (16, 0x0F, 0, 0x100FF0),
        (0x10E, 0x12, 4, 0xFF10F24),
    ],
)
def test_signature_has_family_model_and_stepping(
    family: int, model: int, stepping: int, eax: int
) -> None:
    """Volume 2, CPUID: DisplayFamily is above 15 by the extended family."""
    profile = replace(FULL, family=family, model=model, stepping=stepping)
    assert profile.cpuid(1).eax == eax


@pytest.mark.parametrize(
    ("eax", "family", "model"),
    [
        (0x0005_06E3, 6, 0x5E),
        (0x0FF0_0673, 6, 0x07),
        (0x000F_0543, 5, 4),
        (0x000A_36A7, 6, 0xAA),
        (0x0000_0F34, 15, 0x03),
        (0x00A2_0F12, 25, 0x21),
        (0x0FF0_0F00, 270, 0x00),
    ],
)
def test_family_and_model_are_decoded_from_leaf_1(eax: int, family: int, model: int) -> None:
    """Volume 2, CPUID: the family decides which extended fields count."""
    profile = Profile.from_cpuid("x", {(1, 0): (eax, 0, 0, 0)})
    assert (profile.family, profile.model) == (family, model)


def test_cpuid_text_has_vendor_family_model_and_stepping() -> None:
    assert SKYLAKE.cpuid_text == "GenuineIntel,6,94,3"


@pytest.mark.spec("TIME-001", "TIME-002")
def test_leaf_15h_reports_the_crystal_clock() -> None:
    assert FULL.cpuid(0x15) == (2, 80, 25_000_000, 0)
    assert FULL.tsc_hz == 1_000_000_000
    assert SKYLAKE.tsc_hz is None
    assert FULL.cpuid(0x80000007).edx == 1 << 8


@pytest.mark.parametrize("profile", PROFILES.values(), ids=PROFILES)
def test_profile_round_trips_through_leaves(profile: Profile) -> None:
    leaves = {key: profile.cpuid(*key) for key in LEAVES}
    again = Profile.from_cpuid(
        profile.name,
        leaves,
        vmx_tracing=profile.vmx_tracing,
        branchen_must_be_set=profile.branchen_must_be_set,
    )
    assert again == profile


@pytest.mark.parametrize(
    "change",
    [
        pytest.param({"ranges": 5}, marks=pytest.mark.spec("CPUID-031")),
        pytest.param({"ranges": 0}, marks=pytest.mark.spec("CPUID-009")),
        {"ranges": -1, "ip_filtering": False},
        {"maxphyaddr": 31},
        {"maxphyaddr": 53},
        {"linear_width": 40},
    ],
)
def test_contradictory_values_are_rejected(change: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"ranges|MAXPHYADDR|bits"):
        replace(FULL, **change)


@pytest.mark.parametrize(
    "change",
    [
        {"ranges": 1},
        {"ranges": 4},
        {"ranges": 0, "ip_filtering": False},
        {"maxphyaddr": 32},
        {"maxphyaddr": 52},
        {"linear_width": 32},
        {"linear_width": 57},
    ],
)
def test_largest_possible_values_are_accepted(change: dict[str, Any]) -> None:
    for name, value in change.items():
        assert getattr(replace(FULL, **change), name) == value


def test_sources_name_attributes() -> None:
    for profile in PROFILES.values():
        for name in profile.sources:
            assert hasattr(profile, name)
