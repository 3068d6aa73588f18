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
from rtit.unit.illegal_events import require_bits, require_legal

_TRACE_EN, _FABRIC_EN = CTL["TraceEn"].mask, CTL["FabricEn"].mask


def rdmsr(cpu: Cpu, msr: int) -> int:
    """Execute RDMSR, at CPL 0 only; returns the value as `get_msr`.

    Raises GeneralProtection at another CPL, and for an MSR that is not there.
    """
    _require_cpl_0(cpu, "RDMSR")
    return get_msr(cpu, msr)


def wrmsr(
    cpu: Cpu, msr: int, value: int, *, ip: int | None = None, next_ip: int | None = None
) -> None:
    """Execute WRMSR, at CPL 0 only, with the effects of `set_msr`.

    Raises GeneralProtection, and then nothing has changed.
    """
    _require_cpl_0(cpu, "WRMSR")
    set_msr(cpu, msr, value, ip=ip, next_ip=next_ip)


def _require_cpl_0(cpu: Cpu, what: str) -> None:
    if cpu.arch.privilege:
        raise GeneralProtection(f"{what} at CPL {cpu.arch.privilege}")


def get_msr(cpu: Cpu, msr: int) -> int:
    """Return the value of an MSR, in any state of the program.

    Raises GeneralProtection for one that is not there.
    """
    return cpu.unit.rdmsr(msr)


def set_msr(
    cpu: Cpu, msr: int, value: int, *, ip: int | None = None, next_ip: int | None = None
) -> None:
    """Write an MSR, in any state of the program.

    Has the effects of WRMSR without its check of the CPL; see `TraceUnit.wrmsr`. Raises
    GeneralProtection, and then nothing has changed. Raises IllegalEvent, which the architecture
    does not define, for a value beyond 64 bits, and if TraceEn is set without a destination:
    FabricEn without a `fabric`, or memory while the output MSRs have their reset values, which are
    128 bytes at address 0.
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
        require_legal(there, "FabricEn is set, but the processor was made without `fabric`")
        return
    output = current.output_base, current.read(Msr.OUTPUT_MASK_PTRS)
    reset = output == (0, OUTPUT_MASK_PTRS.reset)
    require_legal(
        not reset, "TraceEn is set before IA32_RTIT_OUTPUT_BASE and _MASK_PTRS say where to"
    )


def cpuid(cpu: Cpu, leaf: int, subleaf: int = 0) -> Leaf:
    """Return a CPUID leaf with the bits about PT.

    CPUID.(0DH,1):EBX is the size of an XSAVE area with x87, SSE, and PT state if IA32_XSS[8] is 1.
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
    """Advance to `clock` retired instructions. Raises IllegalEvent if the clock goes back."""
    cpu.unit.at(clock)


def xsaves(
    cpu: Cpu, ip: int, next_ip: int, *, rfbm: int = 1 << 8, completes: bool = True
) -> bytes | None:
    """Execute XSAVES; see `TraceUnit.xsaves`."""
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
    """Execute XRSTORS; see `TraceUnit.xrstors`."""
    cpu.unit.xrstors(ip, next_ip, component, rfbm=rfbm, completes=completes)


def last_branch(cpu: Cpu, from_ip: int, to_ip: int, info: int = 0) -> None:
    """Return a branch that LBR may record."""
    cpu.unit.last_branch(from_ip, to_ip, info)


def last_exception(cpu: Cpu, from_ip: int, to_ip: int) -> None:
    """Return the branch before an exception, for LER."""
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
    """Return the settings for `rtit.decode(packets, image, **settings)`.

    They are those of the trace that TraceEn started last, also after its end; `guest_tsc` is that
    of the guest that runs now.
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
