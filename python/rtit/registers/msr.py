"""The IA32_RTIT_* MSRs, row by row (section 33.2.8, Tables 33-6 to 33-9)."""

from __future__ import annotations

from enum import IntEnum

from rtit.registers.fields import Field, Register


class Msr(IntEnum):
    """Addresses. The chapter prints only that of CTL; the others are those of real processors."""

    OUTPUT_BASE = 0x560
    OUTPUT_MASK_PTRS = 0x561
    CTL = 0x570
    STATUS = 0x571
    CR3_MATCH = 0x572
    ADDR0_A = 0x580
    ADDR0_B = 0x581
    ADDR1_A = 0x582
    ADDR1_B = 0x583
    ADDR2_A = 0x584
    ADDR2_B = 0x585
    ADDR3_A = 0x586
    ADDR3_B = 0x587


def _format_size(count: int) -> str:
    for unit, shift in (("M", 20), ("K", 10)):
        if count >> shift:
            return f"{count >> shift}{unit}"
    return str(count)


def _format_count(count: int, unit: str) -> str:
    return f"{count} {unit}" if count == 1 else f"{count} {unit}s"


_MTC = {
    n: f"an MTC every {_format_count(1 << n, 'crystal tick')}, as ART bit {n} toggles"
    for n in range(16)
}
_CYC = {n: f"CYC threshold {_format_count((1 << n) >> 1, 'core cycle')}" for n in range(16)}
_PSB = {n: f"a PSB about every {_format_size(1 << (n + 11))} bytes" for n in range(16)}
_RANGE = {0: "range unused", 1: "FilterEn range", 2: "TraceStop range"}


def _ctl_bit(name: str, bit: int, meaning: str, capability: str | None = None) -> Field:
    return Field(name, bit, bit, "Table 33-6", meaning, capability)


CTL = Register(
    "IA32_RTIT_CTL",
    "section 33.2.8.2",
    (
        _ctl_bit("TraceEn", 0, "tracing is enabled"),
        _ctl_bit("CYCEn", 1, "CYC packets", "psb_cyc"),
        _ctl_bit("OS", 2, "trace at CPL 0"),
        _ctl_bit("User", 3, "trace at CPL above 0"),
        _ctl_bit("PwrEvtEn", 4, "power event packets", "power_events"),
        _ctl_bit("FUPonPTW", 5, "a FUP follows each PTW", "ptwrite"),
        _ctl_bit("FabricEn", 6, "output to the trace transport; ToPA is ignored", "fabric"),
        _ctl_bit("CR3Filter", 7, "trace while CR3 matches IA32_RTIT_CR3_MATCH", "cr3_filtering"),
        _ctl_bit("ToPA", 8, "output through ToPA tables, not to a single range", "topa"),
        _ctl_bit("MTCEn", 9, "MTC packets", "mtc"),
        _ctl_bit("TSCEn", 10, "TSC packets"),
        _ctl_bit("DisRETC", 11, "no RET compression"),
        _ctl_bit("PTWEn", 12, "PTW packets", "ptwrite"),
        _ctl_bit("BranchEn", 13, "packets for changes of control flow"),
        Field("MTCFreq", 17, 14, "Table 33-6", "MTC period", "mtc", "mtc_periods", values=_MTC),
        Field(
            "CycThresh",
            22,
            19,
            "Table 33-6",
            "CYC threshold",
            "psb_cyc",
            "cyc_thresholds",
            values=_CYC,
        ),
        Field("PSBFreq", 27, 24, "Table 33-6", "PSB period", "psb_cyc", "psb_periods", values=_PSB),
        _ctl_bit("EventEn", 31, "event trace packets", "event_trace"),
        *(
            Field(
                f"ADDR{n}_CFG",
                35 + 4 * n,
                32 + 4 * n,
                "Table 33-6",
                f"use of range {n}",
                f"range{n}",
                legal=(0, 1, 2),
                values=_RANGE,
            )
            for n in range(4)
        ),
        _ctl_bit("DisTNT", 55, "no TNT packets", "tnt_disable"),
        _ctl_bit(
            "InjectPsbPmiOnEnable", 56, "STATUS.PendPSB, PendTopaPMI are in use", "preservation"
        ),
    ),
    Msr.CTL,
)

STATUS = Register(
    "IA32_RTIT_STATUS",
    "section 33.2.8.4",
    (
        Field("FilterEn", 0, 0, "Table 33-7", "the current IP may be traced", access="ignored"),
        Field("ContextEn", 1, 1, "Table 33-7", "the context may be traced", access="ignored"),
        Field("TriggerEn", 2, 2, "Table 33-7", "tracing is active", access="ignored"),
        Field("Error", 4, 4, "Table 33-7", "an operational error ended tracing"),
        Field("Stopped", 5, 5, "Table 33-7", "a ToPA STOP or TraceStop ended tracing"),
        Field("PendPSB", 6, 6, "Table 33-7", "a PSB+ is due at enable", "preservation"),
        Field("PendTopaPMI", 7, 7, "Table 33-7", "a ToPA PMI is due at enable", "preservation"),
        Field("PacketByteCnt", 48, 32, "Table 33-7", "bytes towards the next PSB", "psb_cyc"),
    ),
    Msr.STATUS,
)

CR3_MATCH = Register(
    "IA32_RTIT_CR3_MATCH",
    "section 33.2.8.6",
    (Field("CR3", 63, 5, "section 33.2.8.6", "CR3 bits 63:5 to match"),),
    Msr.CR3_MATCH,
    capability="cr3_filtering",
)

OUTPUT_BASE = Register(
    "IA32_RTIT_OUTPUT_BASE",
    "section 33.2.8.7",
    (
        Field(
            "BasePhysAddr",
            63,
            7,
            "Table 33-8",
            "bits 63:7 of the base of the single range, or of the current ToPA table",
            limit="maxphyaddr",
        ),
    ),
    Msr.OUTPUT_BASE,
    capability="memory_output",
)

OUTPUT_MASK_PTRS = Register(
    "IA32_RTIT_OUTPUT_MASK_PTRS",
    "section 33.2.8.8",
    (
        Field("LowerMask", 6, 0, "Table 33-9", "forced to ones", access="ignored", reset=0x7F),
        Field(
            "MaskOrTableOffset",
            31,
            7,
            "Table 33-9",
            "bits 31:7 of the single range's mask, or the index of the current ToPA entry",
        ),
        Field("OutputOffset", 63, 32, "Table 33-9", "where the next byte goes, in the region"),
    ),
    Msr.OUTPUT_MASK_PTRS,
    capability="memory_output",
)


def _address_register(n: int, half: str) -> Register:
    what = "first" if half == "A" else "last"
    row = Field("Address", 63, 0, "section 33.2.8.5", f"{what} address of range {n}, canonical")
    name = f"IA32_RTIT_ADDR{n}_{half}"
    address = Msr[f"ADDR{n}_{half}"]
    return Register(name, "section 33.2.8.5", (row,), address, capability=f"range{n}")


ADDR = tuple(_address_register(n, half) for n in range(4) for half in "AB")
"""ADDR0_A, ADDR0_B, ADDR1_A .. ADDR3_B, as their MSR addresses go up."""

MSRS = {
    Msr(row.address): row
    for row in (OUTPUT_BASE, OUTPUT_MASK_PTRS, CTL, STATUS, CR3_MATCH, *ADDR)
    if row.address is not None
}
"""Every PT MSR by address."""
