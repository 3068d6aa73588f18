"""The architectural state that decides which packets are sent: modes, paging, VMX controls.

Values are immutable; every change makes a new `ArchState` (sections 33.2.5, 33.2.6, 33.4.2.8).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from rtit.errors import UsageError
from rtit.registers import MSRS, Msr
from rtit.registers.fields import hexadecimal_repr

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
    def uses_pt_controls(self) -> bool:
        """True if a control is 1 that exists only with IA32_VMX_MISC[14] (33.5.1)."""
        concealed = self.conceal_execution or self.conceal_exit or self.conceal_entry
        return concealed or self.clear_ctl or self.load_ctl is not None

    @property
    def entry_msr_loads(self) -> tuple[tuple[int, int], ...]:
        """The values that VM entry loads into PT MSRs, in order."""
        return _with_pt_msrs_only(self.load_ctl, self.entry_loads)

    @property
    def exit_msr_loads(self) -> tuple[tuple[int, int], ...]:
        """The values that VM exit loads into PT MSRs, in order."""
        return _with_pt_msrs_only(0 if self.clear_ctl else None, self.exit_loads)

    def guest_tsc(self, tsc: int) -> int:
        """Return the TSC as the guest reads it, modulo 2^64."""
        return ((tsc * self.tsc_multiplier >> 48) + self.tsc_offset) & _MASK64


def _with_pt_msrs_only(
    ctl: int | None, loads: tuple[tuple[int, int], ...]
) -> tuple[tuple[int, int], ...]:
    first = () if ctl is None else ((int(Msr.CTL), ctl),)
    return first + tuple((msr, value) for msr, value in loads if msr in MSRS)


NO_CONTROLS = VmxControls()
"""What holds outside VMX non-root operation."""

MASK32 = 0xFFFF_FFFF
MASK64 = 0xFFFF_FFFF_FFFF_FFFF

CODE_BITS = {16: (False, False), 32: (False, True), 64: (True, False)}
"""(CS.L & LMA, CS.D) of code of 16, 32 and 64 bits (Table 33-26)."""

MODE_FIELDS = frozenset(("interrupt_flag", "lma", "cs_l", "cs_d", "real_mode", "pae_paging"))
"""Fields of `ArchState` that an instruction other than a branch or MOV CR3 can change."""


@dataclass(frozen=True, slots=True)
class ArchState:
    """What the unit knows of the processor; a new value for every change.

    `cpl` 0 to 3 (in real and virtual-8086 mode `privilege` overrides it); `cs_base` the base of CS,
    0 in 64-bit code; `cr3` as MOV reads it; `pae_paging`: PAE paging, not 32-bit,
    4-level or 5-level paging; `in_tx` inside a transaction; `opted_out_enclave` inside a
    production enclave,
    or a debug enclave entered without opt-in; `interrupt_flag` RFLAGS.IF;
    `wait_for_sipi` after INIT on an application processor; `in_enclave` between enclave entry and
    exit.

    `vmx` is VMX operation; `vmcs` the current VMCS pointer, None without one; `controls` the VMX
    controls in force in non-root operation; `stm` the pointer of the SMM-transfer VMCS while the
    dual-monitor treatment of SMIs is active; `in_smm` in system management mode. UsageError for
    what cannot be.
    """

    __repr__ = hexadecimal_repr("cs_base", "cr3", "vmcs", "stm")

    cpl: int = 3
    cs_l: bool = True
    cs_d: bool = False
    lma: bool = True
    real_mode: bool = False
    v86: bool = False
    cs_base: int = 0
    cr3: int = 0
    pae_paging: bool = False
    in_tx: bool = False
    opted_out_enclave: bool = False
    interrupt_flag: bool = True
    wait_for_sipi: bool = False
    in_enclave: bool = False
    vmx: Literal["off", "root", "nonroot"] = "off"
    vmcs: int | None = None
    controls: VmxControls = NO_CONTROLS
    stm: int | None = None
    in_smm: bool = False

    def __post_init__(self) -> None:
        if not 0 <= self.cpl <= 3:
            raise UsageError(f"CPL is 0 to 3, not {self.cpl}")
        if self.cs_l and self.lma and self.cs_d:
            raise UsageError("CS.L and CS.D are both set in long mode")
        if self.real_mode and (self.v86 or self.lma):
            raise UsageError("real mode excludes virtual-8086 mode and long mode")
        if self.vmx not in ("off", "root", "nonroot"):
            raise UsageError(f"VMX operation is off, root or nonroot, not {self.vmx!r}")
        for what, value in (("CR3", self.cr3), ("the base of CS", self.cs_base)):
            if value >> 64:
                raise UsageError(f"{what} has 64 bits: {value:#x} does not fit")
        for pointer in (self.vmcs, self.stm):
            if pointer is not None and pointer >> 64:
                raise UsageError(f"a VMCS pointer has 64 bits: {pointer:#x} does not fit")

    @classmethod
    def user64(cls, *, cpl: int = 3, cr3: int = 0) -> ArchState:
        """Return the state of 64-bit user code of a flat operating system."""
        return cls(cpl=cpl, cr3=cr3)

    @classmethod
    def after_reset(cls) -> ArchState:
        """Return the state after RESET or INIT: real mode at F000:FFF0, base FFFF0000H."""
        return cls(
            cpl=0,
            cs_l=False,
            cs_d=False,
            lma=False,
            real_mode=True,
            cs_base=0xFFFF_0000,
            cr3=0,
            interrupt_flag=False,
        )

    @property
    def privilege(self) -> int:
        """CPL as the CPL filter sees it: 0 in real mode, 3 in virtual-8086 mode (33.2.5.1)."""
        return 0 if self.real_mode else 3 if self.v86 else self.cpl

    @property
    def bits(self) -> int:
        """Width of the code: 16, 32 or 64."""
        return 64 if self.cs_l and self.lma else 32 if self.cs_d else 16

    @property
    def mode_exec(self) -> int:
        """Bits 1:0 of MODE.Exec: CS.L & LMA, CS.D (Table 33-26)."""
        return int(self.cs_l and self.lma) | int(self.cs_d) << 1

    def with_code_bits(self, bits: int) -> ArchState:
        """Return the state with code of 16, 32 or 64 bits (long mode only). Raises UsageError."""
        if bits not in CODE_BITS or (bits == 64 and not self.lma):
            raise UsageError(f"code of {bits} bits cannot run here")
        cs_l, cs_d = CODE_BITS[bits]
        return replace(self, cs_l=cs_l, cs_d=cs_d)

    @property
    def is_vmx_visible(self) -> bool:
        """True in VMX operation, unless "conceal VMX from PT" hides it (Table 33-52)."""
        return self.vmx == "root" or self.is_non_root_visible

    @property
    def is_non_root_visible(self) -> bool:
        """True in VMX non-root operation that is not concealed: NR of PIP (Table 33-24)."""
        return self.vmx == "nonroot" and not self.controls.conceal_execution

    @property
    def linear_base(self) -> int:
        """What an effective IP needs added to be a linear address."""
        return 0 if self.cs_l and self.lma else self.cs_base

    def linear(self, ip: int) -> int:
        """Return the linear address of an effective IP."""
        if self.cs_l and self.lma:
            return ip & MASK64
        return (ip + self.cs_base) & MASK32
