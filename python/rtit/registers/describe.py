"""Describe a register value: one row per field, for text and JSON output."""

from __future__ import annotations

from dataclasses import dataclass

from rtit.registers.cpuid import LEAVES
from rtit.registers.fields import Field, Register
from rtit.registers.msr import CTL
from rtit.registers.profiles import Profile

# A period of 0 is shown only while its packet is enabled.
_ENABLED_BY = {"MTCFreq": "MTCEn", "CycThresh": "CYCEn", "PSBFreq": "TraceEn"}
_BITMAPS = {
    "mtc_periods": CTL["MTCFreq"],
    "cyc_thresholds": CTL["CycThresh"],
    "psb_periods": CTL["PSBFreq"],
}


@dataclass(frozen=True, slots=True)
class FieldDescription:
    """One field of a register value.

    `bits`: for example "17:14"; `content`: the field's value; `words`: its meaning; `shown`: False
    for a field that is 0 and has no meaning then.
    """

    name: str
    bits: str
    content: int
    words: str
    source: str
    shown: bool

    def as_json(self) -> dict[str, str | int]:
        """Return the field as JSON data."""
        return {
            "name": self.name,
            "bits": self.bits,
            "value": self.content,
            "meaning": self.words,
            "source": self.source,
        }


def describe_fields(
    register: Register, value: int, profile: Profile | None = None
) -> list[FieldDescription]:
    """Return the fields of `value`, high bits first; with `profile`, periods also in time.

    Raises ValueError if `value` has more bits than the register.
    """
    contents = register.decode(value)
    rows = []
    for row in sorted(register.fields, key=lambda each: -each.low):
        content = contents[row.name]
        governor = _ENABLED_BY.get(row.name) if register is CTL else None
        shown = bool(
            content or (_is_field_present(row, profile) and governor and contents[governor])
        )
        words = _describe_content(row, content, profile)
        rows.append(FieldDescription(row.name, row.bits, content, words, row.source, shown))
    return rows


def format_set_bits(value: int) -> str:
    """Return the bits that are 1, as "bit 18" or "bits 63, 48:45": runs, high to low."""
    runs: list[list[int]] = []
    for bit in reversed(range(value.bit_length())):
        if not value >> bit & 1:
            continue
        if runs and runs[-1][1] == bit + 1:
            runs[-1][1] = bit
        else:
            runs.append([bit, bit])
    listed = ", ".join(str(high) if high == low else f"{high}:{low}" for high, low in runs)
    return f"bit {listed}" if value.bit_count() == 1 else f"bits {listed}"


def register_of_leaf(leaf: int, subleaf: int, output: str) -> Register:
    """Return the fields of one output (eax .. edx) of a leaf; none if nothing is defined."""
    known = LEAVES.get((leaf, subleaf), {}).get(output)
    name = f"CPUID.({leaf:02X}H,{subleaf}):{output.upper()}"
    return known or Register(name, "section 33.3.1", (), width=32)


def _is_field_present(row: Field, profile: Profile | None) -> bool:
    return profile is None or row.capability is None or bool(getattr(profile, row.capability))


def _describe_content(row: Field, content: int, profile: Profile | None) -> str:
    if row.capability in _BITMAPS:
        return _describe_bitmap(row.capability, content)
    if (special := _DESCRIBERS.get(row.name)) is not None:
        return special(row, content)
    text = row.values.get(content, row.meaning)
    if row.name == "MTCFreq" and profile is not None and profile.crystal_hz:
        nanoseconds = (1_000_000_000 << content) / profile.crystal_hz
        text += f"; every {nanoseconds:,.0f} ns at {profile.crystal_hz / 1e6:g} MHz"
    return text


def _describe_bitmap(capability: str, content: int) -> str:
    """Return the encodings in a bitmap, and their periods."""
    codes = [code for code in range(16) if content >> code & 1]
    if not codes:
        return "no encoding but 0"
    if capability == "mtc_periods":
        unit, periods = "crystal ticks from MTC to MTC", [str(1 << code) for code in codes]
    elif capability == "cyc_thresholds":
        unit, periods = "core cycles of CYC threshold", [str((1 << code) >> 1) for code in codes]
    else:
        unit, periods = "bytes from PSB to PSB", [_format_bytes(1 << (code + 11)) for code in codes]
    name = _BITMAPS[capability].name
    if len(codes) > 2 and codes[-1] - codes[0] == len(codes) - 1:
        return f"{name} may be {codes[0]} to {codes[-1]}: {periods[0]} to {periods[-1]} {unit}"
    return f"{name} may be {', '.join(map(str, codes))}: {', '.join(periods)} {unit}"


def _format_bytes(count: int) -> str:
    for unit, shift in (("G", 30), ("M", 20), ("K", 10)):
        if count >> shift and not count & ((1 << shift) - 1):
            return f"{count >> shift}{unit}"
    return str(count)


def _describe_address(row: Field, content: int) -> str:
    return f"{row.meaning}: {content << row.low:#x}"


def _describe_byte_count(row: Field, content: int) -> str:
    return f"{row.meaning}: {content:,} bytes"


def _describe_mask(row: Field, content: int) -> str:
    mask = content << row.low | ((1 << row.low) - 1)
    size = (
        f"{_format_bytes(mask + 1)} bytes" if not mask & mask + 1 else "no legal mask: it has holes"
    )
    return f"single range: {size}; with ToPA: entry {content:,} of the table"


_DESCRIBERS = {
    "Address": _describe_address,
    "BasePhysAddr": _describe_address,
    "CR3": _describe_address,
    "MaskOrTableOffset": _describe_mask,
    "OutputOffset": _describe_byte_count,
    "PacketByteCnt": _describe_byte_count,
}
