"""VMX (sections 33.2.9.4 and 33.5)."""

from __future__ import annotations

from typing import Unpack

from rtit.processor.changes import Changes, changed
from rtit.processor.core import Cpu
from rtit.processor.sanity import require_instruction, require_target
from rtit.unit.arch_state import NO_CONTROLS, VmxControls
from rtit.unit.events.vmx import EntryFailure


def vmxon(cpu: Cpu, ip: int, next_ip: int) -> None:
    """VMXON; see `TraceUnit.vmxon`."""
    require_instruction(cpu, ip, next_ip)
    cpu.unit.vmxon(ip, next_ip)


def vmxoff(cpu: Cpu, ip: int, next_ip: int) -> None:
    """VMXOFF."""
    require_instruction(cpu, ip, next_ip)
    cpu.unit.vmxoff(ip, next_ip)


def vmptrld(cpu: Cpu, ip: int, next_ip: int, pointer: int) -> None:
    """A successful VMPTRLD of `pointer`."""
    require_instruction(cpu, ip, next_ip)
    cpu.unit.vmptrld(ip, next_ip, pointer)


def vmclear(cpu: Cpu, ip: int, next_ip: int, pointer: int) -> None:
    """A successful VMCLEAR of `pointer`."""
    require_instruction(cpu, ip, next_ip)
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
    **changes: Unpack[Changes],
) -> EntryFailure | None:
    """VMLAUNCH or VMRESUME at `ip` to the guest at `target`; `changes` lead from the host's
    state to the guest's. Returns how it failed, if it did; see `TraceUnit.vm_entry`.
    """
    guest = changed(cpu.unit.state.arch, changes)
    require_instruction(cpu, ip, next_ip)
    require_target(cpu, target, guest)
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
    **changes: Unpack[Changes],
) -> int | None:
    """VM exit from the guest at `guest_ip` to the host at `target`. Returns the guest's
    IA32_RTIT_CTL as the VMCS saves it, if it does; see `TraceUnit.vm_exit`.

    The host's state is that at VM entry, with RFLAGS.IF=0, and `changes`.
    """
    state = cpu.unit.state
    host = changed(state.host or state.arch, {"interrupt_flag": False, **changes})
    require_target(cpu, target, host)
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
