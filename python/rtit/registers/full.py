"""The processor that the chapter describes, whose unit records are made by."""

from __future__ import annotations

from rtit.registers.profile import Profile

VMX_RULE = "assumed: section 33.2.9.4 to the letter (volume 3, appendix A speaks of TraceEn alone)"

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
            [
                "pt",
                "cr3_filtering",
                "psb_cyc",
                "ip_filtering",
                "mtc",
                "ptwrite",
                "power_events",
                "preservation",
                "event_trace",
                "tnt_disable",
                "topa",
                "multi_entry",
                "single_range",
                "fabric",
                "lip",
                "mtc_periods",
                "cyc_thresholds",
                "vmx_tracing",
                "xsaves",
            ],
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
