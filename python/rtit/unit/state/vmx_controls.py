"""The fields of a VMCS that concern tracing (Table 33-52, sections 33.5.2.2 and 33.8.3.3)."""

from __future__ import annotations

from dataclasses import dataclass

from rtit.errors import UsageError
from rtit.registers import MSRS, Msr
from rtit.registers.hexadecimal import hexadecimal_repr

TSC_RATIO_1 = 1 << 48
"""TSC multiplier that changes nothing: 48 of its 64 bits are a fraction."""

_MASK64 = 0xFFFF_FFFF_FFFF_FFFF


@dataclass(frozen=True, slots=True)
class VmxControls:
    """VMX controls, all 0 by default: system-wide tracing that shows every transition.

    The three "conceal VMX from PT" controls: `conceal_execution` (secondary processor-based
    control, bit 19), `conceal_exit` (VM-exit control, bit 24), `conceal_entry` (VM-entry control,
    bit 17). `load_ctl`: the guest IA32_RTIT_CTL if "load IA32_RTIT_CTL" (VM-entry control, bit 18)
    is 1, else None; `clear_ctl`: "clear IA32_RTIT_CTL" (VM-exit control, bit 25). `entry_loads` and
    `exit_loads`: the MSR-load areas, (MSR, value) in order; MSRs that are not of PT are skipped.
    `tsc_offset` in ticks, added modulo 2^64; `tsc_multiplier` 64 bits with 48 of fraction. Raises
    UsageError for a value that its field cannot hold.
    """

    __repr__ = hexadecimal_repr("load_ctl", "entry_loads", "exit_loads", "tsc_multiplier")

    conceal_execution: bool = False
    conceal_exit: bool = False
    conceal_entry: bool = False
    load_ctl: int | None = None
    clear_ctl: bool = False
    entry_loads: tuple[tuple[int, int], ...] = ()
    exit_loads: tuple[tuple[int, int], ...] = ()
    tsc_offset: int = 0
    tsc_multiplier: int = TSC_RATIO_1

    def __post_init__(self) -> None:
        if not -(1 << 63) <= self.tsc_offset <= _MASK64:
            raise UsageError(f"a TSC offset has 64 bits, {self.tsc_offset} does not fit")
        if not 0 < self.tsc_multiplier <= _MASK64:
            raise UsageError(f"a TSC multiplier has 64 bits and is not 0: {self.tsc_multiplier}")
        for _, value in (*self.entry_loads, *self.exit_loads, (0, self.load_ctl or 0)):
            if not 0 <= value <= _MASK64:
                raise UsageError(f"an MSR holds 64 bits: {value:#x} does not fit")

    @property
    def of_pt(self) -> bool:
        """True if a control is 1 that exists only with IA32_VMX_MISC[14] (33.5.1)."""
        concealed = self.conceal_execution or self.conceal_exit or self.conceal_entry
        return concealed or self.clear_ctl or self.load_ctl is not None

    @property
    def on_entry(self) -> tuple[tuple[int, int], ...]:
        """What VM entry loads into PT MSRs, in order."""
        return _pt_msrs(self.load_ctl, self.entry_loads)

    @property
    def on_exit(self) -> tuple[tuple[int, int], ...]:
        """What VM exit loads into PT MSRs, in order."""
        return _pt_msrs(0 if self.clear_ctl else None, self.exit_loads)

    def guest_tsc(self, tsc: int) -> int:
        """The TSC as the guest reads it, modulo 2^64."""
        return ((tsc * self.tsc_multiplier >> 48) + self.tsc_offset) & _MASK64


def _pt_msrs(ctl: int | None, loads: tuple[tuple[int, int], ...]) -> tuple[tuple[int, int], ...]:
    first = () if ctl is None else ((int(Msr.CTL), ctl),)
    return first + tuple((msr, value) for msr, value in loads if msr in MSRS)


NO_CONTROLS = VmxControls()
"""What holds outside VMX non-root operation."""
