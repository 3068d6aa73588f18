"""Checks of instructions and events: their IP, their target and their CPL.

An instruction must be at the current IP, or after it in straight code; its target must be an
address that exists; its CPL must permit it. All checks raise IllegalEvent before anything changes.
A processor that is not `checked` refuses only values that are no addresses.
"""

from __future__ import annotations

from rtit.processor.core import Cpu
from rtit.registers import is_canonical
from rtit.unit.arch_state import ArchState
from rtit.unit.enables import linear_address
from rtit.unit.illegal_events import require, require_addresses


def require_reachable_ip(cpu: Cpu, ip: int) -> None:
    """Require that straight code leads from the current IP to `ip`.

    While ContextEn is 0 the current IP is unknown, because code outside the context needs no event.
    """
    require_addresses(ip)
    state = cpu.unit.state
    if cpu.checked and state.trigger_en and state.context_en:
        here = linear_address(cpu.unit, ip)
        follows = _follows_in_straight_code(state.arch, state.ip, here)
        require(follows, f"{here:#x} is not the next instruction, which is at {state.ip:#x}")


def require_valid_target(cpu: Cpu, target: int, arch: ArchState | None = None) -> None:
    """Require that `target` is an address in the state `arch`, that after the branch or event."""
    require_addresses(target)
    if not cpu.checked:
        return
    if (cpu.arch if arch is None else arch).bits == 64:
        width = cpu.unit.profile.linear_width
        require(is_canonical(target, width), f"the target {target:#x} is not canonical")
    else:
        require(not target >> 32, f"the target {target:#x} is beyond 32 bits")


def require_instruction(cpu: Cpu, ip: int, next_ip: int | None = None) -> None:
    """Require that an instruction at `ip`, followed by one at `next_ip`, is possible."""
    require_reachable_ip(cpu, ip)
    if next_ip is not None:
        require_addresses(next_ip)
        follows = next_ip != ip and _follows_in_straight_code(cpu.arch, ip, next_ip)
        require(follows or not cpu.checked, f"the instruction after {ip:#x} is at {next_ip:#x}")


def require_cpl(cpu: Cpu, cpl: int, what: str) -> None:
    """Require the CPL at which `what` may be executed."""
    privilege = cpu.arch.privilege
    require(privilege == cpl or not cpu.checked, f"{what} is executed at CPL {privilege}")


def _follows_in_straight_code(arch: ArchState, before: int, after: int) -> bool:
    """Straight code leads from one IP to the other, beyond the end of the address space, too."""
    width = 64 if arch.bits == 64 else 32
    return not (after - before) >> (width - 1) & 1
