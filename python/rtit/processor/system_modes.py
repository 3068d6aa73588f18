"""Enclaves, measured launch, SMM and VMX (sections 33.2.9.3 to 33.2.9.6, 33.5, 33.6)."""

from __future__ import annotations

from typing import Literal, Unpack

from rtit.processor.core import (
    ArchStateChanges,
    Cpu,
    apply_arch_changes,
    kernel_entry_changes,
    require_cpl,
    require_instruction_at,
    require_reachable_ip,
    require_valid_target,
)
from rtit.unit.arch_state import NO_CONTROLS, ArchState, VmxControls
from rtit.unit.events.vmx import EntryFailure


def eenter(cpu: Cpu, ip: int, target: int, *, debug: bool = False, opt_in: bool = False) -> None:
    """Execute ENCLU[EENTER]; see `TraceUnit.enclave_enter`."""
    require_instruction_at(cpu, ip)
    require_valid_target(cpu, target)
    cpu.unit.enclave_enter(ip, target, debug=debug, opt_in=opt_in)


def eresume(cpu: Cpu, ip: int, target: int | None = None) -> None:
    """Execute ENCLU[ERESUME]; see `TraceUnit.enclave_resume`."""
    require_instruction_at(cpu, ip)
    if target is not None:
        require_valid_target(cpu, target)
    cpu.unit.enclave_resume(ip, target)


def eexit(cpu: Cpu, ip: int, target: int) -> None:
    """Execute ENCLU[EEXIT]."""
    require_instruction_at(cpu, ip)
    require_valid_target(cpu, target)
    cpu.unit.enclave_exit(ip, target)


def aex(
    cpu: Cpu,
    ip: int,
    aep: int,
    handler: int,
    *,
    vector: int = 0,
    cr2: int | None = None,
    **changes: Unpack[ArchStateChanges],
) -> None:
    """Leave an enclave by an asynchronous exit or exiting event, handled at CPL 0 with RFLAGS.IF=0;
    see `TraceUnit.enclave_event`.
    """
    arch = cpu.unit.state.arch
    arch = apply_arch_changes(arch, {**kernel_entry_changes(arch), **changes})
    require_reachable_ip(cpu, ip)
    require_valid_target(cpu, handler, arch)
    cpu.unit.enclave_event(ip, aep, handler, arch, vector=vector, cr2=cr2)


def getsec(cpu: Cpu, ip: int, next_ip: int) -> None:
    """Execute GETSEC[SENTER] or GETSEC[ENTERACCS], at CPL 0."""
    require_cpl(cpu, 0, "GETSEC")
    require_instruction_at(cpu, ip, next_ip)
    cpu.unit.getsec(ip, next_ip)


def senter_sleep(cpu: Cpu, ip: int) -> None:
    """Enter the SENTER sleep state of a responding processor."""
    require_reachable_ip(cpu, ip)
    cpu.unit.senter_sleep(ip)


def acm_begin(cpu: Cpu, ip: int) -> None:
    """Start an authenticated code module."""
    cpu.unit.acm_begin(ip)


def acm_end(cpu: Cpu, target: int) -> None:
    """End the authenticated code module."""
    cpu.unit.acm_end(target)


def smi(cpu: Cpu, ip: int, smbase: int = 0x3_0000, *, aep: int | None = None) -> None:
    """Handle an SMI before the instruction at `ip`; see `TraceUnit.smi`."""
    require_reachable_ip(cpu, ip)
    cpu.unit.smi(ip, smbase, aep=aep)


def rsm(cpu: Cpu, target: int | None = None, **changes: Unpack[ArchStateChanges]) -> None:
    """Execute RSM; `changes` are those of the handler to the saved state."""
    smram = cpu.unit.state.smram
    arch = apply_arch_changes(smram.arch, changes) if smram is not None and changes else None
    if target is not None:
        require_valid_target(cpu, target, arch if smram is None or arch else smram.arch)
    cpu.unit.rsm(target, arch)


