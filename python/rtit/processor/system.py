"""The processor's system events: VMX, SMM, enclaves, measured launch, XSAVES, LBR."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal

from rtit.unit import Arch, TraceUnit
from rtit.unit.state.vmx_controls import NO_CONTROLS, VmxControls
from rtit.unit.system.vmx import Failure


class SystemEvents:
    """Events that a hypervisor, an SMM handler or an operating system causes.

    Each raises IllegalEvent where it cannot happen, and Shutdown where it ends in shutdown. Keyword
    arguments named `changes` are fields of `Arch` that the event changes.
    """

    __slots__ = ()

    unit: TraceUnit

    # VMX

    def vmxon(self, ip: int, next_ip: int) -> None:
        """VMXON; see `TraceUnit.vmxon`."""
        self.unit.vmxon(ip, next_ip)

    def vmxoff(self, ip: int, next_ip: int) -> None:
        """VMXOFF."""
        self.unit.vmxoff(ip, next_ip)

    def vmptrld(self, ip: int, next_ip: int, pointer: int) -> None:
        """A successful VMPTRLD of `pointer`."""
        self.unit.vmptrld(ip, next_ip, pointer)

    def vmclear(self, ip: int, next_ip: int, pointer: int) -> None:
        """A successful VMCLEAR of `pointer`."""
        self.unit.vmclear(ip, next_ip, pointer)

    def vm_entry(
        self,
        ip: int,
        target: int,
        *,
        controls: VmxControls = NO_CONTROLS,
        fails: Failure | None = None,
        next_ip: int | None = None,
        host_ip: int | None = None,
        **changes: Any,
    ) -> Failure | None:
        """VMLAUNCH or VMRESUME at `ip` to the guest at `target`; `changes` lead from the host's
        state to the guest's. Returns how it failed, if it did; see `TraceUnit.vm_entry`.
        """
        guest = replace(self.unit.state.arch, **changes)
        return self.unit.vm_entry(
            ip, target, guest, controls, fails=fails, next_ip=next_ip, host_ip=host_ip
        )

    def vm_exit(
        self,
        guest_ip: int,
        target: int,
        *,
        reason: int = 0,
        qualification: int = 0,
        vector: int | None = None,
        aborts: bool = False,
        **changes: Any,
    ) -> None:
        """VM exit from the guest at `guest_ip` to the host at `target`; see `TraceUnit.vm_exit`.

        The host's state is that at VM entry, with RFLAGS.IF=0, and `changes`.
        """
        state = self.unit.state
        host = replace(state.host or state.arch, **{"interrupt_flag": False, **changes})
        self.unit.vm_exit(
            guest_ip,
            target,
            host,
            reason=reason,
            qualification=qualification,
            vector=vector,
            aborts=aborts,
        )

    # System management mode

    def smi(self, ip: int, smbase: int = 0x3_0000) -> None:
        """SMI before the instruction at `ip`; see `TraceUnit.smi`."""
        self.unit.smi(ip, smbase)

    def rsm(self, target: int | None = None, **changes: Any) -> None:
        """RSM; `changes` are what the handler changed in the saved state."""
        smram = self.unit.state.smram
        arch = replace(smram.arch, **changes) if smram is not None and changes else None
        self.unit.rsm(target, arch)

    def smm_vm_exit(
        self,
        ip: int,
        target: int,
        *,
        cause: Literal["smi", "vmcall"] = "smi",
        controls: VmxControls = NO_CONTROLS,
        reason: int = 0,
        qualification: int = 0,
        **changes: Any,
    ) -> None:
        """SMM VM exit to the STM at `target`, at CPL 0 in 64-bit code; see `TraceUnit.smm_vm_exit`.

        `controls` are those of the SMM-transfer VMCS.
        """
        monitor = Arch(cpl=0, cr3=self.unit.state.arch.cr3, interrupt_flag=False)
        self.unit.smm_vm_exit(
            ip,
            target,
            replace(monitor, **changes),
            controls,
            cause=cause,
            reason=reason,
            qualification=qualification,
        )

    def smm_vm_entry(
        self, ip: int, target: int, *, controls: VmxControls = NO_CONTROLS, **changes: Any
    ) -> None:
        """VM entry at `ip` that returns from SMM; `changes` are what the STM changed in the state
        that it interrupted.
        """
        executive = self.unit.state.executive
        arch = replace(executive.arch, **changes) if executive is not None and changes else None
        self.unit.smm_vm_entry(ip, target, controls, arch)

    # Enclaves

    def eenter(self, ip: int, target: int, *, debug: bool = False, opt_in: bool = False) -> None:
        """ENCLU[EENTER]; see `TraceUnit.enclave_enter`."""
        self.unit.enclave_enter(ip, target, debug=debug, opt_in=opt_in)

    def eresume(self, ip: int, target: int | None = None) -> None:
        """ENCLU[ERESUME]; see `TraceUnit.enclave_resume`."""
        self.unit.enclave_resume(ip, target)

    def eexit(self, ip: int, target: int) -> None:
        """ENCLU[EEXIT]."""
        self.unit.enclave_exit(ip, target)

    def aex(
        self,
        ip: int,
        aep: int,
        handler: int,
        *,
        vector: int = 0,
        cr2: int | None = None,
        **changes: Any,
    ) -> None:
        """Asynchronous enclave exit or enclave exiting event, handled at CPL 0; see
        `TraceUnit.enclave_event`.
        """
        arch = self.unit.state.arch
        kernel = {"cpl": 0, "cs_l": True, "cs_d": False} if arch.lma else {"cpl": 0}
        arch = replace(arch, **{**kernel, **changes})
        self.unit.enclave_event(ip, aep, handler, arch, vector=vector, cr2=cr2)

    # Measured launch

    def getsec(self, ip: int, next_ip: int) -> None:
        """GETSEC[SENTER] or GETSEC[ENTERACCS]."""
        self.unit.getsec(ip, next_ip)

    def senter_sleep(self, ip: int) -> None:
        """The SENTER sleep state of a responding processor."""
        self.unit.senter_sleep(ip)

    def acm_begin(self, ip: int) -> None:
        """An authenticated code module is set up."""
        self.unit.acm_begin(ip)

    def acm_end(self, target: int) -> None:
        """It has ended."""
        self.unit.acm_end(target)

    # XSAVE state component 8

    def xsaves(
        self, ip: int, next_ip: int, *, rfbm: int = 1 << 8, completes: bool = True
    ) -> bytes | None:
        """XSAVES; see `TraceUnit.xsaves`."""
        return self.unit.xsaves(ip, next_ip, rfbm=rfbm, completes=completes)

    def xrstors(
        self,
        ip: int,
        next_ip: int,
        component: bytes | None,
        *,
        rfbm: int = 1 << 8,
        completes: bool = True,
    ) -> None:
        """XRSTORS; see `TraceUnit.xrstors`."""
        self.unit.xrstors(ip, next_ip, component, rfbm=rfbm, completes=completes)

    # Last branch records

    def last_branch(self, from_ip: int, to_ip: int, info: int = 0) -> None:
        """A branch that LBR may record."""
        self.unit.last_branch(from_ip, to_ip, info)

    def last_exception(self, from_ip: int, to_ip: int) -> None:
        """The branch before an exception, for LER."""
        self.unit.last_exception(from_ip, to_ip)
