"""VMX operation: VMXON to VMPTRLD, VM entry and VM exit (sections 33.2.9.4 and 33.5)."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from rtit.registers import Msr
from rtit.unit import enables, event_trace, generator, timing
from rtit.unit.announce import Reports, announce
from rtit.unit.arch import Arch
from rtit.unit.event_trace import Cfe, Report
from rtit.unit.refusal import Shutdown, require
from rtit.unit.trace_en import Loads, TraceEnEvents
from rtit.unit.transfers import Transition
from rtit.unit.vmx_controls import NO_CONTROLS, VmxControls

Failure = Literal["early", "late"]
"""VM entry fails before it has loaded anything (falls through), or after (like a VM exit)."""

_PAGE = 0xFFF


class Vmx(TraceEnEvents):
    """VMX as events. All raise IllegalEvent for an instruction that cannot execute in the present
    state; what VMX itself answers to wrong operands is the emulator's part.
    """

    __slots__ = ()

    def vmxon(self, ip: int, next_ip: int) -> None:
        """VMXON at `ip`. Without IA32_VMX_MISC[14] it ends tracing (33.2.9.4)."""
        arch = self.state.arch
        require(arch.vmx == "off", "VMXON is executed in VMX operation")
        require(arch.privilege == 0, f"VMXON is executed at CPL {arch.privilege}")
        if not self.profile.vmx_tracing:
            self._clear_trace_en(ip)
        self._go(next_ip, replace(arch, vmx="root", vmcs=None))

    def vmxoff(self, ip: int, next_ip: int) -> None:
        """VMXOFF at `ip`."""
        arch = self._in_root("VMXOFF")
        self._go(next_ip, replace(arch, vmx="off", vmcs=None))

    def vmptrld(self, ip: int, next_ip: int, pointer: int) -> None:
        """A successful VMPTRLD: VMCS packet (33.4.2.15). One that fails is no event.

        `pointer` is aligned to 4096; IllegalEvent if not.
        """
        arch = self._in_root("VMPTRLD")
        self._check_pointer(pointer)
        self._go(next_ip, replace(arch, vmcs=pointer))
        if self.state.trigger_en and self.state.context_en:
            generator.flush_tnt(self)
            timing.eligible(self)
            generator.vmcs(self)
            self.commit()

    def vmclear(self, ip: int, next_ip: int, pointer: int) -> None:
        """VMCLEAR; if `pointer` is the current VMCS, there is none afterwards."""
        arch = self._in_root("VMCLEAR")
        self._check_pointer(pointer)
        self._go(next_ip, replace(arch, vmcs=None) if arch.vmcs == pointer else arch)

    def vm_entry(
        self,
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
        arch = self._in_root("VM entry")
        require(not arch.in_smm, "an STM leaves SMM by `smm_vm_entry`")
        require(arch.vmcs is not None, "VM entry has no current VMCS")
        if controls.of_pt and not self.profile.vmx_tracing:
            fails = "early"
        loads = controls.on_entry
        count, ends = self._rehearse(loads)
        if fails is None and count < len(loads):
            fails = "late"
        if fails == "early":
            require(next_ip is not None, "a VM entry that fails early goes on at `next_ip`")
            self.transfer(next_ip or 0, arch)
            return fails
        told = not controls.conceal_entry
        reports: Reports = ((Report(Cfe.VMENTRY), self.address(ip)),) if told else ()
        guest = replace(guest, vmx="nonroot", vmcs=arch.vmcs, controls=controls)
        if fails == "late":
            require(host_ip is not None, "a VM entry that fails late goes on at `host_ip`")
            system_wide = all(msr != Msr.CTL for msr, _ in loads)
            self._late_failure(reports, guest, host_ip or 0, system_wide=system_wide)
            return fails
        self.state.host = arch
        transition = Transition(pip=told, entry=True, reports=reports)
        self._cross(ip, target, guest, loads, transition, ends=ends)
        return None

    def vm_exit(
        self,
        guest_ip: int,
        target: int,
        host: Arch,
        *,
        reason: int = 0,
        qualification: int = 0,
        vector: int | None = None,
        aborts: bool = False,
    ) -> None:
        """VM exit; `guest_ip` is the guest IP as the VMCS saves it, the host goes on at `target`.

        `reason` and `qualification` are what event trace tells; `vector` is that of the interrupt
        or exception that caused the exit, if one did. Raises Shutdown after a VMX abort: if
        `aborts`, or if the MSR-load area holds what WRMSR would refuse.
        """
        state = self.state
        arch = state.arch
        require(arch.vmx == "nonroot", "there is no VM exit outside VMX non-root operation")
        controls = arch.controls
        host = replace(host, vmx="root", vmcs=arch.vmcs, controls=NO_CONTROLS)
        state.host = None
        told = not controls.conceal_exit
        report = event_trace.vm_exit(self, reason, qualification, vector)
        reports: Reports = ((report, self.address(guest_ip)),) if told else ()
        transition = Transition(pip=told, reports=reports)
        self._exit(guest_ip, target, host, controls.on_exit, transition, aborts=aborts)

    # What VM entry and exit share with those of an STM

    def _exit(
        self,
        guest_ip: int,
        target: int,
        host: Arch,
        loads: Loads,
        transition: Transition,
        *,
        aborts: bool = False,
    ) -> None:
        count, ends = self._rehearse(loads)
        aborts |= count < len(loads)
        if aborts and self.parameters.vmx_abort_drop == "tip":
            self._abort(guest_ip, target, host, loads[:count], transition)
        else:
            self._cross(
                guest_ip, target, host, loads[:count], transition, ends=ends, source=guest_ip
            )
        if aborts:
            raise Shutdown("a VM exit ended in VMX abort")

    def _cross(
        self,
        ip: int,
        target: int,
        arch: Arch,
        loads: Loads,
        transition: Transition,
        *,
        ends: bool,
        source: int | None = None,
    ) -> None:
        """Go to the other side; `source` is what FUP carries, None if the code tells where."""
        if self.registers.trace_en and not ends:
            self.transfer(target, arch, event_ip=source, transition=transition)
            return
        told = self.parameters.vmentry_disable_fup or "SKD022" in self.errata
        fup = source is not None or told
        arriving = tuple((report, None) for report, _ in transition.reports)
        self._switch(
            ip, target, arch, loads, leaving=transition.reports, arriving=arriving, fup=fup
        )

    def _abort(
        self, guest_ip: int, target: int, host: Arch, loads: Loads, transition: Transition
    ) -> None:
        """FUP and PIP of a VM exit whose end is lost (33.5.2.6)."""
        state = self.state
        source, was, was_context = self.address(guest_ip), state.packet_en, state.context_en
        self._go(target, host)
        if state.trigger_en:
            self.steer(state.ip)
            self._abort_packets(source, transition, was=was, was_context=was_context)
        self._load_silently(loads)

    def _abort_packets(
        self, source: int, transition: Transition, *, was: bool, was_context: bool
    ) -> None:
        state = self.state
        generator.flush_tnt(self)
        timing.eligible(self)
        announce(
            self,
            transition.reports,
            before=was_context,
            after=state.context_en,
            branch_fup=was,
        )
        if was:
            generator.fup(self, source)
        if transition.pip and state.context_en and self.configuration.os:
            generator.pip(self)
        self.commit()

    def _late_failure(
        self, reports: Reports, guest: Arch, host_ip: int, *, system_wide: bool
    ) -> None:
        """Table 33-54: what comes depends on whether the entry was to leave TraceEn alone."""
        state, parts = self.state, self.parameters.failed_vmentry_packets
        host = state.arch
        shown = guest.controls
        if state.trigger_en:
            generator.flush_tnt(self)
            context = state.context_en
            if "CFE" in parts:
                announce(self, reports, before=context, after=context, branch_fup=False)
            context = enables.context_en(self.configuration, guest) and self.configuration.os
            if "guest_pip" in parts and system_wide and not shown.conceal_entry and context:
                timing.eligible(self)
                state.arch = guest
                generator.pip(self, entry=True)
                state.arch = host
            if "trace_en" in parts:
                timing.eligible(self)
                timing.timestamp(self)
                timing.cbr(self)
        host_pip = "host_pip" in parts and system_wide and not shown.conceal_exit
        self.transfer(
            host_ip, replace(host, interrupt_flag=False), transition=Transition(pip=host_pip)
        )

    def _in_root(self, what: str) -> Arch:
        arch = self.state.arch
        require(arch.vmx == "root", f"{what} is executed outside VMX root operation")
        require(arch.privilege == 0, f"{what} is executed at CPL {arch.privilege}")
        return arch

    def _check_pointer(self, pointer: int) -> None:
        wrong = pointer & _PAGE or pointer >> self.profile.maxphyaddr or pointer < 0
        require(not wrong, f"{pointer:#x} is no VMCS pointer")