def smm_vm_exit(
    cpu: Cpu,
    ip: int,
    target: int,
    *,
    cause: Literal["smi", "vmcall"] = "smi",
    controls: VmxControls = NO_CONTROLS,
    reason: int = 0,
    qualification: int = 0,
    enclave_ip: int | None = None,
    **changes: Unpack[ArchStateChanges],
) -> int | None:
    """Exit to the STM at `target`, at CPL 0 in 64-bit code; see `TraceUnit.smm_vm_exit`.

    `controls` are those of the SMM-transfer VMCS.
    """
    monitor = ArchState(cpl=0, cr3=cpu.unit.state.arch.cr3, interrupt_flag=False)
    return cpu.unit.smm_vm_exit(
        ip,
        target,
        apply_arch_changes(monitor, changes),
        controls,
        cause=cause,
        reason=reason,
        qualification=qualification,
        enclave_ip=enclave_ip,
    )


def smm_vm_entry(
    cpu: Cpu,
    ip: int,
    target: int,
    *,
    controls: VmxControls = NO_CONTROLS,
    **changes: Unpack[ArchStateChanges],
) -> None:
    """VM entry at `ip` that returns from SMM; `changes` are what the STM changed in the state
    that it interrupted.
    """
    executive = cpu.unit.state.executive
    require_instruction_at(cpu, ip)
    arch = (
        apply_arch_changes(executive.arch, changes) if executive is not None and changes else None
    )
    cpu.unit.smm_vm_entry(ip, target, controls, arch)


def vmxon(cpu: Cpu, ip: int, next_ip: int) -> None:
    """Execute VMXON; see `TraceUnit.vmxon`."""
    require_instruction_at(cpu, ip, next_ip)
    cpu.unit.vmxon(ip, next_ip)


def vmxoff(cpu: Cpu, ip: int, next_ip: int) -> None:
    """Execute VMXOFF."""
    require_instruction_at(cpu, ip, next_ip)
    cpu.unit.vmxoff(ip, next_ip)


def vmptrld(cpu: Cpu, ip: int, next_ip: int, pointer: int) -> None:
    """Execute a successful VMPTRLD of `pointer`."""
    require_instruction_at(cpu, ip, next_ip)
    cpu.unit.vmptrld(ip, next_ip, pointer)


def vmclear(cpu: Cpu, ip: int, next_ip: int, pointer: int) -> None:
    """Execute a successful VMCLEAR of `pointer`."""
    require_instruction_at(cpu, ip, next_ip)
    cpu.unit.vmclear(ip, next_ip, pointer)


def vm_entry(
    cpu: Cpu,
    ip: int,
    target: int,
    *,
    controls: VmxControls = NO_CONTROLS,
    fails: EntryFailure | None = None,
    next_ip: int | None = None,
    host_ip: int | None = None,
    **changes: Unpack[ArchStateChanges],
) -> EntryFailure | None:
    """Execute VMLAUNCH or VMRESUME at `ip` to the guest at `target`; `changes` lead from the host's
    state to the guest's. Returns how it failed, if it did; see `TraceUnit.vm_entry`.
    """
    guest = apply_arch_changes(cpu.unit.state.arch, changes)
    require_instruction_at(cpu, ip, next_ip)
    require_valid_target(cpu, target, guest)
    return cpu.unit.vm_entry(
        ip, target, guest, controls, fails=fails, next_ip=next_ip, host_ip=host_ip
    )


def vm_exit(
    cpu: Cpu,
    guest_ip: int,
    target: int,
    *,
    reason: int = 0,
    qualification: int = 0,
    vector: int | None = None,
    aborts: bool = False,
    enclave_ip: int | None = None,
    **changes: Unpack[ArchStateChanges],
) -> int | None:
    """Exit from the guest at `guest_ip` to the host at `target`. Returns the guest's
    IA32_RTIT_CTL as the VMCS saves it, if it does; see `TraceUnit.vm_exit`.

    The host's state is that at VM entry, with RFLAGS.IF=0, and `changes`.
    """
    state = cpu.unit.state
    host = apply_arch_changes(state.host or state.arch, {"interrupt_flag": False, **changes})
    require_valid_target(cpu, target, host)
    return cpu.unit.vm_exit(
        guest_ip,
        target,
        host,
        reason=reason,
        qualification=qualification,
        vector=vector,
        aborts=aborts,
        enclave_ip=enclave_ip,
    )
