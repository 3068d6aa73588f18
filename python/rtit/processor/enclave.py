"""Enclaves (section 33.2.9.5)."""

from __future__ import annotations

from typing import Unpack

from rtit.processor.changes import Changes, changed, to_kernel
from rtit.processor.core import Cpu
from rtit.processor.sanity import require_here, require_instruction, require_target


def eenter(cpu: Cpu, ip: int, target: int, *, debug: bool = False, opt_in: bool = False) -> None:
    """ENCLU[EENTER]; see `TraceUnit.enclave_enter`."""
    require_instruction(cpu, ip)
    require_target(cpu, target)
    cpu.unit.enclave_enter(ip, target, debug=debug, opt_in=opt_in)


def eresume(cpu: Cpu, ip: int, target: int | None = None) -> None:
    """ENCLU[ERESUME]; see `TraceUnit.enclave_resume`."""
    require_instruction(cpu, ip)
    if target is not None:
        require_target(cpu, target)
    cpu.unit.enclave_resume(ip, target)


def eexit(cpu: Cpu, ip: int, target: int) -> None:
    """ENCLU[EEXIT]."""
    require_instruction(cpu, ip)
    require_target(cpu, target)
    cpu.unit.enclave_exit(ip, target)


def aex(
    cpu: Cpu,
    ip: int,
    aep: int,
    handler: int,
    *,
    vector: int = 0,
    cr2: int | None = None,
    **changes: Unpack[Changes],
) -> None:
    """Asynchronous enclave exit or enclave exiting event, handled at CPL 0 with RFLAGS.IF=0;
    see `TraceUnit.enclave_event`.
    """
    arch = cpu.unit.state.arch
    arch = changed(arch, {**to_kernel(arch), **changes})
    require_here(cpu, ip)
    require_target(cpu, handler, arch)
    cpu.unit.enclave_event(ip, aep, handler, arch, vector=vector, cr2=cr2)
