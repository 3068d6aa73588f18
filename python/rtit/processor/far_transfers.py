"""Far transfers, interrupts and exceptions, and what changes the mode or CR3 (section 33.2.1.3)."""

from __future__ import annotations

from dataclasses import replace
from typing import Unpack

from rtit.errors import UsageError
from rtit.processor.core import (
    ArchModeChanges,
    ArchStateChanges,
    Cpu,
    apply_arch_changes,
    kernel_entry_changes,
    require_cpl,
    require_instruction_at,
    require_reachable_ip,
    require_valid_target,
)
from rtit.unit.arch_state import CODE_BITS, MODE_FIELDS
from rtit.unit.events.event_trace import CfeType, EventReport, page_fault_report
from rtit.unit.events.far_transfers import AT_ONCE, OperationTimes
from rtit.unit.events.power import require_awake
from rtit.unit.illegal_events import require_legal


def far(
    cpu: Cpu,
    ip: int,
    target: int,
    *,
    times: OperationTimes = AT_ONCE,
    **changes: Unpack[ArchStateChanges],
) -> None:
    """Execute a far branch: far JMP, CALL or RET, IRET, SYSRET and the like."""
    require_instruction_at(cpu, ip)
    _execute_far_transfer(cpu, target, None, times, changes)


def syscall(cpu: Cpu, ip: int, target: int, **changes: Unpack[ArchStateChanges]) -> None:
    """Execute SYSCALL or SYSENTER to `target` at CPL 0, with RFLAGS.IF=0.

    For SYSCALL, operating systems set IA32_FMASK so.
    """
    require_instruction_at(cpu, ip)
    _execute_far_transfer(cpu, target, None, AT_ONCE, {**kernel_entry_changes(cpu.arch), **changes})


def resume(cpu: Cpu, target: int, *, bits: int = 64, **changes: Unpack[ArchStateChanges]) -> None:
    """Return from CPL 0 to `target` at CPL 3 by SYSRET, SYSEXIT or IRET, with RFLAGS.IF=1.

    Raises IllegalEvent at another CPL, and if `bits`, the code width, is not 16, 32 or 64.
    """
    require_cpl(cpu, 0, "a return to user code")
    require_legal(bits in CODE_BITS, f"code has 16, 32 or 64 bits, not {bits}")
    cs_l, cs_d = CODE_BITS[bits]
    user = ArchStateChanges(cpl=3, cs_l=cs_l, cs_d=cs_d, interrupt_flag=True)
    _execute_far_transfer(cpu, target, None, AT_ONCE, {**user, **changes})


def iret(
    cpu: Cpu,
    ip: int,
    target: int,
    *,
    times: OperationTimes = AT_ONCE,
    **changes: Unpack[ArchStateChanges],
) -> None:
    """Execute IRET at `ip`; `changes` are all that it restores, except RFLAGS.IF, which is 1
    after a return to a higher CPL. IllegalEvent if that were a lower CPL.
    """
    require_instruction_at(cpu, ip)
    was, cpl = cpu.arch.privilege, apply_arch_changes(cpu.arch, changes).privilege
    require_legal(cpl >= was, f"IRET leads from CPL {was} to CPL {cpl}")
    if cpl > was:
        changes = {"interrupt_flag": True, **changes}
    _execute_far_transfer(cpu, target, None, times, changes, EventReport(CfeType.IRET), ip)


def interrupt(
    cpu: Cpu,
    ip: int,
    handler: int,
    *,
    vector: int = 0,
    times: OperationTimes = AT_ONCE,
    **changes: Unpack[ArchStateChanges],
) -> None:
    """Deliver an interrupt or NMI before the instruction at `ip`, handled at CPL 0 with
    RFLAGS.IF=0.
    """
    report = EventReport(CfeType.INTR, vector)
    _execute_far_transfer(
        cpu, handler, ip, times, {**kernel_entry_changes(cpu.arch), **changes}, report
    )


def exception(
    cpu: Cpu,
    ip: int,
    handler: int,
    *,
    vector: int = 0,
    cr2: int | None = None,
    times: OperationTimes = AT_ONCE,
    **changes: Unpack[ArchStateChanges],
) -> None:
    """Deliver an exception at the instruction at `ip` (a trap: before it), handled at CPL 0 with
    RFLAGS.IF=0; through a trap gate `interrupt_flag` stays.

    `cr2`, the linear address, makes it a page fault.
    """
    report = EventReport(CfeType.INTR, vector) if cr2 is None else page_fault_report(cr2)
    _execute_far_transfer(
        cpu, handler, ip, times, {**kernel_entry_changes(cpu.arch), **changes}, report
    )


