"""The processors that the project knows, each value with its source.

CPUID values are those of dumps of real processors; where a source is "assumed", nothing public
was found that says so.
"""

from __future__ import annotations

from collections.abc import Mapping

from rtit.registers.profile import FULL, VMX_RULE, Profile

__all__ = [
    "ALDERLAKE",
    "BROADWELL",
    "FULL",
    "GOLDMONT_PLUS",
    "ICELAKE",
    "PROFILES",
    "SKYLAKE",
    "Profile",
]

_VMX_ASSUMED = "assumed: as measured on 06_5EH, whose IA32_VMX_MISC is 7004C1E7H"
_NOT_BDM106 = "Linux, arch/x86/events/intel/pt.c: BDM106 is an erratum of Broadwell models alone"
_XSAVES = "GCC manual, x86 options: of the processors with PT, -march=broadwell alone has no XSAVES"
_LATER_SOURCES = {
    "vmx_no_pt_gp": VMX_RULE,
    "xsaves": _XSAVES,
    "branchen_must_be_set": _NOT_BDM106,
}
"""Sources of the processors after Broadwell."""


BROADWELL = Profile.from_cpuid(
    "broadwell",
    {
        (0x01, 0): (0x000406F1, 0, 0, 0),
        (0x07, 0): (0, 0x021CBFBB, 0, 0),
        (0x14, 0): (0, 0x00000001, 0x00000001, 0),
        (0x80000007, 0): (0, 0, 0, 0x100),
        (0x80000008, 0): (0x302E, 0, 0, 0),
    },
    source="libcpuid, tests/intel/core_5th_gen/broadwell-e-i7.test (Core i7-6950X, 06_4FH)",
    branchen_must_be_set=True,
    xsaves=False,
    sources={
        "xsaves": _XSAVES,
        **dict.fromkeys(
            ("ranges", "mtc_periods", "cyc_thresholds", "psb_periods"),
            "the same dump: leaf 14H has no sub-leaf 1",
        ),
        **dict.fromkeys(
            ("tsc_denominator", "tsc_numerator", "crystal_hz"),
            "the same dump: the last leaf is 14H",
        ),
        "vmx_tracing": "VirtualBox, Intel_Core_i7_5600U.h (06_3DH): IA32_VMX_MISC is 300481E5H",
        "vmx_no_pt_gp": VMX_RULE,
        "branchen_must_be_set": "Linux, arch/x86/events/intel/pt.c: erratum BDM106",
    },
)
"""Broadwell: CR3 filtering and single-entry ToPA alone."""

SKYLAKE = Profile.from_cpuid(
    "skylake",
    {
        (0x01, 0): (0x000506E3, 0, 0, 0),
        (0x07, 0): (0, 0x029C67AF, 0, 0),
        (0x14, 0): (1, 0x0000000F, 0x00000007, 0),
        (0x14, 1): (0x02490002, 0x003F3FFF, 0, 0),
        (0x15, 0): (2, 266, 0, 0),
        (0x80000007, 0): (0, 0, 0, 0x100),
        (0x80000008, 0): (0x3027, 0, 0, 0),
    },
    source="InstLatx64, GenuineIntel00506E3_Skylake_CPUID (06_5EH)",
    vmx_tracing=True,
    sources={
        **dict.fromkeys(
            ("tsc_denominator", "tsc_numerator"),
            "AUXTRACE_INFO of a perf.data file of the hase project from a 06_5EH processor",
        ),
        "crystal_hz": "the same dump as leaf 14H: ECX of 15H is 0 (the crystal has 24 MHz)",
        "vmx_tracing": "VirtualBox, Intel_Core_i7_6700K.h (06_5EH): IA32_VMX_MISC is 7004C1E7H",
        **_LATER_SOURCES,
    },
)
"""Skylake client: PSB, CYC, MTC and two address ranges."""

GOLDMONT_PLUS = Profile.from_cpuid(
    "goldmont-plus",
    {
        (0x01, 0): (0x000706A8, 0, 0, 0),
        (0x07, 0): (0, 0x2294E287, 0, 0),
        (0x14, 0): (1, 0x0000003F, 0x80000007, 0),
        (0x14, 1): (0x02490002, 0x003FFFFF, 0, 0),
        (0x15, 0): (3, 171, 19_200_000, 0),
        (0x80000007, 0): (0, 0, 0, 0x100),
        (0x80000008, 0): (0x3027, 0, 0, 0),
    },
    source="InstLatx64, GenuineIntel00706A8_GoldmontPlus_CPUID (Pentium Silver N5030, 06_7AH)",
    vmx_tracing=True,
    sources={
        "vmx_tracing": _VMX_ASSUMED,
        **_LATER_SOURCES,
    },
)
"""Goldmont Plus: PTWRITE and power events as well; IP payloads are linear addresses."""

ICELAKE = Profile.from_cpuid(
    "icelake",
    {
        (0x01, 0): (0x000706E5, 0, 0, 0),
        (0x07, 0): (0, 0xF2BF27EF, 0, 0),
        (0x14, 0): (1, 0x0000000F, 0x00000007, 0),
        (0x14, 1): (0x02490002, 0x003F1FFF, 0, 0),
        (0x15, 0): (2, 78, 38_400_000, 0),
        (0x80000007, 0): (0, 0, 0, 0x100),
        (0x80000008, 0): (0x3027, 0, 0, 0),
    },
    source="InstLatx64, GenuineIntel00706E5_IceLakeY_CPUID (Core i7-1060G7, 06_7EH)",
    vmx_tracing=True,
    sources={
        "vmx_tracing": _VMX_ASSUMED,
        **_LATER_SOURCES,
    },
)
"""Ice Lake client: as Skylake, with one CYC threshold less; LBRs go on while PT traces."""

ALDERLAKE = Profile.from_cpuid(
    "alderlake",
    {
        (0x01, 0): (0x000906A2, 0, 0, 0),
        (0x07, 0): (1, 0x239CA7EB, 0, 0),
        (0x14, 0): (1, 0x0000005F, 0x80000007, 0),
        (0x14, 1): (0x02490002, 0x003F003F, 0, 0),
        (0x15, 0): (2, 140, 38_400_000, 0),
        (0x80000007, 0): (0, 0, 0, 0x100),
        (0x80000008, 0): (0x3027, 0, 0, 0),
    },
    source="libcpuid, alder-lake-p-i7.test, CPU #19, an Atom core (Core i7-12700H, 06_9AH)",
    vmx_tracing=True,
    sources={
        "vmx_tracing": _VMX_ASSUMED,
        **_LATER_SOURCES,
    },
)
"""The Gracemont cores of Alder Lake: PTWRITE and preservation; IP payloads are linear addresses."""

PROFILES: Mapping[str, Profile] = {
    profile.name: profile
    for profile in (FULL, BROADWELL, SKYLAKE, GOLDMONT_PLUS, ICELAKE, ALDERLAKE)
}
"""The profiles by name."""
