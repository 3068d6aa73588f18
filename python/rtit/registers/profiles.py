"""Processor models: the PT features that CPUID enumerates, and limits (section 33.3.1).

`FULL` has every feature of the chapter; recordings use it. The other profiles have the CPUID values
of dumps of real processors. Each value has its source, which is "assumed" if there is no public
one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal

from rtit.registers.cpuid import LEAVES, Leaf
from rtit.registers.errata import ERRATA, errata_of, erratum_name

_LBR_EXCLUSIVE = frozenset({(6, model) for model in (0x3D, 0x47, 0x4E, 0x4F, 0x56, 0x5E)})
PT_STATE_SIZE = 128
"""Bytes of XSAVE state component 8, as real processors report them in CPUID.(0DH,8):EAX."""

_DERIVED = {
    "maximum_subleaf": "derived: 1 if sub-leaf 1 of 14H has anything to say",
    "lbr_exclusive": "derived: the models that section 33.3.1.2 lists",
    **dict.fromkeys(("pt_state", "pt_state_size"), "derived: component 8 of XSAVES, of 128 bytes"),
    "known_errata": "derived: registers.errata names a source for each",
}


@dataclass(frozen=True)
class Profile:
    """A processor. Booleans are capabilities by the fields of `registers.cpuid` that report them.

    `ranges` is 0..4 (without effect if `ip_filtering` is false); `mtc_periods`, `cyc_thresholds`
    and `psb_periods` are bitmaps of legal encodings, bit n for encoding n (encoding 0 is legal in
    any case). `maxphyaddr` and `linear_width` are in bits, `crystal_hz` in Hz with TSC = crystal x
    `tsc_numerator` / `tsc_denominator`. `xsaves`: XSAVES exists. `vmx_tracing` is
    IA32_VMX_MISC[14]; `vmx_no_pt_gp` says which writes of IA32_RTIT_CTL fault in VMX operation
    without it. `branchen_must_be_set`: setting TraceEn without BranchEn faults, as on the first
    processors with PT. `errata` are the errata that are on, by their names in `registers.errata`:
    none unless asked for. `sources` says where values come from, "assumed" included. ValueError if
    the values contradict each other, or for an unknown erratum.
    """

    name: str
    family: int = 6
    model: int = 0
    stepping: int = 0
    pt: bool = True
    cr3_filtering: bool = False
    psb_cyc: bool = False
    ip_filtering: bool = False
    mtc: bool = False
    ptwrite: bool = False
    power_events: bool = False
    preservation: bool = False
    event_trace: bool = False
    tnt_disable: bool = False
    topa: bool = False
    multi_entry: bool = False
    single_range: bool = False
    fabric: bool = False
    lip: bool = False
    ranges: int = 0
    mtc_periods: int = 0
    cyc_thresholds: int = 0
    psb_periods: int = 0
    tsc_denominator: int = 0
    tsc_numerator: int = 0
    crystal_hz: int = 0
    maxphyaddr: int = 36
    linear_width: int = 48
    invariant_tsc: bool = True
    xsaves: bool = True
    vmx_tracing: bool = False
    vmx_no_pt_gp: Literal["any", "traceen_only"] = "any"
    branchen_must_be_set: bool = False
    errata: frozenset[str] = frozenset()
    sources: Mapping[str, str] = field(default_factory=dict, compare=False, repr=False)

    def __post_init__(self) -> None:
        if not 0 <= self.ranges <= 4 or (self.ip_filtering and not self.ranges):
            raise ValueError(f"{self.ranges} address ranges: IP filtering has 1 to 4")
        if not 32 <= self.maxphyaddr <= 52:
            raise ValueError(f"MAXPHYADDR is 32 to 52, not {self.maxphyaddr}")
        if self.linear_width not in (32, 48, 57):
            raise ValueError(f"linear addresses have 32, 48 or 57 bits, not {self.linear_width}")
        if self.errata:
            self._check_errata()

    def _check_errata(self) -> None:
        for name in self.errata:
            if erratum_name(name) != name or ERRATA[name].flag:
                raise ValueError(f"{name} is switched on by Profile.with_errata")

    @property
    def implemented_ranges(self) -> int:
        """RANGECNT: how many ADDRn_CFG fields and ADDRn_A/B pairs exist (section 33.2.8.5)."""
        return self.ranges if self.ip_filtering else 0

    range0 = property(lambda self: self.implemented_ranges > 0)
    range1 = property(lambda self: self.implemented_ranges > 1)
    range2 = property(lambda self: self.implemented_ranges > 2)
    range3 = property(lambda self: self.implemented_ranges > 3)

    @property
    def memory_output(self) -> bool:
        """Output to memory exists in some form, and so do its two MSRs (section 33.2.8.7)."""
        return self.topa or self.single_range

    @property
    def maximum_subleaf(self) -> int:
        """The last sub-leaf of leaf 14H: 1 if sub-leaf 1 has any field."""
        return int(bool(self.implemented_ranges or self.mtc or self.psb_cyc))

    @property
    def pt_state(self) -> bool:
        """XSAVES has PT state as component 8 (section 33.3.5.2)."""
        return self.pt and self.xsaves

    @property
    def pt_state_size(self) -> int:
        """Bytes of XSAVE component 8, 0 if there is none."""
        return PT_STATE_SIZE * self.pt_state

    @property
    def lbr_exclusive(self) -> bool:
        """LBR, BTS, BTM and LER are off while TraceEn = 1 (section 33.3.1.2)."""
        return (self.family, self.model) in _LBR_EXCLUSIVE

    @property
    def known_errata(self) -> tuple[str, ...]:
        """The known errata of this model, on or not (see `registers.errata`)."""
        return errata_of(self.family, self.model)

    @property
    def active_errata(self) -> tuple[str, ...]:
        """The errata that are on, in the order of `ERRATA`."""
        return tuple(
            name
            for name, each in ERRATA.items()
            if (getattr(self, each.flag) if each.flag else name in self.errata)
        )

    def with_errata(self, *names: str) -> Profile:
        """Return this processor with the errata `names` on; without names, all known ones.

        Names may be aliases, in any case. Raises ValueError for an unknown name.
        """
        wanted = [erratum_name(name) for name in names] or self.known_errata
        flags: dict[str, Any] = {
            flag: True for name in wanted if (flag := ERRATA[name].flag) is not None
        }
        switches = {name for name in wanted if ERRATA[name].flag is None}
        return replace(self, errata=self.errata | switches, **flags)

    def source_of_attribute(self, name: str) -> str:
        """Return the source of the value of an attribute, or "assumed". Raises AttributeError."""
        getattr(self, name)
        return self.sources.get(name) or _DERIVED.get(name) or "assumed"

    @property
    def cpuid_text(self) -> str:
        """The processor as perf.data names it: vendor, family, model and stepping, in decimal."""
        return f"GenuineIntel,{self.family},{self.model},{self.stepping}"

    @property
    def tsc_hz(self) -> int | None:
        """TSC ticks a second by CPUID.15H, or None if the leaf does not say."""
        if not (self.tsc_denominator and self.crystal_hz):
            return None
        return self.crystal_hz * self.tsc_numerator // self.tsc_denominator

    def cpuid(self, leaf: int, subleaf: int = 0) -> Leaf:
        """Return the CPUID leaf with the bits about PT; every other bit is 0."""
        if leaf == 0x01:
            return Leaf(
                eax=_family_model_stepping_signature(self.family, self.model, self.stepping)
            )
        if leaf == 0x14 and (not self.pt or subleaf > self.maximum_subleaf):
            return Leaf()
        answer = Leaf()
        for output, register in LEAVES.get((leaf, subleaf), {}).items():
            content = {
                row.name: int(getattr(self, row.capability or "")) for row in register.fields
            }
            answer = answer._replace(**{output: register.encode(**content)})
        return answer

    @classmethod
    def from_cpuid(
        cls,
        name: str,
        leaves: Mapping[tuple[int, int], tuple[int, int, int, int]],
        *,
        source: str = "",
        **more: Any,
    ) -> Profile:
        """Return the processor with these CPUID leaves: (eax, ebx, ecx, edx) by (leaf, sub-leaf).

        `source` says where the leaves come from, for every attribute that they report. `more` are
        attributes that CPUID does not report, or that replace what it reports.
        """
        convert: dict[str, Callable[[int], Any]] = {
            item.name: bool if isinstance(item.default, bool) else int for item in fields(cls)
        }
        values: dict[str, Any] = {}
        for key, outputs in LEAVES.items():
            for output, register in outputs.items():
                if key not in leaves:
                    continue
                decoded = register.decode(getattr(Leaf(*leaves[key]), output))
                for row in register.fields:
                    if row.capability in convert:
                        values[row.capability] = convert[row.capability](decoded[row.name])
                    elif row.capability == "implemented_ranges":
                        values["ranges"] = decoded[row.name]
        if (0x01, 0) in leaves:
            values["family"], values["model"] = _family_model(leaves[0x01, 0][0])
        sources = dict.fromkeys(values, source) | dict(more.pop("sources", {}))
        return cls(name, **(values | more), sources=sources)


def _family_model_stepping_signature(family: int, model: int, stepping: int) -> int:
    """Return CPUID.01H:EAX."""
    low = stepping | (model & 15) << 4 | min(family, 15) << 8
    return low | (model >> 4) << 16 | max(family - 15, 0) << 20


def _family_model(eax: int) -> tuple[int, int]:
    """Return DisplayFamily and DisplayModel (Volume 2, CPUID)."""
    family = (eax >> 8) & 15
    model = (eax >> 4) & 15
    if family in (6, 15):
        model |= (eax >> 12) & 0xF0
    if family == 15:
        family += (eax >> 20) & 255
    return family, model


VMX_RULE = (
    "assumed: section 33.2.9.4 to the letter (volume 3, appendix A has the rule only for TraceEn)"
)

FULL = Profile(
    "full",
    family=6,
    model=0xAF,
    stepping=3,
    cr3_filtering=True,
    psb_cyc=True,
    ip_filtering=True,
    mtc=True,
    ptwrite=True,
    power_events=True,
    preservation=True,
    event_trace=True,
    tnt_disable=True,
    topa=True,
    multi_entry=True,
    single_range=True,
    fabric=True,
    lip=True,
    ranges=4,
    mtc_periods=0xFFFF,
    cyc_thresholds=0xFFFF,
    psb_periods=0x3F,
    tsc_denominator=2,
    tsc_numerator=80,
    crystal_hz=25_000_000,
    maxphyaddr=52,
    vmx_tracing=True,
    sources={
        **dict.fromkeys(
            (
                *("pt", "cr3_filtering", "psb_cyc", "ip_filtering", "mtc", "ptwrite"),
                *("power_events", "preservation", "event_trace", "tnt_disable", "topa"),
                *("multi_entry", "single_range", "fabric", "lip", "mtc_periods"),
                *("cyc_thresholds", "vmx_tracing", "xsaves"),
            ),
            "assumed: everything that the chapter enumerates is there",
        ),
        **dict.fromkeys(
            ("tsc_denominator", "tsc_numerator", "crystal_hz", "invariant_tsc"),
            "assumed: the clock of this model, a TSC of 1 GHz over a crystal of 25 MHz",
        ),
        **dict.fromkeys(
            ("family", "model"), "06_AFH, a real model for which libipt's pt_cpu_errata has few"
        ),
        "stepping": "assumed",
        "ranges": "section 33.3.1: no processor has more than 4",
        "psb_periods": "assumed: 2K to 64K, so that the 17 bits of PacketByteCnt hold the count",
        "maxphyaddr": "volume 2, CPUID: no processor has more than 52",
        "linear_width": "assumed: paging with four levels",
        "vmx_no_pt_gp": VMX_RULE,
        "branchen_must_be_set": "Table 33-6 has no such rule",
    },
)
"""Everything that the chapter enumerates."""

_VMX_ASSUMED = "assumed: as measured on 06_5EH, whose IA32_VMX_MISC is 7004C1E7H"
_NOT_BDM106 = "Linux, arch/x86/events/intel/pt.c: BDM106 is an erratum only of Broadwell models"
_XSAVES = "GCC manual, x86 options: of the processors with PT, only -march=broadwell has no XSAVES"
_LATER_SOURCES = {"vmx_no_pt_gp": VMX_RULE, "xsaves": _XSAVES, "branchen_must_be_set": _NOT_BDM106}
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
"""Broadwell: only CR3 filtering and single-entry ToPA."""

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
    sources={"vmx_tracing": _VMX_ASSUMED, **_LATER_SOURCES},
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
    sources={"vmx_tracing": _VMX_ASSUMED, **_LATER_SOURCES},
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
    sources={"vmx_tracing": _VMX_ASSUMED, **_LATER_SOURCES},
)
"""The Gracemont cores of Alder Lake: PTWRITE and preservation; IP payloads are linear addresses."""

PROFILES: Mapping[str, Profile] = {
    profile.name: profile
    for profile in (FULL, BROADWELL, SKYLAKE, GOLDMONT_PLUS, ICELAKE, ALDERLAKE)
}
"""The profiles by name."""
