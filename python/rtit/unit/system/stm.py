"""The SMM-transfer monitor: SMM VM exits, and VM entries that return from them (section 33.6).

The dual-monitor treatment of SMIs; Arch.stm holds the SMM-transfer VMCS pointer.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from rtit.unit.core import Unit
from rtit.unit.enables import steering
from rtit.unit.events import event_trace
from rtit.unit.events.event_trace import Cfe, Report, Reports
from rtit.unit.events.transfers import Transition
from rtit.unit.refusal import addresses, require, require_no_transaction
from rtit.unit.state.arch import Arch
from rtit.unit.state.saved import Executive
from rtit.unit.state.vmx_controls import NO_CONTROLS, VmxControls
from rtit.unit.system import enclave, msr_loads, transitions


def smm_vm_exit(
    unit: Unit,
    ip: int,
    target: int,
    monitor: Arch,
    controls: VmxControls,
    *,
    cause: Literal["smi", "vmcall"] = "smi",
    reason: int = 0,
    qualification: int = 0,
    enclave_ip: int | None = None,
) -> int | None:
    """An SMI before the instruction at `ip`, or a VMCALL there, reaches the STM at `target`.

    TraceEn is neither saved nor cleared unless `controls`, those of the SMM-transfer VMCS, do
    it. Event trace tells an SMI and a VM exit, of a VMCALL nothing. `enclave_ip` and what it
    returns are those of `vm_exit`. Raises IllegalEvent
    without an STM or in SMM, Shutdown as `vm_exit`.
    """
    state = unit.state
    arch = state.arch
    require(arch.stm is not None, "an SMM VM exit needs an STM")
    require(not arch.in_smm, "an SMM VM exit starts in SMM")
    require(arch.vmx != "off", "an SMM VM exit starts outside VMX operation")
    require_no_transaction(arch, "an SMM VM exit")
    require(enclave_ip is None or arch.in_enclave, "a VM exit has an `enclave_ip` in one only")
    addresses(ip, target, enclave_ip)
    left = event_trace.vm_exit(unit, reason, qualification)
    root = arch.vmx == "root" and arch.privilege == 0
    require(cause == "smi" or root, "only the executive monitor reaches the STM by VMCALL")
    source = ip
    if arch.in_enclave:
        source = state.ip if enclave_ip is None else enclave_ip
    arch = enclave.left_by_event(unit, source)
    saved_ctl = unit.registers.ctl if unit.profile.vmx_tracing else None
    state.executive, state.host = Executive(arch, state.host), None
    told = not controls.conceal_exit
    reports: Reports = ()
    if told and cause == "smi":
        # They share one IP: that of the first.
        reports = ((Report(Cfe.SMI), steering.address(unit, ip)), (left, None))
    monitor = replace(
        monitor, vmx="root", vmcs=arch.stm, stm=arch.stm, controls=NO_CONTROLS, in_smm=True
    )
    transition = Transition(pip=told, vmcs=told, reports=reports)
    transitions.leave(unit, source, target, monitor, controls.on_exit, transition)
    return saved_ctl


def smm_vm_entry(
    unit: Unit, ip: int, target: int, controls: VmxControls, executive: Arch | None = None
) -> None:
    """The STM returns by VMLAUNCH or VMRESUME at `ip` to what it interrupted, at `target`.

    `executive` replaces the state that the SMM VM exit left; whether that was VMX root or
    non-root operation stays. `controls` are the VM-entry controls of the SMM-transfer VMCS.
    Raises IllegalEvent unless an STM runs.
    """
    addresses(ip, target)
    state = unit.state
    saved = state.executive
    if saved is None:
        require(False, "a VM entry returns from SMM, but no SMM VM exit led there")
        return
    transitions.in_root(unit, "VM entry")
    before = saved.arch
    arch = before if executive is None else executive
    arch = replace(arch, vmx=before.vmx, vmcs=before.vmcs, stm=before.stm, in_smm=False)
    arch = replace(arch, controls=before.controls)
    told = not controls.conceal_entry
    reports: Reports = ()
    if told:
        reports = ((Report(Cfe.RSM), None), (Report(Cfe.VMENTRY), steering.address(unit, ip)))
    transition = Transition(pip=told, entry=before.vmx == "nonroot", vmcs=told, reports=reports)
    loads = controls.on_entry
    count, ends = msr_loads.rehearse(unit, loads)
    require(count == len(loads), "an MSR that the VM entry loads would fault")
    state.executive, state.host = None, saved.host
    transitions.cross(unit, ip, target, arch, loads, transition, ends=ends)
