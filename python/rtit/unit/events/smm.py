"""System management mode: SMI and RSM by default treatment, SMM VM exits and entries with an STM
(sections 33.2.9.3, 33.6 and 33.8.1).

ArchState.stm holds the SMM-transfer VMCS pointer while the dual-monitor treatment is active.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from rtit.unit.arch_state import NO_CONTROLS, ArchState, VmxControls
from rtit.unit.core import Unit
from rtit.unit.enables import linear_address, switch_context
from rtit.unit.events.enclave import leave_enclave
from rtit.unit.events.event_trace import CfeType, EventReport, EventReports, vm_exit_report
from rtit.unit.events.far_transfers import VmxTransition
from rtit.unit.events.power import require_awake
from rtit.unit.events.trace_control import clear_trace_en, set_trace_en
from rtit.unit.events.vmx import (
    count_legal_loads,
    cross_vmx_boundary,
    exit_to_host,
    require_vmx_root,
)
from rtit.unit.illegal_events import (
    ShutdownEntered,
    require_addresses,
    require_bits,
    require_legal,
    require_no_transaction,
)
from rtit.unit.state import StateSavedBySmi, StateSavedBySmmVmExit

SMI_ENTRY = 0x8000
"""Offset of the handler in SMRAM."""


def smi(unit: Unit, ip: int, smbase: int = 0x3_0000, *, aep: int | None = None) -> None:
    """Deliver an SMI before the instruction at `ip`: TraceEn is saved in SMRAM and cleared.

    The handler starts in 16-bit code at `smbase` + 8000H. CR3 changes without PIP. In an enclave an
    asynchronous exit precedes the SMI, and SMRAM receives `aep`, the address outside; without it
    the caller of RSM must give the target. Raises IllegalEvent in SMM (SMIs are blocked), while an
    STM handles SMIs, in a transaction that has not been aborted, and while the processor sleeps or
    waits for SIPI.
    """
    state = unit.state
    arch = state.arch
    require_legal(not arch.in_smm, "an SMI comes in SMM, where SMIs are blocked")
    require_legal(arch.stm is None, "with an STM an SMI is an SMM VM exit")
    require_legal(not arch.wait_for_sipi, "an SMI comes to a processor that waits for SIPI")
    require_awake(unit, "an SMI comes to a processor")
    require_no_transaction(arch, "SMI")
    require_legal(aep is None or arch.in_enclave, "an SMI has an `aep` in an enclave only")
    require_addresses(ip, aep)
    require_bits("SMBASE", smbase, 32)
    returns_to = aep if arch.in_enclave else ip
    reported_ip = ip if aep is None else aep
    trace_en_was = unit.registers.trace_en
    clear_trace_en(unit, ip, ((EventReport(CfeType.SMI), linear_address(unit, reported_ip)),))
    saved = StateSavedBySmi(leave_enclave(unit, ip), returns_to, trace_en_was, state.host)
    state.smram, state.host = saved, None
    switch_context(unit, SMI_ENTRY, replace(ArchState.after_reset(), cs_base=smbase, in_smm=True))


def rsm(unit: Unit, target: int | None = None, arch: ArchState | None = None) -> None:
    """Execute RSM: return to the state in SMRAM, or to `target` or `arch` if the handler changed
    it.

    Raises IllegalEvent without a saved state, and without `target` after an SMI that left an
    enclave and gave no AEP. Raises Shutdown if TraceEn=1, or if it would be 1 while LBR is enabled
    where the two exclude each other (Parameters.rsm_with_lbr).
    """
    require_addresses(target)
    state = unit.state
    saved = state.smram
    if saved is None:
        require_legal(False, "RSM is executed, but no SMI has saved a state")
        return
    target = saved.ip if target is None else target
    if target is None:
        require_legal(False, "RSM needs a target: the SMI left an enclave and did not say its AEP")
        return
    if unit.registers.trace_en:
        raise ShutdownEntered("RSM is executed with TraceEn=1")
    exclusive = unit.profile.lbr_exclusive and unit.parameters.rsm_with_lbr == "shutdown"
    if exclusive and saved.trace_en and state.last_branches.enabled:
        raise ShutdownEntered("RSM enables both PT and LBR, which exclude each other")
    state.smram, state.host = None, saved.host
    switch_context(unit, target, saved.arch if arch is None else arch)
    if saved.trace_en:
        reports: EventReports = ((EventReport(CfeType.RSM), None),)
        set_trace_en(unit, reports)


def smm_vm_exit(
    unit: Unit,
    ip: int,
    target: int,
    monitor: ArchState,
    controls: VmxControls,
    *,
    cause: Literal["smi", "vmcall"] = "smi",
    reason: int = 0,
    qualification: int = 0,
    enclave_ip: int | None = None,
) -> int | None:
    """Enter the STM at `target`: an SMI before the instruction at `ip`, or a VMCALL there.

    TraceEn is neither saved nor cleared unless `controls`, those of the SMM-transfer VMCS, do
    it. Event trace reports an SMI and a VM exit, but not a VMCALL. `enclave_ip` and the result are
    those of `vm_exit`. Raises IllegalEvent without an STM or in SMM, Shutdown as `vm_exit`.
    """
    state = unit.state
    arch = state.arch
    require_legal(arch.stm is not None, "an SMM VM exit needs an STM")
    require_legal(not arch.in_smm, "an SMM VM exit starts in SMM")
    require_legal(arch.vmx != "off", "an SMM VM exit starts outside VMX operation")
    require_no_transaction(arch, "an SMM VM exit")
    require_legal(
        enclave_ip is None or arch.in_enclave, "a VM exit has an `enclave_ip` in one only"
    )
    require_addresses(ip, target, enclave_ip)
    left = vm_exit_report(unit, reason, qualification)
    root = arch.vmx == "root" and arch.privilege == 0
    require_legal(cause == "smi" or root, "only the executive monitor reaches the STM by VMCALL")
    source = ip
    if arch.in_enclave:
        source = state.ip if enclave_ip is None else enclave_ip
    arch = leave_enclave(unit, source)
    saved_ctl = unit.registers.ctl if unit.profile.vmx_tracing else None
    state.executive, state.host = StateSavedBySmmVmExit(arch, state.host), None
    is_shown = not controls.conceal_exit
    reports: EventReports = ()
    if is_shown and cause == "smi":
        # They share one IP: that of the first.
        reports = ((EventReport(CfeType.SMI), linear_address(unit, ip)), (left, None))
    monitor = replace(
        monitor, vmx="root", vmcs=arch.stm, stm=arch.stm, controls=NO_CONTROLS, in_smm=True
    )
    transition = VmxTransition(pip=is_shown, vmcs=is_shown, reports=reports)
    exit_to_host(unit, source, target, monitor, controls.exit_msr_loads, transition)
    return saved_ctl


def smm_vm_entry(
    unit: Unit, ip: int, target: int, controls: VmxControls, executive: ArchState | None = None
) -> None:
    """Return from the STM to `target`, by VMLAUNCH or VMRESUME at `ip`.

    `executive` replaces the state that the SMM VM exit left; whether that was VMX root or
    non-root operation stays. `controls` are the VM-entry controls of the SMM-transfer VMCS.
    Raises IllegalEvent unless an STM runs.
    """
    require_addresses(ip, target)
    state = unit.state
    saved = state.executive
    if saved is None:
        require_legal(False, "a VM entry returns from SMM, but no SMM VM exit led there")
        return
    require_vmx_root(unit, "VM entry")
    before = saved.arch
    arch = before if executive is None else executive
    arch = replace(arch, vmx=before.vmx, vmcs=before.vmcs, stm=before.stm, in_smm=False)
    arch = replace(arch, controls=before.controls)
    is_shown = not controls.conceal_entry
    reports: EventReports = ()
    if is_shown:
        reports = (
            (EventReport(CfeType.RSM), None),
            (EventReport(CfeType.VMENTRY), linear_address(unit, ip)),
        )
    transition = VmxTransition(
        pip=is_shown, entry=before.vmx == "nonroot", vmcs=is_shown, reports=reports
    )
    loads = controls.entry_msr_loads
    count, ends = count_legal_loads(unit, loads)
    require_legal(count == len(loads), "an MSR that the VM entry loads would fault")
    state.executive, state.host = None, saved.host
    cross_vmx_boundary(unit, ip, target, arch, loads, transition, ends=ends)
