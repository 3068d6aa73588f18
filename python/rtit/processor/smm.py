"""System management mode, with an STM and without (sections 33.2.9.3 and 33.6)."""

from __future__ import annotations

from typing import Literal, Unpack

from rtit.processor.changes import Changes, changed
from rtit.processor.core import Cpu
from rtit.processor.sanity import require_here, require_instruction, require_target
from rtit.unit.arch_state import NO_CONTROLS, ArchState, VmxControls


def smi(cpu: Cpu, ip: int, smbase: int = 0x3_0000, *, aep: int | None = None) -> None:
    """SMI before the instruction at `ip`; see `TraceUnit.smi`."""
    require_here(cpu, ip)
    cpu.unit.smi(ip, smbase, aep=aep)


def rsm(cpu: Cpu, target: int | None = None, **changes: Unpack[Changes]) -> None:
    """RSM; `changes` are what the handler changed in the saved state."""
    smram = cpu.unit.state.smram
    arch = changed(smram.arch, changes) if smram is not None and changes else None
    if target is not None:
        require_target(cpu, target, arch if smram is None or arch else smram.arch)
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
    **changes: Unpack[Changes],
) -> int | None:
    """SMM VM exit to the STM at `target`, at CPL 0 in 64-bit code; see `TraceUnit.smm_vm_exit`.

    `controls` are those of the SMM-transfer VMCS.
    """
    monitor = ArchState(cpl=0, cr3=cpu.unit.state.arch.cr3, interrupt_flag=False)
    return cpu.unit.smm_vm_exit(
        ip,
        target,
        changed(monitor, changes),
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
    **changes: Unpack[Changes],
) -> None:
    """VM entry at `ip` that returns from SMM; `changes` are what the STM changed in the state
    that it interrupted.
    """
    executive = cpu.unit.state.executive
    require_instruction(cpu, ip)
    arch = changed(executive.arch, changes) if executive is not None and changes else None
    cpu.unit.smm_vm_entry(ip, target, controls, arch)
