"""The CPUID leaves that describe PT, row by row (section 33.3.1, Tables 33-11 and 33-12).

`capability` of a row names the attribute of `Profile` that the field reports; so a profile and its
leaves are two forms of one thing.
"""

from __future__ import annotations

from typing import NamedTuple

from rtit.registers.fields import Field, Register


class Leaf(NamedTuple):
    """The four 32-bit values that CPUID returns."""

    eax: int = 0
    ebx: int = 0
    ecx: int = 0
    edx: int = 0


def _output_registers(leaf: str, **outputs: list[Field]) -> dict[str, Register]:
    return {
        output: Register(f"{leaf}:{output.upper()}", rows[0].source, tuple(rows), width=32)
        for output, rows in outputs.items()
    }


def _capability_bit(
    name: str, bit: int, meaning: str, capability: str, source: str = "Table 33-11"
) -> Field:
    return Field(name, bit, bit, source, meaning, capability)


LEAVES: dict[tuple[int, int], dict[str, Register]] = {
    (0x01, 0): _output_registers(
        "CPUID.01H",
        eax=[
            Field("Stepping", 3, 0, "Volume 2, CPUID", "stepping", "stepping"),
            Field("Model", 7, 4, "Volume 2, CPUID", "model, low half"),
            Field("Family", 11, 8, "Volume 2, CPUID", "family, up to 0FH"),
            Field("ExtendedModel", 19, 16, "Volume 2, CPUID", "model, high half"),
            Field("ExtendedFamily", 27, 20, "Volume 2, CPUID", "what family exceeds 0FH by"),
        ],
    ),
    (0x07, 0): _output_registers(
        "CPUID.(07H,0)",
        ebx=[
            _capability_bit("IntelPT", 25, "Processor Trace is supported", "pt", "section 33.3.1")
        ],
    ),
    (0x0D, 1): _output_registers(
        "CPUID.(0DH,1)",
        eax=[
            _capability_bit(
                "XSAVES", 3, "XSAVES, XRSTORS and IA32_XSS", "xsaves", "Volume 2, CPUID"
            )
        ],
        ecx=[
            _capability_bit(
                "PTState", 8, "IA32_XSS[8] can be set: PT state", "pt_state", "section 33.3.5.2"
            )
        ],
    ),
    (0x0D, 8): _output_registers(
        "CPUID.(0DH,8)",
        eax=[Field("Size", 31, 0, "Volume 2, CPUID", "bytes of PT state", "pt_state_size")],
        ecx=[
            _capability_bit(
                "Supervisor",
                0,
                "a component of IA32_XSS, not of XCR0",
                "pt_state",
                "Volume 2, CPUID",
            )
        ],
    ),
    (0x14, 0): _output_registers(
        "CPUID.(14H,0)",
        eax=[
            Field("MaximumSubleaf", 31, 0, "Table 33-11", "last valid sub-leaf", "maximum_subleaf")
        ],
        ebx=[
            _capability_bit("CR3Filtering", 0, "CR3 filtering", "cr3_filtering"),
            _capability_bit("PsbCyc", 1, "configurable PSB and cycle-accurate mode", "psb_cyc"),
            _capability_bit(
                "IPFiltering", 2, "IP filtering, TraceStop, MSRs outlive warm reset", "ip_filtering"
            ),
            _capability_bit("MTC", 3, "MTC packets", "mtc"),
            _capability_bit("PTWRITE", 4, "PTWRITE", "ptwrite"),
            _capability_bit("PowerEvents", 5, "power event trace", "power_events"),
            _capability_bit("Preservation", 6, "PSB and PMI preservation", "preservation"),
            _capability_bit("EventTrace", 7, "event trace", "event_trace"),
            _capability_bit("TNTDisable", 8, "TNT disable", "tnt_disable"),
        ],
        ecx=[
            _capability_bit("TOPAOUT", 0, "ToPA output", "topa"),
            _capability_bit("MENTRY", 1, "ToPA tables with several output entries", "multi_entry"),
            _capability_bit("SNGLRGNOUT", 2, "single-range output", "single_range"),
            _capability_bit("Transport", 3, "output to the trace transport", "fabric"),
            _capability_bit("LIP", 31, "IP payloads are linear addresses", "lip"),
        ],
    ),
    (0x14, 1): _output_registers(
        "CPUID.(14H,1)",
        eax=[
            Field("RANGECNT", 2, 0, "Table 33-12", "address ranges", "implemented_ranges"),
            Field(
                "MTCPeriods", 31, 16, "Table 33-12", "bitmap of MTCFreq encodings", "mtc_periods"
            ),
        ],
        ebx=[
            Field(
                "CycThresholds",
                15,
                0,
                "Table 33-12",
                "bitmap of CycThresh values",
                "cyc_thresholds",
            ),
            Field(
                "PSBPeriods", 31, 16, "Table 33-12", "bitmap of PSBFreq encodings", "psb_periods"
            ),
        ],
    ),
    (0x15, 0): _output_registers(
        "CPUID.15H",
        eax=[
            Field("Denominator", 31, 0, "Volume 2, CPUID", "of TSC over crystal", "tsc_denominator")
        ],
        ebx=[Field("Numerator", 31, 0, "Volume 2, CPUID", "of TSC over crystal", "tsc_numerator")],
        ecx=[Field("CrystalHz", 31, 0, "Volume 2, CPUID", "0 if not enumerated", "crystal_hz")],
    ),
    (0x80000007, 0): _output_registers(
        "CPUID.80000007H",
        edx=[
            _capability_bit(
                "InvariantTSC",
                8,
                "the TSC never changes its rate",
                "invariant_tsc",
                "Volume 2, CPUID",
            )
        ],
    ),
    (0x80000008, 0): _output_registers(
        "CPUID.80000008H",
        eax=[
            Field("MAXPHYADDR", 7, 0, "Volume 2, CPUID", "physical-address bits", "maxphyaddr"),
            Field("LinearWidth", 15, 8, "Volume 2, CPUID", "linear-address bits", "linear_width"),
        ],
    ),
}
"""The outputs about PT, by (leaf, sub-leaf) and register; all other bits read as 0."""


def capability_source(capability: str) -> str:
    """Return where CPUID reports an attribute of `Profile`: `CPUID.(14H,0):EBX[1]`, or ""."""
    for outputs in LEAVES.values():
        for register in outputs.values():
            for row in register.fields:
                if row.capability == capability:
                    return f"{register.name}[{row.bits}]"
    return ""