def software_interrupt(
    cpu: Cpu,
    ip: int,
    handler: int,
    *,
    vector: int = 0,
    times: OperationTimes = AT_ONCE,
    **changes: Unpack[ArchStateChanges],
) -> None:
    """Execute INT n, INT3, INT1 or INTO at `ip`, handled at CPL 0, RFLAGS.IF as in `exception`."""
    require_instruction_at(cpu, ip)
    report = EventReport(CfeType.INTR, vector)
    _execute_far_transfer(
        cpu, handler, ip, times, {**kernel_entry_changes(cpu.arch), **changes}, report
    )


def change_mode(cpu: Cpu, ip: int, next_ip: int, **changes: Unpack[ArchModeChanges]) -> None:
    """Execute STI, CLI, POPF, MOV CR0, MOV CR4 or WRMSR at `ip` with these `changes`.

    Raises UsageError for state that does not change without a branch, IllegalEvent above CPL 0 for
    any field other than `interrupt_flag`, which IOPL may allow.
    """
    if wrong := changes.keys() - MODE_FIELDS:
        raise UsageError(f"{min(wrong)} does not change without a branch")
    if changes.keys() - {"interrupt_flag"}:
        require_cpl(cpu, 0, "a change of mode")
    require_instruction_at(cpu, ip, next_ip)
    cpu.unit.change_mode(ip, next_ip, replace(cpu.arch, **changes))


def user_interrupt(cpu: Cpu, ip: int, handler: int, vector: int) -> None:
    """Deliver a user interrupt to `handler` before the instruction at `ip`, at CPL 3."""
    require_cpl(cpu, 3, "the handler of a user interrupt")
    require_reachable_ip(cpu, ip)
    require_valid_target(cpu, handler)
    cpu.unit.user_interrupt(ip, handler, vector)


def uiret(cpu: Cpu, ip: int, target: int) -> None:
    """Execute UIRET at `ip` to `target`, at CPL 3."""
    require_cpl(cpu, 3, "UIRET")
    require_instruction_at(cpu, ip)
    require_valid_target(cpu, target)
    cpu.unit.uiret(ip, target)


def mov_cr3(cpu: Cpu, ip: int, next_ip: int, value: int) -> None:
    """Execute MOV to CR3, at CPL 0."""
    require_cpl(cpu, 0, "MOV CR3")
    require_instruction_at(cpu, ip, next_ip)
    cpu.unit.mov_cr3(ip, next_ip, replace(cpu.arch, cr3=value))


def _execute_far_transfer(
    cpu: Cpu,
    target: int,
    event_ip: int | None,
    times: OperationTimes,
    changes: ArchStateChanges,
    report: EventReport | None = None,
    report_ip: int | None = None,
) -> None:
    arch = cpu.arch
    require_legal(
        not arch.in_enclave, "code in an enclave is left by EEXIT or an asynchronous exit"
    )
    require_legal(not arch.wait_for_sipi, "a processor that waits for SIPI has another event")
    require_awake(cpu.unit, "an instruction or event comes to a processor")
    if event_ip is not None:
        require_reachable_ip(cpu, event_ip)
    arch = apply_arch_changes(arch, changes)
    require_valid_target(cpu, target, arch)
    cpu.unit.transfer(
        target, arch, event_ip=event_ip, times=times, report=report, report_ip=report_ip
    )


def task_switch_fault(
    cpu: Cpu, ip: int, handler: int, *, vector: int = 10, **changes: Unpack[ArchStateChanges]
) -> None:
    """Deliver the fault of a task switch at `ip` that has committed: the FUP has `ip`.

    The stack has the new task's IP, which is in no packet. `changes` are those of the new task and
    the handler, such as CR3.
    """
    require_reachable_ip(cpu, ip)
    arch = apply_arch_changes(cpu.arch, {"interrupt_flag": False, **changes})
    require_valid_target(cpu, handler, arch)
    cpu.unit.transfer(handler, arch, event_ip=ip, report=EventReport(CfeType.INTR, vector))
