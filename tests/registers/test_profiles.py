"""The profiles against dumps of real processors, their sources and their errata."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest

from rtit.errors import GeneralProtection
from rtit.registers import (
    ALDERLAKE,
    BROADWELL,
    ERRATA,
    FULL,
    GOLDMONT_PLUS,
    ICELAKE,
    PROFILES,
    SKYLAKE,
    Msr,
    Profile,
    RegisterFile,
    check_wrmsr,
    wrmsr,
)
from rtit.registers.errata import errata_of

ALL = pytest.mark.parametrize("profile", PROFILES.values(), ids=PROFILES)

# Lines of the dumps that the profiles name, as published: leaf, sub-leaf: EAX-EBX-ECX-EDX. Of
# leaves 1 and 7 the profiles keep the signature and the bit of PT.
DUMPS = {
    "broadwell": """
        14 0: 00000000-00000001-00000001-00000000
        80000007 0: 00000000-00000000-00000000-00000100
        80000008 0: 0000302E-00000000-00000000-00000000
        """,
    "skylake": """
        14 0: 00000001-0000000F-00000007-00000000
        14 1: 02490002-003F3FFF-00000000-00000000
        80000007 0: 00000000-00000000-00000000-00000100
        80000008 0: 00003027-00000000-00000000-00000000
        """,
    "goldmont-plus": """
        14 0: 00000001-0000003F-80000007-00000000
        14 1: 02490002-003FFFFF-00000000-00000000
        15 0: 00000003-000000AB-0124F800-00000000
        80000007 0: 00000000-00000000-00000000-00000100
        80000008 0: 00003027-00000000-00000000-00000000
        """,
    "icelake": """
        14 0: 00000001-0000000F-00000007-00000000
        14 1: 02490002-003F1FFF-00000000-00000000
        15 0: 00000002-0000004E-0249F000-00000000
        80000007 0: 00000000-00000000-00000000-00000100
        80000008 0: 00003027-00000000-00000000-00000000
        """,
    "alderlake": """
        14 0: 00000001-0000005F-80000007-00000000
        14 1: 02490002-003F003F-00000000-00000000
        15 0: 00000002-0000008C-0249F000-00000000
        80000007 0: 00000000-00000000-00000000-00000100
        80000008 0: 00003027-00000000-00000000-00000000
        """,
}
SIGNATURES = {
    "broadwell": (0x406F1, 0x021CBFBB),
    "skylake": (0x506E3, 0x029C67AF),
    "goldmont-plus": (0x706A8, 0x2294E287),
    "icelake": (0x706E5, 0xF2BF27EF),
    "alderlake": (0x906A2, 0x239CA7EB),
}


@pytest.mark.parametrize("name", DUMPS)
def test_cpuid_leaves_equal_the_dump(name: str) -> None:
    profile = PROFILES[name]
    for line in DUMPS[name].split("\n"):
        if not line.strip():
            continue
        key, _, outputs = line.partition(":")
        leaf, subleaf = (int(word, 16) for word in key.split())
        assert profile.cpuid(leaf, subleaf) == tuple(
            int(word, 16) for word in outputs.strip().split("-")
        ), line
    signature, features = SIGNATURES[name]
    assert profile.cpuid(1).eax == signature
    assert profile.cpuid(7).ebx == features & 1 << 25 != 0


@pytest.mark.spec("CPUID-038")
def test_profiles_differ_in_documented_capabilities() -> None:
    names = list(PROFILES)
    assert [name for name in names if PROFILES[name].lip] == ["full", "goldmont-plus", "alderlake"]
    assert [name for name in names if PROFILES[name].lbr_exclusive] == ["broadwell", "skylake"]
    assert [name for name in names if not PROFILES[name].vmx_tracing] == ["broadwell"]
    assert GOLDMONT_PLUS.tsc_hz == 1_094_400_000
    assert ICELAKE.tsc_hz == 1_497_600_000
    assert ALDERLAKE.tsc_hz == 2_688_000_000


@ALL
def test_every_value_has_a_source_or_is_assumed(profile: Profile) -> None:
    # The name is ours; errata are switches, off by default.
    values = {row.name for row in fields(Profile)} - {"name", "sources", "errata"}
    for name in sorted(values):
        assert profile.sources.get(name, "").strip(), f"{profile.name}.{name}"
    assert set(profile.sources) == values
    for name in ("lbr_exclusive", "known_errata", "maximum_subleaf"):
        assert profile.source_of_attribute(name).startswith("derived: ")


def test_values_of_real_processors_are_assumed_only_without_a_public_source() -> None:
    allowed = {"vmx_tracing", "vmx_no_pt_gp"}
    for profile in PROFILES.values():
        if profile is FULL:
            continue
        assumed = {name for name, text in profile.sources.items() if text.startswith("assumed")}
        assert assumed <= allowed
    measured = (BROADWELL, SKYLAKE)
    assert all("IA32_VMX_MISC is" in profile.sources["vmx_tracing"] for profile in measured)
    assert not 0x300481E5 >> 14 & 1
    assert 0x7004C1E7 >> 14 & 1
    assert Profile("new").source_of_attribute("mtc") == "assumed"
    with pytest.raises(AttributeError):
        Profile("new").source_of_attribute("mct")


# Bits that fault when one of them is flipped, as measured on a Core i7-6700K (06_5EH) and a
# Core i7-5600U (06_3DH, where IA32_RTIT_CTL holds ToPA and BranchEn from the start); VirtualBox
# records them in its database of processors. ADDRn and OUTPUT_BASE follow from 48 and 39 bits.
# IA32_RTIT_CR3_MATCH is left out: there both processors reject more bits than the chapter says.
MEASURED = [
    pytest.param(SKYLAKE, Msr.CTL, 0, 0xFFFF_FFCC_F887_D070, id="skylake-CTL"),
    pytest.param(SKYLAKE, Msr.STATUS, 0, 0xFFFE_0000_FFFF_FFC8, id="skylake-STATUS"),
    pytest.param(SKYLAKE, Msr.OUTPUT_BASE, 0, 0xFFFF_FF80_0000_007F, id="skylake-OUTPUT_BASE"),
    pytest.param(SKYLAKE, Msr.OUTPUT_MASK_PTRS, 0x7F, 0, id="skylake-OUTPUT_MASK_PTRS"),
    pytest.param(SKYLAKE, Msr.ADDR0_A, 0, 0xFFFF_8000_0000_0000, id="skylake-ADDR0_A"),
    pytest.param(SKYLAKE, Msr.ADDR1_B, 0, 0xFFFF_8000_0000_0000, id="skylake-ADDR1_B"),
    pytest.param(BROADWELL, Msr.CTL, 0x2100, 0xFFFF_FFFF_FFFF_D272, id="broadwell-CTL"),
    pytest.param(BROADWELL, Msr.STATUS, 0, 0xFFFF_FFFF_FFFF_FFC8, id="broadwell-STATUS"),
    pytest.param(BROADWELL, Msr.OUTPUT_BASE, 0, 0xFFFF_FF80_0000_007F, id="broadwell-OUTPUT_BASE"),
]


@pytest.mark.spec("MSRCTL-004", "MSRCTL-020", "MSRCTL-026", "MSRSTS-006", "MSROBS-001")
@pytest.mark.parametrize(("profile", "msr", "start", "refused"), MEASURED)
def test_unsupported_bits_fault_on_real_processors(
    profile: Profile, msr: Msr, start: int, refused: int
) -> None:
    profile = replace(profile, maxphyaddr=39)
    found = 0
    for bit in range(64):
        try:
            check_wrmsr(msr, start ^ 1 << bit, current=RegisterFile(), profile=profile)
        except GeneralProtection:
            found |= 1 << bit
    assert f"{found:#x}" == f"{refused:#x}"


@pytest.mark.spec("CPUID-011", "CPUID-012")
@ALL
def test_warm_reset_clears_all_msrs_or_trace_en_only(profile: Profile) -> None:
    before = RegisterFile(*range(0x1001, 0x1001 + 13))
    after = before.copy()
    after.reset_warm(profile)
    if profile is BROADWELL:
        assert after == RegisterFile()
    else:
        assert after == replace(before, ctl=before.ctl & ~1)
        assert before.ctl & 1


@pytest.mark.spec("MSRGEN-011")
@ALL
def test_other_msrs_are_writable_only_before_trace_en(profile: Profile) -> None:
    others = [
        msr
        for msr in Msr
        if msr != Msr.CTL and (not msr.name.startswith("ADDR") or profile.ip_filtering)
    ]
    others = [msr for msr in others if "ADDR" not in msr.name or int(msr.name[4]) < profile.ranges]
    enable = 0x2101
    registers = RegisterFile(status=0x20)
    for msr in others:
        wrmsr(registers, msr, 0, profile=profile)
    wrmsr(registers, Msr.CTL, enable, profile=profile)
    assert (registers.ctl, registers.status) == (enable, 0)
    first = RegisterFile()
    wrmsr(first, Msr.CTL, enable, profile=profile)
    for msr in others:
        with pytest.raises(GeneralProtection, match="TraceEn"):
            wrmsr(first, msr, 0, profile=profile)


# As libipt lists them by model; BDM106 as Linux does.
KNOWN = {
    "full": ("APL11",),
    "broadwell": ("BDM64", "BDM70", "BDM106"),
    "skylake": ("BDM70", "SKD007", "SKD010", "SKD022", "SKL014", "SKL168"),
    "goldmont-plus": ("APL11",),
    "icelake": ("BDM70", "SKD022", "SKL014"),
    "alderlake": ("BDM70", "SKD022", "APL11"),
}
LATER = {
    (6, 0x8F): ("BDM70", "SKD022", "SKZ84"),
    (6, 0xD5): ("BDM70", "SKD022", "APL11"),
    (18, 1): ("BDM70", "SKD022", "APL11"),
    (18, 3): ("BDM70", "SKD022", "APL11"),
}
"""Sapphire Rapids, Wildcat Lake and Nova Lake, as libipt lists them."""


@ALL
def test_errata_of_each_model_equal_those_of_libipt(profile: Profile) -> None:
    assert profile.known_errata == KNOWN[profile.name]
    for name in profile.known_errata:
        assert ERRATA[name].effect
        assert ERRATA[name].source


@pytest.mark.parametrize("model", LATER)
def test_later_processors_have_their_documented_errata(model: tuple[int, int]) -> None:
    assert errata_of(*model) == LATER[model]


def test_errata_are_off_by_default() -> None:
    for profile in PROFILES.values():
        assert profile.errata == frozenset()
    # That one is a rule for WRMSR, which a driver must follow.
    assert BROADWELL.active_errata == ("BDM106",)
    everything = SKYLAKE.with_errata()
    assert everything.active_errata == SKYLAKE.known_errata
    assert SKYLAKE.with_errata("kbl021", "APL12").active_errata == ("BDM70", "APL12")
    assert everything.with_errata("APL12").errata > everything.errata


def test_erratum_switch_changes_behaviour() -> None:
    acting = SKYLAKE.with_errata("BDM106")
    assert acting.branchen_must_be_set
    with pytest.raises(GeneralProtection, match="BranchEn"):
        check_wrmsr(Msr.CTL, 0x101, current=RegisterFile(), profile=acting)
    check_wrmsr(Msr.CTL, 0x101, current=RegisterFile(), profile=SKYLAKE)
    assert [name for name, each in ERRATA.items() if not each.acts] == ["BDM64", "SKZ84"]


def test_unknown_errata_are_rejected() -> None:
    with pytest.raises(ValueError, match="BDM7; known are BDM64, BDM70"):
        SKYLAKE.with_errata("BDM7")
    with pytest.raises(ValueError, match="no erratum X"):
        Profile("new", errata=frozenset({"X"}))
    with pytest.raises(ValueError, match="with_errata"):
        Profile("new", errata=frozenset({"BDM106"}))
