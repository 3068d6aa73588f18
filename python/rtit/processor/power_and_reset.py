"""Sleep, frequency changes, RESET, INIT, SIPI and shutdown (sections 33.2.3, 33.2.4, 33.3.4)."""

from __future__ import annotations

from rtit.processor.core import Cpu, require_cpl, require_instruction_at, require_reachable_ip
from rtit.unit.arch_state import ArchState
from rtit.unit.enables import linear_address, switch_context
from rtit.unit.events.enclave import leave_enclave
from rtit.unit.events.event_trace import CfeType, EventReport
from rtit.unit.events.power import C0, C1, require_awake, require_duration
from rtit.unit.illegal_events import require_legal, require_no_transaction


def mwait(
    cpu: Cpu, ip: int, next_ip: int, hints: int, extensions: int = 0, *, entered: bool = True
) -> None:
    """Execute MWAIT at `ip`, or an I/O read that becomes one; `hints` is EAX, `extensions` ECX.

    `entered` False: it does not sleep, because the monitor is not armed or a virtual interrupt is
    delivered. An MWAIT that faults or exits is only the exception or VM exit.
    """
    require_instruction_at(cpu, ip, next_ip)
    require_awake(cpu.unit, "MWAIT is executed by a processor")
    if entered:
        asked = hints & 0xFF, extensions & 3
        cpu.unit.sleep(ip, hints >> 4 & 15, hints & 15, mwait=asked)
    cpu.unit.state.ip = linear_address(cpu.unit, next_ip)


def umwait(cpu: Cpu, ip: int, next_ip: int, register: int, *, entered: bool = True) -> None:
    """Execute UMWAIT or TPAUSE at `ip`; bit 0 of `register` asks for C0.1, else C0.2."""
    require_instruction_at(cpu, ip, next_ip)
    require_awake(cpu.unit, "UMWAIT or TPAUSE is executed by a processor")
    if entered:
        sub_state = 1 if register & 1 else 2
        cpu.unit.sleep(ip, C0, sub_state, mwait=(0, register & 3))
    cpu.unit.state.ip = linear_address(cpu.unit, next_ip)


def halt(cpu: Cpu, ip: int, next_ip: int) -> None:
    """Execute HLT at `ip`: C1. Raises IllegalEvent above CPL 0."""
    require_cpl(cpu, 0, "HLT")
    require_instruction_at(cpu, ip, next_ip)
    require_awake(cpu.unit, "HLT is executed by a processor")
    cpu.unit.sleep(ip, C1)
    cpu.unit.state.ip = linear_address(cpu.unit, next_ip)


def duty_cycle(cpu: Cpu, ip: int, state: int, *, ticks: int = 0) -> None:
    """Put the core to sleep before `ip`, and wake it: hardware duty cycling."""
    require_duration(ticks)
    cpu.unit.sleep(ip, state, hardware=True)
    cpu.unit.wake(last=state, deepest=state, reason=8, ticks=ticks)


def resolve_deeper(cpu: Cpu, state: int, sub_state: int = 0) -> None:
    """Move the sleeping thread to another C-state. Raises IllegalEvent unless it sleeps."""
    sleeps = cpu.unit.state.asleep or cpu.unit.state.in_unreported_sleep
    require_legal(sleeps, "a C-state resolves to another, but the processor does not sleep")
    cpu.unit.sleep(cpu.unit.state.ip, state, sub_state)


def wake(cpu: Cpu, *, last: int, deepest: int, reason: int = 1, ticks: int = 0) -> None:
    """Return to C0; see `TraceUnit.wake`."""
    cpu.unit.wake(last=last, deepest=deepest, reason=reason, ticks=ticks)


def stop_clocks(cpu: Cpu, ip: int, *, ticks: int = 0, ratio: int | None = None) -> None:
    """Stop execution: TM1, TM2, STPCLK# or a frequency change; see `TraceUnit.stop_clocks`."""
    cpu.unit.stop_clocks(ip, ticks=ticks, ratio=ratio)


def change_frequency(cpu: Cpu, ratio: int) -> None:
    """Change the frequency without stopping the clock."""
    cpu.unit.change_frequency(ratio)


def reset(cpu: Cpu, *, cold: bool = True) -> None:
    """Reset the processor, which starts at F000:FFF0 (section 33.3.4)."""
    cpu.unit.reset(cold=cold)
    switch_context(cpu.unit, 0xFFF0, ArchState.after_reset())


def init(cpu: Cpu, ip: int, *, bsp: bool = True) -> None:
    """Handle INIT before the instruction at `ip`; tracing continues.

    A processor that is not the boot processor (`bsp` False) waits for SIPI. Raises IllegalEvent in
    VMX operation, where INIT is blocked or causes a VM exit.
    """
    vmx = cpu.arch.vmx
    require_legal(vmx == "off", f"INIT does not reset a processor in VMX {vmx} operation")
    require_awake(cpu.unit, "INIT comes to a processor")
    require_reachable_ip(cpu, ip)
    require_no_transaction(cpu.arch, "INIT")
    if bsp:
        leave_enclave(cpu.unit, ip)
        cpu.unit.transfer(
            0xFFF0, ArchState.after_reset(), event_ip=ip, report=EventReport(CfeType.INIT)
        )
    else:
        cpu.unit.init_wait(ip)


def sipi(cpu: Cpu, vector: int) -> None:
    """Handle a start-up IPI; see `TraceUnit.sipi`."""
    cpu.unit.sipi(vector)


def shutdown(cpu: Cpu, ip: int) -> None:
    """Shut down, as after a triple fault; the instruction at `ip` has not completed."""
    require_awake(cpu.unit, "shutdown comes to a processor")
    require_reachable_ip(cpu, ip)
    cpu.unit.shutdown(ip)
    cpu.unit.sleep(ip, C1)
