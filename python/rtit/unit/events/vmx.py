"""VMX operation: VMXON to VMPTRLD, VM entry, VM exit, and the MSR-load areas (sections 33.2.8.1,
33.2.9.4, 33.5).

A transition either keeps TraceEn (system-wide tracing: packets show the transition, unless the
"conceal VMX from PT" controls are 1) or changes TraceEn through its MSR loads (one side is traced:
the trace ends or begins at the transition). `cross_vmx_boundary` handles both; `exit_to_host` adds
VMX abort. SMM VM exits and entries (`smm`) use both functions.

Events raise IllegalEvent for an instruction that cannot execute in the present state. VMfail and
faults for wrong operands are the emulator's task.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from rtit.errors import GeneralProtection, IllegalEvent
from rtit.registers import Msr, wrmsr
from rtit.unit.arch_state import NO_CONTROLS, ArchState, VmxControls
from rtit.unit.control_flow_packets import emit_fup, emit_pip, emit_vmcs, flush_tnt
from rtit.unit.core import Unit
from rtit.unit.enables import compute_context_en, linear_address, switch_context, update_enables
from rtit.unit.events.enclave import leave_enclave
from rtit.unit.events.event_trace import (
    CfeType,
    EventReport,
    EventReports,
    emit_events,
    vm_exit_report,
)
from rtit.unit.events.far_transfers import VmxTransition, transfer
from rtit.unit.events.trace_control import (
    TRACE_EN,
    clear_trace_en,
    clear_trace_en_silently,
    load_status_register,
    write_pt_msr,
)
from rtit.unit.illegal_events import (
    ShutdownEntered,
    require_addresses,
    require_legal,
    require_no_transaction,
)
from rtit.unit.packet_commit import commit
from rtit.unit.timing_packets import emit_cbr, emit_cyc_if_due, emit_tsc

MsrLoads = tuple[tuple[int, int], ...]
"""(MSR, value) in order; PT MSRs only."""


def load_msrs_silently(unit: Unit, loads: MsrLoads) -> None:
    """Load MSRs of a processor that shuts down; no packet is emitted. All loads are legal."""
    for msr, value in loads:
        if msr == Msr.CTL and unit.registers.trace_en and not value & TRACE_EN:
            clear_trace_en_silently(unit)
        wrmsr(unit.registers, msr, value, profile=unit.profile, vmx=True)
        if msr == Msr.STATUS:
            load_status_register(unit)


def count_legal_loads(unit: Unit, loads: MsrLoads) -> tuple[int, bool]:
    """Return how many of `loads` succeed, and whether they end a trace; change nothing."""
    registers = unit.registers.copy()
    ends = False
    for number, (msr, value) in enumerate(loads):
        traced = registers.trace_en
        try:
            wrmsr(registers, msr, value, profile=unit.profile, vmx=True)
        except GeneralProtection:
            return number, ends
        ends |= traced and not registers.trace_en
    return len(loads), ends


def switch_context_and_load(
    unit: Unit,
    ip: int,
    target: int,
    arch: ArchState,
    loads: MsrLoads,
    *,
    leaving: EventReports,
    arriving: EventReports,
    fup: bool = True,
) -> None:
    """Switch to another context while `loads` clear or set TraceEn. All loads are legal.

    A trace that ends does so in the old context, at `ip`; one that begins does so in the new
    context, at `target`. `leaving` is reported at an end, `arriving` at a beginning without an end
    before it.
    """
    arrived = False
    for msr, value in loads:
        ends = msr == Msr.CTL and unit.registers.trace_en and not value & TRACE_EN
        if ends and not arrived:
            write_pt_msr(unit, msr, value, ip=ip, reports=leaving, fup=fup)
            arriving = ()
        elif not unit.registers.trace_en and not arrived:
            switch_context(unit, target, arch)
            arrived = True
        if not ends or arrived:
            write_pt_msr(unit, msr, value, reports=arriving)
            if unit.registers.trace_en:
                arriving = ()
    if not arrived:
        switch_context(unit, target, arch)


def exit_to_host(
    unit: Unit,
    guest_ip: int,
    target: int,
    host: ArchState,
    loads: MsrLoads,
    transition: VmxTransition,
    *,
    aborts: bool = False,
) -> None:
    """Perform a VM exit from the instruction at `guest_ip` to `target`.

    Raises Shutdown for a VMX abort: if `aborts`, or if WRMSR would refuse one of `loads`.
    """
    count, ends = count_legal_loads(unit, loads)
    aborts |= count < len(loads)
    if aborts and unit.parameters.vmx_abort_drop == "tip":
        _abort_exit(unit, guest_ip, target, host, loads[:count], transition)
    else:
        cross_vmx_boundary(
            unit, guest_ip, target, host, loads[:count], transition, ends=ends, source=guest_ip
        )
    if aborts:
        raise ShutdownEntered("a VM exit ended in VMX abort")


def cross_vmx_boundary(
    unit: Unit,
    ip: int,
    target: int,
    arch: ArchState,
    loads: MsrLoads,
    transition: VmxTransition,
    *,
    ends: bool,
    source: int | None = None,
) -> None:
    """Enter the other side of a transition. `source` is the IP of the FUP; None without FUP."""
    if unit.registers.trace_en and not ends:
        transfer(unit, target, arch, event_ip=source, transition=transition)
        return
    entry_has_fup = unit.parameters.vmentry_disable_fup or "SKD022" in unit.errata
    fup = source is not None or entry_has_fup
    arriving = tuple((report, None) for report, _ in transition.reports)
    switch_context_and_load(
        unit, ip, target, arch, loads, leaving=transition.reports, arriving=arriving, fup=fup
    )


def _abort_exit(
    unit: Unit,
    guest_ip: int,
    target: int,
    host: ArchState,
    loads: MsrLoads,
    transition: VmxTransition,
) -> None:
    """Emit FUP and PIP of a VM exit that ends in a VMX abort (33.5.2.6)."""
    state = unit.state
    source, was, was_context = linear_address(unit, guest_ip), state.packet_en, state.context_en
    switch_context(unit, target, host)
    if state.trigger_en:
        update_enables(unit, state.ip)
        _emit_aborted_exit(unit, source, transition, was=was, was_context=was_context)
    load_msrs_silently(unit, loads)


def _emit_aborted_exit(
    unit: Unit, source: int, transition: VmxTransition, *, was: bool, was_context: bool
) -> None:
    state = unit.state
    flush_tnt(unit)
    emit_cyc_if_due(unit)
    emit_events(
        unit, transition.reports, before=was_context, after=state.context_en, branch_fup=was
    )
    if was:
        emit_fup(unit, source)
    if transition.pip and state.context_en and unit.configuration.os:
        emit_pip(unit)
    commit(unit)


def require_vmx_root(unit: Unit, what: str) -> ArchState:
    """Return the present state. Raises IllegalEvent unless in VMX root operation at CPL 0."""
    arch = unit.state.arch
    require_legal(arch.vmx == "root", f"{what} is executed outside VMX root operation")
    require_legal(arch.privilege == 0, f"{what} is executed at CPL {arch.privilege}")
    require_no_transaction(arch, what)
    return arch


EntryFailure = Literal["early", "late"]
"""VM entry fails before it has loaded anything (falls through), or after (like a VM exit)."""

_PAGE_OFFSET = 0xFFF


def vmxon(unit: Unit, ip: int, next_ip: int) -> None:
    """Execute VMXON at `ip`. Without IA32_VMX_MISC[14] it ends tracing (33.2.9.4)."""
    arch = unit.state.arch
    require_legal(arch.vmx == "off", "VMXON is executed in VMX operation")
    require_legal(arch.privilege == 0, f"VMXON is executed at CPL {arch.privilege}")
    require_no_transaction(arch, "VMXON")
    require_addresses(ip, next_ip)
    if not unit.profile.vmx_tracing:
        clear_trace_en(unit, ip)
    switch_context(unit, next_ip, replace(arch, vmx="root", vmcs=None))


def vmxoff(unit: Unit, ip: int, next_ip: int) -> None:
    """Execute VMXOFF at `ip`."""
    arch = require_vmx_root(unit, "VMXOFF")
    require_addresses(ip, next_ip)
    switch_context(unit, next_ip, replace(arch, vmx="off", vmcs=None))


def vmptrld(unit: Unit, ip: int, next_ip: int, pointer: int) -> None:
    """Execute a successful VMPTRLD: VMCS packet (33.4.2.15). A failing one is not an event.

    Raises IllegalEvent unless `pointer` is aligned to 4096.
    """
    arch = require_vmx_root(unit, "VMPTRLD")
    require_addresses(ip, next_ip)
    _require_vmcs_pointer(unit, pointer)
    switch_context(unit, next_ip, replace(arch, vmcs=pointer))
    if unit.state.trigger_en and unit.state.context_en:
        flush_tnt(unit)
        emit_cyc_if_due(unit)
        emit_vmcs(unit)
        commit(unit)


def vmclear(unit: Unit, ip: int, next_ip: int, pointer: int) -> None:
    """Execute VMCLEAR; if `pointer` is the current VMCS, there is none afterwards."""
    arch = require_vmx_root(unit, "VMCLEAR")
    require_addresses(ip, next_ip)
    _require_vmcs_pointer(unit, pointer)
    switch_context(unit, next_ip, replace(arch, vmcs=None) if arch.vmcs == pointer else arch)


def vm_entry(
    unit: Unit,
    ip: int,
    target: int,
    guest: ArchState,
    controls: VmxControls,
    *,
    fails: EntryFailure | None = None,
    next_ip: int | None = None,
    host_ip: int | None = None,
) -> EntryFailure | None:
    """Execute VMLAUNCH or VMRESUME at `ip`; the guest runs at `target` in the state `guest`.

    `fails` says that the entry does not succeed: it goes on at `next_ip`, or at `host_ip`, each
    needed for its case only. Returns how it failed: also for controls that the processor does
    not have (33.5.1), and for MSR loads that WRMSR would refuse. A late failure leaves the PT
    MSRs as they were.
    """
    arch = require_vmx_root(unit, "VM entry")
    require_addresses(ip, target, next_ip, host_ip)
    require_legal(not arch.in_smm, "an STM leaves SMM by `smm_vm_entry`")
    require_legal(arch.vmcs is not None, "VM entry has no current VMCS")
    if controls.uses_pt_controls and not unit.profile.vmx_tracing:
        fails = "early"
    loads = controls.entry_msr_loads
    count, ends = count_legal_loads(unit, loads)
    if fails is None and count < len(loads):
        fails = "late"
    if fails == "early":
        if next_ip is None:
            raise IllegalEvent("a VM entry that fails early goes on at `next_ip`")
        transfer(unit, next_ip, arch)
        return fails
    is_shown = not controls.conceal_entry
    reports: EventReports = (
        ((EventReport(CfeType.VMENTRY), linear_address(unit, ip)),) if is_shown else ()
    )
    guest = replace(guest, vmx="nonroot", vmcs=arch.vmcs, controls=controls)
    if fails == "late":
        if host_ip is None:
            raise IllegalEvent("a VM entry that fails late goes on at `host_ip`")
        system_wide = all(msr != Msr.CTL for msr, _ in loads)
        _emit_late_failure(unit, reports, guest, host_ip, system_wide=system_wide)
        return fails
    unit.state.host = arch
    transition = VmxTransition(pip=is_shown, entry=True, reports=reports)
    cross_vmx_boundary(unit, ip, target, guest, loads, transition, ends=ends)
    return None


def vm_exit(
    unit: Unit,
    guest_ip: int,
    target: int,
    host: ArchState,
    *,
    reason: int = 0,
    qualification: int = 0,
    vector: int | None = None,
    aborts: bool = False,
    enclave_ip: int | None = None,
) -> int | None:
    """Perform a VM exit; `guest_ip` is the guest IP that the VMCS saves; the host runs at `target`.

    `reason` and `qualification` are reported by event trace; `vector` is that of the interrupt
    or exception that caused the exit, if one did. An enclave is left by an asynchronous exit:
    `guest_ip` is its AEP then, and `enclave_ip` the instruction inside that has not completed, by
    default the next one. Returns the IA32_RTIT_CTL that the guest-state area of the VMCS saves, or
    None where VMX has no controls for it, without IA32_VMX_MISC[14]. Raises Shutdown after a VMX
    abort: if `aborts`, or if the MSR-load area holds what WRMSR would refuse.
    """
    state = unit.state
    arch = state.arch
    require_legal(arch.vmx == "nonroot", "there is no VM exit outside VMX non-root operation")
    require_no_transaction(arch, "VM exit")
    require_legal(
        enclave_ip is None or arch.in_enclave, "a VM exit has an `enclave_ip` in one only"
    )
    require_addresses(guest_ip, target, enclave_ip)
    report = vm_exit_report(unit, reason, qualification, vector)
    controls = arch.controls
    host = replace(host, vmx="root", vmcs=arch.vmcs, controls=NO_CONTROLS)
    state.host = None
    saved_ctl = unit.registers.ctl if unit.profile.vmx_tracing else None
    source = guest_ip
    if arch.in_enclave:
        source = state.ip if enclave_ip is None else enclave_ip
        leave_enclave(unit, source)
    is_shown = not controls.conceal_exit
    reports: EventReports = ((report, linear_address(unit, guest_ip)),) if is_shown else ()
    transition = VmxTransition(pip=is_shown, reports=reports)
    exit_to_host(unit, source, target, host, controls.exit_msr_loads, transition, aborts=aborts)
    return saved_ctl


def _emit_late_failure(
    unit: Unit, reports: EventReports, guest: ArchState, host_ip: int, *, system_wide: bool
) -> None:
    """Emit the packets of a late failure; they depend on whether the entry kept TraceEn (Table
    33-54).
    """
    state, parts = unit.state, unit.parameters.failed_vmentry_packets
    host = state.arch
    shown = guest.controls
    host_pip = "host_pip" in parts and system_wide and not shown.conceal_exit
    if state.trigger_en:
        flush_tnt(unit)
        context, os = state.context_en, unit.configuration.os
        guest_pip = "guest_pip" in parts and system_wide and not shown.conceal_entry
        guest_pip &= compute_context_en(unit.configuration, guest) and os
        if state.packet_en or guest_pip or "trace_en" in parts or (host_pip and context and os):
            emit_cyc_if_due(unit)
        if "CFE" in parts:
            emit_events(unit, reports, before=context, after=context, branch_fup=False)
        if guest_pip:
            state.arch = guest
            emit_pip(unit, entry=True)
            state.arch = host
        if "trace_en" in parts:
            emit_tsc(unit)
            emit_cbr(unit)
    transfer(
        unit, host_ip, replace(host, interrupt_flag=False), transition=VmxTransition(pip=host_pip)
    )


def _require_vmcs_pointer(unit: Unit, pointer: int) -> None:
    wrong = pointer & _PAGE_OFFSET or pointer >> unit.profile.maxphyaddr or pointer < 0
    require_legal(not wrong, f"{pointer:#x} is no VMCS pointer")
