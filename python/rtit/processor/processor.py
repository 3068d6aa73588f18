"""A logical processor: its architectural state, and the trace unit that watches it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from rtit.errors import UsageError
from rtit.processor.instrumentation import Instrumentation
from rtit.processor.system import SystemEvents
from rtit.registers import FULL, Leaf, Profile
from rtit.unit import Arch, Memory, Parameters, Stamps, TimeModel, TraceUnit
from rtit.unit.events import power
from rtit.unit.events.event_trace import Cfe, Report, page_fault
from rtit.unit.events.transfers import AT_ONCE
from rtit.unit.refusal import require
from rtit.unit.state.arch import CODE_BITS, MODE_FIELDS


class Processor(Instrumentation, SystemEvents):
    """One logical processor and its own trace unit: PT state is per logical processor (33.2.8.1).

    `memory` receives the trace; `fabric` does when FabricEn is set. Feed events in program order:
    `at` first where time has passed, then the event. IPs are effective addresses; `ip` is the
    instruction itself. Keyword arguments named `changes` are fields of `Arch` that the event
    changes.
    """

    __slots__ = ("unit",)

    def __init__(
        self,
        *,
        profile: Profile = FULL,
        memory: Memory | None = None,
        time: TimeModel | None = None,
        parameters: Parameters | None = None,
        arch: Arch | None = None,
        fabric: Callable[[bytes], None] | None = None,
    ) -> None:
        self.unit = TraceUnit(
            profile,
            Memory() if memory is None else memory,
            time or TimeModel(),
            parameters or Parameters(),
            fabric,
        )
        self.unit.state.arch = arch or Arch.user64()

    @property
    def arch(self) -> Arch:
        """The architectural state as far as tracing sees it."""
        return self.unit.state.arch

    @property
    def ip(self) -> int:
        """Address of the next instruction, as packets would give it."""
        return self.unit.state.ip

    # Registers and time

    def rdmsr(self, msr: int) -> int:
        """RDMSR. Raises GeneralProtection."""
        return self.unit.rdmsr(msr)

    def wrmsr(
        self, msr: int, value: int, *, ip: int | None = None, next_ip: int | None = None
    ) -> None:
        """WRMSR; see `TraceUnit.wrmsr`. Raises GeneralProtection, and then nothing has changed."""
        self.unit.wrmsr(msr, value, ip=ip, next_ip=next_ip)

    def cpuid(self, leaf: int, subleaf: int = 0) -> Leaf:
        """CPUID, as far as PT is concerned."""
        return self.unit.profile.cpuid(leaf, subleaf)

    def at(self, clock: int) -> None:
        """`clock` instructions have retired by now. IllegalEvent if the clock goes back."""
        self.unit.at(clock)

    def reset(self, *, cold: bool = True) -> None:
        """RESET: the processor starts at F000:FFF0 (section 33.3.4)."""
        self.unit.reset(cold=cold)
        self.unit.transfer(0xFFF0, Arch.reset())

    def retire(self, next_ip: int) -> None:
        """Instructions that change nothing have brought the processor to `next_ip`."""
        self.unit.retire(next_ip)

    # Near branches

    def conditional(self, ip: int, next_ip: int, target: int, taken: bool) -> None:
        """Jcc, J*CXZ or LOOP*: goes on at `target` if `taken`, else at `next_ip`."""
        self.unit.conditional(ip, next_ip, target, taken)

    def jump(self, ip: int, target: int) -> None:
        """Direct near JMP."""
        self.unit.jump(ip, target)

    def call(self, ip: int, next_ip: int, target: int) -> None:
        """Direct near CALL."""
        self.unit.call(ip, next_ip, target)

    def indirect_jump(self, ip: int, target: int) -> None:
        """Indirect near JMP."""
        self.unit.indirect_jump(ip, target)

    def indirect_call(self, ip: int, next_ip: int, target: int) -> None:
        """Indirect near CALL."""
        self.unit.indirect_call(ip, next_ip, target)

    def ret(self, ip: int, target: int, operand_size: int | None = None) -> None:
        """Near RET; `operand_size` 16, 32 or 64, by default the width of the code. IllegalEvent for
        another.
        """
        if operand_size is not None:
            sizes = f"the operand of RET has 16, 32 or 64 bits, not {operand_size}"
            require(operand_size in CODE_BITS, sizes)
        self.unit.ret(ip, target, operand_size)

    # Far transfers and events

    def far(self, ip: int, target: int, *, stamps: Stamps = AT_ONCE, **changes: Any) -> None:
        """Far JMP, CALL or RET, IRET, SYSRET and the like: a branch of its own that an instruction
        makes.
        """
        self._transfer(target, None, stamps, changes)

    def syscall(self, ip: int, target: int, **changes: Any) -> None:
        """SYSCALL or SYSENTER to `target` at CPL 0."""
        self._transfer(target, None, AT_ONCE, self._kernel() | changes)

    def resume(self, target: int, *, bits: int = 64, **changes: Any) -> None:
        """SYSRET, SYSEXIT or IRET from CPL 0 to `target` at CPL 3, in code of `bits` bits.

        IllegalEvent for another width than 16, 32 or 64.
        """
        require(bits in CODE_BITS, f"code has 16, 32 or 64 bits, not {bits}")
        cs_l, cs_d = CODE_BITS[bits]
        self._transfer(target, None, AT_ONCE, {"cpl": 3, "cs_l": cs_l, "cs_d": cs_d} | changes)

    def iret(self, ip: int, target: int, *, stamps: Stamps = AT_ONCE, **changes: Any) -> None:
        """IRET at `ip` to `target`; `changes` say all that it restores. IllegalEvent if that were a
        lower CPL.
        """
        was, cpl = self.arch.privilege, replace(self.arch, **changes).privilege
        require(cpl >= was, f"IRET leads from CPL {was} to CPL {cpl}")
        self._transfer(target, None, stamps, changes, Report(Cfe.IRET), ip)

    def interrupt(
        self, ip: int, handler: int, *, vector: int = 0, stamps: Stamps = AT_ONCE, **changes: Any
    ) -> None:
        """An external interrupt or NMI before the instruction at `ip`, handled at CPL 0."""
        report = Report(Cfe.INTR, vector)
        self._transfer(handler, ip, stamps, self._kernel() | changes, report)

    def exception(
        self,
        ip: int,
        handler: int,
        *,
        vector: int = 0,
        cr2: int | None = None,
        stamps: Stamps = AT_ONCE,
        **changes: Any,
    ) -> None:
        """An exception at the instruction at `ip` (a trap: before it), handled at CPL 0.

        `cr2`, the linear address, makes it a page fault.
        """
        report = Report(Cfe.INTR, vector) if cr2 is None else page_fault(cr2)
        self._transfer(handler, ip, stamps, self._kernel() | changes, report)

    def software_interrupt(
        self, ip: int, handler: int, *, vector: int = 0, stamps: Stamps = AT_ONCE, **changes: Any
    ) -> None:
        """INT n, INT3, INT1 or INTO at `ip`, handled at CPL 0."""
        report = Report(Cfe.INTR, vector)
        self._transfer(handler, ip, stamps, self._kernel() | changes, report)

    def change_mode(self, ip: int, next_ip: int, **changes: Any) -> None:
        """STI, CLI, POPF, MOV CR0 or WRMSR at `ip` changes `interrupt_flag`, `lma`, `cs_l`, `cs_d`,
        `real_mode` or `pae_paging`; UsageError for anything else.
        """
        if wrong := changes.keys() - MODE_FIELDS:
            raise UsageError(f"{min(wrong)} does not change without a branch")
        self.unit.change_mode(ip, next_ip, replace(self.arch, **changes))

    def init(self, ip: int, *, bsp: bool = True) -> None:
        """INIT before the instruction at `ip`; PT goes on. A processor that is not the boot
        processor (`bsp` False) waits for SIPI. IllegalEvent in VMX operation, where INIT is blocked
        or leads to a VM exit.
        """
        vmx = self.arch.vmx
        require(vmx == "off", f"INIT does not reset a processor in VMX {vmx} operation")
        power.require_awake(self.unit, "INIT comes to a processor")
        if bsp:
            self.unit.transfer(0xFFF0, Arch.reset(), event_ip=ip, report=Report(Cfe.INIT))
        else:
            self.unit.init_wait(ip)

    def sipi(self, vector: int) -> None:
        """A start-up IPI; see `TraceUnit.sipi`."""
        self.unit.sipi(vector)

    def user_interrupt(self, ip: int, handler: int, vector: int) -> None:
        """A user interrupt is delivered to `handler` before the instruction at `ip`."""
        self.unit.user_interrupt(ip, handler, vector)

    def uiret(self, ip: int, target: int) -> None:
        """UIRET at `ip` to `target`."""
        self.unit.uiret(ip, target)

    def mov_cr3(self, ip: int, next_ip: int, value: int) -> None:
        """MOV to CR3."""
        self.unit.mov_cr3(next_ip, replace(self.arch, cr3=value))

    def _kernel(self) -> dict[str, Any]:
        arch = self.arch
        if arch.real_mode:
            return {}
        if arch.lma:
            return {"cpl": 0, "v86": False, "cs_l": True, "cs_d": False}
        return {"cpl": 0, "v86": False}

    def _transfer(
        self,
        target: int,
        event_ip: int | None,
        stamps: Stamps,
        changes: dict[str, Any],
        report: Report | None = None,
        report_ip: int | None = None,
    ) -> None:
        arch = self.arch
        require(not arch.in_enclave, "code in an enclave is left by EEXIT or an asynchronous exit")
        require(not arch.wait_for_sipi, "a processor that waits for SIPI has another event")
        power.require_awake(self.unit, "an instruction or event comes to a processor")
        if changes:
            arch = replace(arch, **changes)
        self.unit.transfer(
            target, arch, event_ip=event_ip, stamps=stamps, report=report, report_ip=report_ip
        )
