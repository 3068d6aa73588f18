"""VMX operation: VMXON to VMPTRLD, VM entry and VM exit (sections 33.2.9.4 and 33.5).

All raise IllegalEvent for an instruction that cannot execute in the present state; what VMX itself
answers to wrong operands is the emulator's part.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from rtit.registers import Msr
from rtit.unit.core import Unit
from rtit.unit.enables import conditions, steering, trace_en
from rtit.unit.events import event_trace, transfers
from rtit.unit.events.event_trace import Cfe, Report, Reports, announce
from rtit.unit.events.transfers import Transition
from rtit.unit.packets import generator, stream, timing
from rtit.unit.refusal import addresses, require, require_no_transaction
from rtit.unit.state.arch import Arch
from rtit.unit.state.vmx_controls import NO_CONTROLS, VmxControls
from rtit.unit.system import enclave, msr_loads, transitions

Failure = Literal["early", "late"]
"""VM entry fails before it has loaded anything (falls through), or after (like a VM exit)."""


_PAGE = 0xFFF


def vmxon(unit: Unit, ip: int, next_ip: int) -> None:
    """VMXON at `ip`. Without IA32_VMX_MISC[14] it ends tracing (33.2.9.4)."""
    arch = unit.state.arch
    require(arch.vmx == "off", "VMXON is executed in VMX operation")
    require(arch.privilege == 0, f"VMXON is executed at CPL {arch.privilege}")
    require_no_transaction(arch, "VMXON")
    addresses(ip, next_ip)
    if not unit.profile.vmx_tracing:
        trace_en.clear(unit, ip)
    steering.go(unit, next_ip, replace(arch, vmx="root", vmcs=None))


def vmxoff(unit: Unit, ip: int, next_ip: int) -> None:
    """VMXOFF at `ip`."""
    arch = transitions.in_root(unit, "VMXOFF")
    addresses(ip, next_ip)
    steering.go(unit, next_ip, replace(arch, vmx="off", vmcs=None))


def vmptrld(unit: Unit, ip: int, next_ip: int, pointer: int) -> None:
    """A successful VMPTRLD: VMCS packet (33.4.2.15). One that fails is no event.

    `pointer` is aligned to 4096; IllegalEvent if not.
    """
    arch = transitions.in_root(unit, "VMPTRLD")
    addresses(ip, next_ip)
    _check_pointer(unit, pointer)
    steering.go(unit, next_ip, replace(arch, vmcs=pointer))
    if unit.state.trigger_en and unit.state.context_en:
        generator.flush_tnt(unit)
        timing.eligible(unit)
        generator.vmcs(unit)
        stream.commit(unit)


def vmclear(unit: Unit, ip: int, next_ip: int, pointer: int) -> None:
    """VMCLEAR; if `pointer` is the current VMCS, there is none afterwards."""
    arch = transitions.in_root(unit, "VMCLEAR")
    addresses(ip, next_ip)
    _check_pointer(unit, pointer)
    steering.go(unit, next_ip, replace(arch, vmcs=None) if arch.vmcs == pointer else arch)


def vm_entry(
    unit: Unit,
    ip: int,
    target: int,
    guest: Arch,
    controls: VmxControls,
    *,
    fails: Failure | None = None,
    next_ip: int | None = None,
    host_ip: int | None = None,
) -> Failure | None:
    """VMLAUNCH or VMRESUME at `ip`; the guest goes on at `target` in the state `guest`.

    `fails` says that the entry does not succeed: it goes on at `next_ip`, or at `host_ip`, each
    needed for its case only. Returns how it failed: also for controls that the processor does
    not have (33.5.1), and for MSR loads that WRMSR would refuse. A late failure leaves the PT
    MSRs as they were.
    """
    arch = transitions.in_root(unit, "VM entry")
    addresses(ip, target, next_ip, host_ip)
    require(not arch.in_smm, "an STM leaves SMM by `smm_vm_entry`")
    require(arch.vmcs is not None, "VM entry has no current VMCS")
    if controls.of_pt and not unit.profile.vmx_tracing:
        fails = "early"
    loads = controls.on_entry
    count, ends = msr_loads.rehearse(unit, loads)
    if fails is None and count < len(loads):
        fails = "late"
    if fails == "early":
        require(next_ip is not None, "a VM entry that fails early goes on at `next_ip`")
        transfers.transfer(unit, next_ip or 0, arch)
        return fails
    told = not controls.conceal_entry
    reports: Reports = ((Report(Cfe.VMENTRY), steering.address(unit, ip)),) if told else ()
    guest = replace(guest, vmx="nonroot", vmcs=arch.vmcs, controls=controls)
    if fails == "late":
        require(host_ip is not None, "a VM entry that fails late goes on at `host_ip`")
        system_wide = all(msr != Msr.CTL for msr, _ in loads)
        _late_failure(unit, reports, guest, host_ip or 0, system_wide=system_wide)
        return fails
    unit.state.host = arch
    transition = Transition(pip=told, entry=True, reports=reports)
    transitions.cross(unit, ip, target, guest, loads, transition, ends=ends)
    return None


def vm_exit(
    unit: Unit,
    guest_ip: int,
    target: int,
    host: Arch,
    *,
    reason: int = 0,
    qualification: int = 0,
    vector: int | None = None,
    aborts: bool = False,
    enclave_ip: int | None = None,
) -> int | None:
    """VM exit; `guest_ip` is the guest IP as the VMCS saves it, the host goes on at `target`.

    `reason` and `qualification` are what event trace tells; `vector` is that of the interrupt
    or exception that caused the exit, if one did. An enclave is left by an asynchronous exit:
    `guest_ip` is its AEP then, and `enclave_ip` the instruction inside that has not completed, by
    default the next one. Returns the IA32_RTIT_CTL that the guest-state area of the VMCS saves, or
    None where VMX has no controls for it, without IA32_VMX_MISC[14]. Raises Shutdown after a VMX
    abort: if `aborts`, or if the MSR-load area holds what WRMSR would refuse.
    """
    state = unit.state
    arch = state.arch
    require(arch.vmx == "nonroot", "there is no VM exit outside VMX non-root operation")
    require_no_transaction(arch, "VM exit")
    require(enclave_ip is None or arch.in_enclave, "a VM exit has an `enclave_ip` in one only")
    addresses(guest_ip, target, enclave_ip)
    report = event_trace.vm_exit(unit, reason, qualification, vector)
    controls = arch.controls
    host = replace(host, vmx="root", vmcs=arch.vmcs, controls=NO_CONTROLS)
    state.host = None
    saved_ctl = unit.registers.ctl if unit.profile.vmx_tracing else None
    source = guest_ip
    if arch.in_enclave:
        source = state.ip if enclave_ip is None else enclave_ip
        enclave.left_by_event(unit, source)
    told = not controls.conceal_exit
    reports: Reports = ((report, steering.address(unit, guest_ip)),) if told else ()
    transition = Transition(pip=told, reports=reports)
    transitions.leave(unit, source, target, host, controls.on_exit, transition, aborts=aborts)
    return saved_ctl


def _late_failure(
    unit: Unit, reports: Reports, guest: Arch, host_ip: int, *, system_wide: bool
) -> None:
    """Table 33-54: what comes depends on whether the entry was to leave TraceEn alone."""
    state, parts = unit.state, unit.parameters.failed_vmentry_packets
    host = state.arch
    shown = guest.controls
    host_pip = "host_pip" in parts and system_wide and not shown.conceal_exit
    if state.trigger_en:
        generator.flush_tnt(unit)
        context, os = state.context_en, unit.configuration.os
        guest_pip = "guest_pip" in parts and system_wide and not shown.conceal_entry
        guest_pip &= conditions.context_en(unit.configuration, guest) and os
        if state.packet_en or guest_pip or "trace_en" in parts or (host_pip and context and os):
            timing.eligible(unit)
        if "CFE" in parts:
            announce(unit, reports, before=context, after=context, branch_fup=False)
        if guest_pip:
            state.arch = guest
            generator.pip(unit, entry=True)
            state.arch = host
        if "trace_en" in parts:
            timing.timestamp(unit)
            timing.cbr(unit)
    transfers.transfer(
        unit, host_ip, replace(host, interrupt_flag=False), transition=Transition(pip=host_pip)
    )


def _check_pointer(unit: Unit, pointer: int) -> None:
    wrong = pointer & _PAGE or pointer >> unit.profile.maxphyaddr or pointer < 0
    require(not wrong, f"{pointer:#x} is no VMCS pointer")
