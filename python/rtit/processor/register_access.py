"""Time, MSRs, CPUID, XSAVES, last branch records, and the settings that a decoder needs
(sections 33.2.8, 33.3, 33.8.3.1 and 33.8.3.3).
"""

from __future__ import annotations

from typing import TypedDict

from rtit.errors import GeneralProtection
from rtit.processor.core import Cpu
from rtit.registers import CTL, Leaf, Msr
from rtit.registers.access_rules import wrmsr_faults
from rtit.registers.msr import OUTPUT_MASK_PTRS
from rtit.unit.arch_state import MASK64
from rtit.unit.events.xsave import XSAVE_AREA_SIZE
from rtit.unit.illegal_events import require, require_bits

_TRACE_EN, _FABRIC_EN = CTL["TraceEn"].mask, CTL["FabricEn"].mask


def rdmsr(cpu: Cpu, msr: int) -> int:
    """RDMSR, which the program at hand executes: what `get_msr` gives, at CPL 0 alone.

    Raises GeneralProtection at another CPL, and for an MSR that is not there.
    """
    _require_cpl_0(cpu, "RDMSR")
    return get_msr(cpu, msr)


def wrmsr(
    cpu: Cpu, msr: int, value: int, *, ip: int | None = None, next_ip: int | None = None
) -> None:
    """WRMSR, which the program at hand executes: what `set_msr` does, at CPL 0 alone.

    Raises GeneralProtection, and then nothing has changed.
    """
    _require_cpl_0(cpu, "WRMSR")
    set_msr(cpu, msr, value, ip=ip, next_ip=next_ip)


def _require_cpl_0(cpu: Cpu, what: str) -> None:
    if cpu.arch.privilege:
        raise GeneralProtection(f"{what} at CPL {cpu.arch.privilege}")


def get_msr(cpu: Cpu, msr: int) -> int:
    """What an MSR holds, for whoever drives the processor, whatever the program is at.

    Raises GeneralProtection for one that is not there.
    """
    return cpu.unit.rdmsr(msr)


def set_msr(
    cpu: Cpu, msr: int, value: int, *, ip: int | None = None, next_ip: int | None = None
) -> None:
    """Whoever drives the processor writes an MSR, whatever the program is at.

    But for the privilege it is WRMSR; see `TraceUnit.wrmsr`. Raises GeneralProtection, and then
    nothing has changed.
    IllegalEvent, where the architecture says nothing, for a value beyond 64 bits, and if TraceEn is
    set without a destination: FabricEn without a `fabric`, or memory while the output
    MSRs still have their reset values, which are 128 bytes at address 0.
    """
    require_bits("an MSR", value, 64)
    if msr == Msr.CTL and value & _TRACE_EN:
        _require_configured_output(cpu, value)
    cpu.unit.wrmsr(msr, value, ip=ip, next_ip=next_ip)


def _require_configured_output(cpu: Cpu, ctl: int) -> None:
    unit, current = cpu.unit, cpu.unit.registers
    vmx = cpu.arch.vmx != "off"
    if current.trace_en or wrmsr_faults(
        Msr.CTL, ctl, current=current, profile=unit.profile, vmx=vmx
    ):
        return
    if ctl & _FABRIC_EN:
        there = unit.output.fabric is not None
        require(there, "FabricEn is set, but the processor was made without `fabric`")
        return
    output = current.output_base, current.read(Msr.OUTPUT_MASK_PTRS)
    reset = output == (0, OUTPUT_MASK_PTRS.reset)
    require(not reset, "TraceEn is set before IA32_RTIT_OUTPUT_BASE and _MASK_PTRS say where to")


def cpuid(cpu: Cpu, leaf: int, subleaf: int = 0) -> Leaf:
    """CPUID, as far as PT is concerned; CPUID.(0DH,1):EBX is the size of an XSAVE area with x87,
    SSE, and PT state if IA32_XSS[8] is 1.
    """
    profile = cpu.unit.profile
    found = profile.cpuid(leaf, subleaf)
    if (leaf, subleaf) == (0xD, 1) and profile.xsaves:
        component = profile.pt_state_size if cpu.unit.state.xss else 0
        return found._replace(ebx=XSAVE_AREA_SIZE + component)
    return found


def msrs(cpu: Cpu) -> tuple[int, ...]:
    """The addresses of the MSRs that `rdmsr` and `wrmsr` answer for, ascending; all others are the
    emulator's.
    """
    return cpu.unit.msrs()


def at(cpu: Cpu, clock: int) -> None:
    """`clock` instructions have retired by now. IllegalEvent if the clock goes back."""
    cpu.unit.at(clock)


def xsaves(
    cpu: Cpu, ip: int, next_ip: int, *, rfbm: int = 1 << 8, completes: bool = True
) -> bytes | None:
    """XSAVES; see `TraceUnit.xsaves`."""
    return cpu.unit.xsaves(ip, next_ip, rfbm=rfbm, completes=completes)


def xrstors(
    cpu: Cpu,
    ip: int,
    next_ip: int,
    component: bytes | None,
    *,
    rfbm: int = 1 << 8,
    completes: bool = True,
) -> None:
    """XRSTORS; see `TraceUnit.xrstors`."""
    cpu.unit.xrstors(ip, next_ip, component, rfbm=rfbm, completes=completes)


def last_branch(cpu: Cpu, from_ip: int, to_ip: int, info: int = 0) -> None:
    """A branch that LBR may record."""
    cpu.unit.last_branch(from_ip, to_ip, info)


def last_exception(cpu: Cpu, from_ip: int, to_ip: int) -> None:
    """The branch before an exception, for LER."""
    cpu.unit.last_exception(from_ip, to_ip)


class DecodeSettings(TypedDict):
    """The keyword arguments of `rtit.decode` that a processor determines."""

    cpu: tuple[int, int, int]
    mtc_freq: int
    nom_freq: int
    cpuid_15: tuple[int, int]
    start_time: int
    guest_tsc: tuple[int, int]
    ranges: tuple[tuple[int, int], ...]
    no_tnt: bool
    no_retcomp: bool


def decode_settings(cpu: Cpu) -> DecodeSettings:
    """The settings with which `rtit.decode(packets, image, **settings)` decodes the trace that
    TraceEn started last, also after its end; `guest_tsc` is that of the guest that runs now.
    """
    unit, configuration, controls = cpu.unit, cpu.unit.configuration, cpu.arch.controls
    profile, time = unit.profile, unit.time
    return DecodeSettings(
        cpu=(profile.family, profile.model, profile.stepping),
        mtc_freq=configuration.mtc_shift,
        nom_freq=time.max_non_turbo_ratio,
        cpuid_15=(profile.tsc_denominator, profile.tsc_numerator),
        start_time=time.tsc_at(time.since),
        guest_tsc=(controls.tsc_offset & MASK64, controls.tsc_multiplier),
        ranges=configuration.ranges.filter,
        no_tnt=configuration.dis_tnt,
        no_retcomp=configuration.dis_retc,
    )
