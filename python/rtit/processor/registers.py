"""Time, MSRs, CPUID, XSAVES, and last branch records (sections 33.2.8 and 33.3)."""

from __future__ import annotations

from rtit.processor.core import Cpu
from rtit.registers import Leaf


def rdmsr(cpu: Cpu, msr: int) -> int:
    """RDMSR. Raises GeneralProtection."""
    return cpu.unit.rdmsr(msr)


def wrmsr(
    cpu: Cpu, msr: int, value: int, *, ip: int | None = None, next_ip: int | None = None
) -> None:
    """WRMSR; see `TraceUnit.wrmsr`. Raises GeneralProtection, and then nothing has changed."""
    cpu.unit.wrmsr(msr, value, ip=ip, next_ip=next_ip)


def cpuid(cpu: Cpu, leaf: int, subleaf: int = 0) -> Leaf:
    """CPUID, as far as PT is concerned."""
    return cpu.unit.profile.cpuid(leaf, subleaf)


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
