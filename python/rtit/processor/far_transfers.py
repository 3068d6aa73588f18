"""Far transfers, interrupts and exceptions, and what changes the mode or CR3 (section 33.2.1.3)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from rtit.errors import UsageError
from rtit.processor.core import Cpu
from rtit.unit import Stamps
from rtit.unit.events import power
from rtit.unit.events.event_trace import Cfe, Report, page_fault
from rtit.unit.events.transfers import AT_ONCE
from rtit.unit.refusal import require
from rtit.unit.state.arch import CODE_BITS, MODE_FIELDS


def far(cpu: Cpu, ip: int, target: int, *, stamps: Stamps = AT_ONCE, **changes: Any) -> None:
    """Far JMP, CALL or RET, IRET, SYSRET and the like: a branch of its own that an instruction
    makes.
    """
    _transfer(cpu, target, None, stamps, changes)


def syscall(cpu: Cpu, ip: int, target: int, **changes: Any) -> None:
    """SYSCALL or SYSENTER to `target` at CPL 0."""
    _transfer(cpu, target, None, AT_ONCE, _kernel(cpu) | changes)


def resume(cpu: Cpu, target: int, *, bits: int = 64, **changes: Any) -> None:
    """SYSRET, SYSEXIT or IRET from CPL 0 to `target` at CPL 3, in code of `bits` bits.

    IllegalEvent for another width than 16, 32 or 64.
    """
    require(bits in CODE_BITS, f"code has 16, 32 or 64 bits, not {bits}")
    cs_l, cs_d = CODE_BITS[bits]
    _transfer(cpu, target, None, AT_ONCE, {"cpl": 3, "cs_l": cs_l, "cs_d": cs_d} | changes)


def iret(cpu: Cpu, ip: int, target: int, *, stamps: Stamps = AT_ONCE, **changes: Any) -> None:
    """IRET at `ip` to `target`; `changes` say all that it restores. IllegalEvent if that were a
    lower CPL.
    """
    was, cpl = cpu.arch.privilege, replace(cpu.arch, **changes).privilege
    require(cpl >= was, f"IRET leads from CPL {was} to CPL {cpl}")
    _transfer(cpu, target, None, stamps, changes, Report(Cfe.IRET), ip)


def interrupt(
    cpu: Cpu, ip: int, handler: int, *, vector: int = 0, stamps: Stamps = AT_ONCE, **changes: Any
) -> None:
    """An external interrupt or NMI before the instruction at `ip`, handled at CPL 0."""
    report = Report(Cfe.INTR, vector)
    _transfer(cpu, handler, ip, stamps, _kernel(cpu) | changes, report)


def exception(
    cpu: Cpu,
    ip: int,
    handler: int,
    *,
    vector: int = 0,
    cr2: int | None = None,
    stamps: Stamps = AT_ONCE,
    **changes: Any,
) -> None:
    """An exception at the instruction at `ip` (a trap: before it), handled at CPL 0.

    `cr2`, the linear address, makes it a page fault.
    """
    report = Report(Cfe.INTR, vector) if cr2 is None else page_fault(cr2)
    _transfer(cpu, handler, ip, stamps, _kernel(cpu) | changes, report)


def software_interrupt(
    cpu: Cpu, ip: int, handler: int, *, vector: int = 0, stamps: Stamps = AT_ONCE, **changes: Any
) -> None:
    """INT n, INT3, INT1 or INTO at `ip`, handled at CPL 0."""
    report = Report(Cfe.INTR, vector)
    _transfer(cpu, handler, ip, stamps, _kernel(cpu) | changes, report)


def change_mode(cpu: Cpu, ip: int, next_ip: int, **changes: Any) -> None:
    """STI, CLI, POPF, MOV CR0 or WRMSR at `ip` changes `interrupt_flag`, `lma`, `cs_l`, `cs_d`,
    `real_mode` or `pae_paging`; UsageError for anything else.
    """
    if wrong := changes.keys() - MODE_FIELDS:
        raise UsageError(f"{min(wrong)} does not change without a branch")
    cpu.unit.change_mode(ip, next_ip, replace(cpu.arch, **changes))


def user_interrupt(cpu: Cpu, ip: int, handler: int, vector: int) -> None:
    """A user interrupt is delivered to `handler` before the instruction at `ip`."""
    cpu.unit.user_interrupt(ip, handler, vector)


def uiret(cpu: Cpu, ip: int, target: int) -> None:
    """UIRET at `ip` to `target`."""
    cpu.unit.uiret(ip, target)


def mov_cr3(cpu: Cpu, ip: int, next_ip: int, value: int) -> None:
    """MOV to CR3."""
    cpu.unit.mov_cr3(next_ip, replace(cpu.arch, cr3=value))


def _kernel(cpu: Cpu) -> dict[str, Any]:
    arch = cpu.arch
    if arch.real_mode:
        return {}
    if arch.lma:
        return {"cpl": 0, "v86": False, "cs_l": True, "cs_d": False}
    return {"cpl": 0, "v86": False}


def _transfer(
    cpu: Cpu,
    target: int,
    event_ip: int | None,
    stamps: Stamps,
    changes: dict[str, Any],
    report: Report | None = None,
    report_ip: int | None = None,
) -> None:
    arch = cpu.arch
    require(not arch.in_enclave, "code in an enclave is left by EEXIT or an asynchronous exit")
    require(not arch.wait_for_sipi, "a processor that waits for SIPI has another event")
    power.require_awake(cpu.unit, "an instruction or event comes to a processor")
    if changes:
        arch = replace(arch, **changes)
    cpu.unit.transfer(
        target, arch, event_ip=event_ip, stamps=stamps, report=report, report_ip=report_ip
    )


def task_switch_fault(cpu: Cpu, ip: int, handler: int, *, vector: int = 10, **changes: Any) -> None:
    """A task switch that began at `ip` faults after it has committed: FUP has `ip`.

    The stack has the new task's IP, which no packet tells. `changes` are what the new task and
    the handler have changed, CR3 for one.
    """
    cpu.unit.transfer(
        handler,
        replace(cpu.unit.state.arch, **changes),
        event_ip=ip,
        report=Report(Cfe.INTR, vector),
    )
