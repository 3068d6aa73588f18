"""How a processor starts and ends: RESET, INIT, SIPI, shutdown (sections 33.2.4 and 33.3.4)."""

from __future__ import annotations

from rtit.processor.core import Cpu
from rtit.processor.sanity import require_here
from rtit.unit.arch_state import ArchState
from rtit.unit.enables import switch_context
from rtit.unit.events.enclave import leave_enclave
from rtit.unit.events.event_trace import CfeType, EventReport
from rtit.unit.events.power import C1, require_awake
from rtit.unit.illegal_events import require, require_no_transaction


def reset(cpu: Cpu, *, cold: bool = True) -> None:
    """RESET: the processor starts at F000:FFF0 (section 33.3.4)."""
    cpu.unit.reset(cold=cold)
    switch_context(cpu.unit, 0xFFF0, ArchState.after_reset())


def init(cpu: Cpu, ip: int, *, bsp: bool = True) -> None:
    """INIT before the instruction at `ip`; PT goes on. A processor that is not the boot
    processor (`bsp` False) waits for SIPI. IllegalEvent in VMX operation, where INIT is blocked
    or leads to a VM exit.
    """
    vmx = cpu.arch.vmx
    require(vmx == "off", f"INIT does not reset a processor in VMX {vmx} operation")
    require_awake(cpu.unit, "INIT comes to a processor")
    require_here(cpu, ip)
    if bsp:
        require_no_transaction(cpu.arch, "INIT")
        leave_enclave(cpu.unit, ip)
        cpu.unit.transfer(
            0xFFF0, ArchState.after_reset(), event_ip=ip, report=EventReport(CfeType.INIT)
        )
    else:
        cpu.unit.init_wait(ip)


def sipi(cpu: Cpu, vector: int) -> None:
    """A start-up IPI; see `TraceUnit.sipi`."""
    cpu.unit.sipi(vector)


def shutdown(cpu: Cpu, ip: int) -> None:
    """Shutdown, as after a triple fault, with `ip` not completed: C1. IllegalEvent if it sleeps."""
    require_awake(cpu.unit, "shutdown comes to a processor")
    require_here(cpu, ip)
    cpu.unit.shutdown(ip)
    cpu.unit.sleep(ip, C1)
