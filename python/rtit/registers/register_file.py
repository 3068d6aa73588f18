"""The values of the PT MSRs of one logical processor, without rules (section 33.2.8.1)."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

from rtit.registers.fields import hexadecimal_repr
from rtit.registers.msr import CTL, MSRS, OUTPUT_MASK_PTRS, Msr
from rtit.registers.profiles import Profile

_TRACE_EN = CTL["TraceEn"].mask


@dataclass(slots=True)
class RegisterFile:
    """One attribute per MSR, 64 bits each; by default the state after cold reset."""

    __repr__ = hexadecimal_repr()

    ctl: int = 0
    status: int = 0
    output_base: int = 0
    output_mask_ptrs: int = OUTPUT_MASK_PTRS.reset
    cr3_match: int = 0
    addr0_a: int = 0
    addr0_b: int = 0
    addr1_a: int = 0
    addr1_b: int = 0
    addr2_a: int = 0
    addr2_b: int = 0
    addr3_a: int = 0
    addr3_b: int = 0

    @property
    def trace_en(self) -> bool:
        """IA32_RTIT_CTL.TraceEn."""
        return bool(self.ctl & _TRACE_EN)

    def read(self, msr: Msr) -> int:
        """Return the value; no rule is checked (see `access_rules.rdmsr`)."""
        value: int = getattr(self, _ATTRIBUTES[msr])
        return value | 0x7F if msr == Msr.OUTPUT_MASK_PTRS else value

    def write(self, msr: Msr, value: int) -> None:
        """Replace the value; no rule is checked (see `access_rules.wrmsr`)."""
        setattr(self, _ATTRIBUTES[msr], value)

    def address_ranges(self) -> tuple[tuple[int, int, int], ...]:
        """Return (ADDRn_CFG, ADDRn_A, ADDRn_B) for n = 0..3; A and B are inclusive (33.2.8.5)."""
        cfg = self.ctl >> CTL["ADDR0_CFG"].low
        return (
            (cfg & 15, self.addr0_a, self.addr0_b),
            (cfg >> 4 & 15, self.addr1_a, self.addr1_b),
            (cfg >> 8 & 15, self.addr2_a, self.addr2_b),
            (cfg >> 12 & 15, self.addr3_a, self.addr3_b),
        )

    def copy(self) -> RegisterFile:
        """Return an independent copy."""
        return replace(self)

    def restore(self, other: RegisterFile) -> None:
        """Set every MSR to its value in `other`."""
        for item in fields(self):
            setattr(self, item.name, getattr(other, item.name))

    def reset_cold(self) -> None:
        """Reset every MSR to 0, and IA32_RTIT_OUTPUT_MASK_PTRS[6:0] to 7FH."""
        self.restore(RegisterFile())

    def reset_warm(self, profile: Profile) -> None:
        """Reset as `reset_cold`; with CPUID.(14H,0):EBX[2] only clear TraceEn."""
        if profile.ip_filtering:
            self.ctl &= ~_TRACE_EN
        else:
            self.reset_cold()


_ATTRIBUTES = {msr: msr.name.lower() for msr in MSRS}
