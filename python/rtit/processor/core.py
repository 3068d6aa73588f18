"""Base of the processor model: the value that every event works on, the checks of events, and the
fields of the architectural state that an event can change.

An instruction must be at the current IP, or after it in straight code; its target must be an
existing address; its CPL must permit it. All checks raise IllegalEvent before anything changes. A
processor that is not `checked` refuses only values that are no addresses.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TypedDict

from rtit.registers import FULL, Profile, is_canonical
from rtit.unit.arch_state import ArchState
from rtit.unit.enables import linear_address
from rtit.unit.illegal_events import require_addresses, require_legal
from rtit.unit.memory import Memory
from rtit.unit.parameters.table import Parameters
from rtit.unit.snapshots import Snapshot
from rtit.unit.time_model import TimeModel
from rtit.unit.trace_unit import TraceUnit


class Cpu:
    """The first argument of every function that is an event. Arguments: see `Processor`."""

    __slots__ = ("checked", "unit")

    def __init__(
        self,
        *,
        profile: Profile = FULL,
        memory: Memory | None = None,
        time: TimeModel | None = None,
        parameters: Parameters | None = None,
        arch: ArchState | None = None,
        fabric: Callable[[bytes], None] | None = None,
        checked: bool = True,
    ) -> None:
        self.checked = checked
        clock = TimeModel.from_profile(profile) if time is None else time
        self.unit = TraceUnit(
            _with_clock_leaf(profile, clock),
            Memory() if memory is None else memory,
            clock,
            parameters or Parameters(),
            fabric,
        )
        self.unit.state.arch = arch or ArchState.user64()

    @property
    def arch(self) -> ArchState:
        """The architectural state as far as tracing sees it.

        It can be set while TraceEn is 0, to start elsewhere. Raises IllegalEvent while TraceEn is
        1, because then events change it. `restore` a `snapshot` to return to an earlier state.
        """
        return self.unit.state.arch

    @arch.setter
    def arch(self, arch: ArchState) -> None:
        tracing = self.unit.registers.trace_en
        require_legal(not tracing, "the state is set while TraceEn is 1: then events change it")
        self.unit.state.arch = arch

    @property
    def ip(self) -> int:
        """Address of the next instruction, as packets would give it."""
        return self.unit.state.ip

    def snapshot(self) -> Snapshot:
        """Return the state of processor and trace unit, between two events, without memory."""
        return self.unit.snapshot()

    def restore(self, snapshot: Snapshot) -> None:
        """Replace the state by that of a snapshot, also while TraceEn is 1."""
        self.unit.restore(snapshot)


def _with_clock_leaf(profile: Profile, time: TimeModel) -> Profile:
    """Return `profile` with the clock of `time` in CPUID.15H, if it has that leaf."""
    ratio = time.tsc_numerator, time.tsc_denominator
    if (profile.tsc_numerator, profile.tsc_denominator) in (ratio, (0, 0)):
        return profile
    numerator, denominator = ratio
    return replace(
        profile, tsc_numerator=numerator, tsc_denominator=denominator, crystal_hz=time.crystal_hz
    )


def require_reachable_ip(cpu: Cpu, ip: int) -> None:
    """Require that straight code leads from the current IP to `ip`.

    While ContextEn is 0 the current IP is unknown, because code outside the context needs no event.
    """
    require_addresses(ip)
    state = cpu.unit.state
    if cpu.checked and state.trigger_en and state.context_en:
        here = linear_address(cpu.unit, ip)
        follows = _follows_in_straight_code(state.arch, state.ip, here)
        require_legal(follows, f"{here:#x} is not the next instruction, which is at {state.ip:#x}")


def require_valid_target(cpu: Cpu, target: int, arch: ArchState | None = None) -> None:
    """Require that `target` is an address in the state `arch`, that after the branch or event."""
    require_addresses(target)
    if not cpu.checked:
        return
    if (cpu.arch if arch is None else arch).bits == 64:
        width = cpu.unit.profile.linear_width
        require_legal(is_canonical(target, width), f"the target {target:#x} is not canonical")
    else:
        require_legal(not target >> 32, f"the target {target:#x} is beyond 32 bits")


def require_instruction_at(cpu: Cpu, ip: int, next_ip: int | None = None) -> None:
    """Require that an instruction at `ip`, followed by one at `next_ip`, is possible."""
    require_reachable_ip(cpu, ip)
    if next_ip is not None:
        require_addresses(next_ip)
        follows = next_ip != ip and _follows_in_straight_code(cpu.arch, ip, next_ip)
        require_legal(
            follows or not cpu.checked, f"the instruction after {ip:#x} is at {next_ip:#x}"
        )


def require_cpl(cpu: Cpu, cpl: int, what: str) -> None:
    """Require the CPL at which `what` may be executed."""
    privilege = cpu.arch.privilege
    require_legal(privilege == cpl or not cpu.checked, f"{what} is executed at CPL {privilege}")


def _follows_in_straight_code(arch: ArchState, before: int, after: int) -> bool:
    """Return whether straight code leads from one IP to another; addresses wrap around."""
    width = 64 if arch.bits == 64 else 32
    return not (after - before) >> (width - 1) & 1


class ArchStateChanges(TypedDict, total=False):
    """Fields of `ArchState` that a far transfer, an event or a VMX transition changes.

    A field that is not given has the value that the event implies, or stays as it was. State that
    only other events change is not an argument: transactions, enclaves, VMX operation and SMM.
    """

    cpl: int
    cs_l: bool
    cs_d: bool
    lma: bool
    real_mode: bool
    v86: bool
    cs_base: int
    cr3: int
    pae_paging: bool
    opted_out_enclave: bool
    interrupt_flag: bool


class ArchModeChanges(TypedDict, total=False):
    """The fields that an instruction other than a branch or MOV CR3 can change."""

    cs_l: bool
    cs_d: bool
    lma: bool
    real_mode: bool
    pae_paging: bool
    interrupt_flag: bool


_CHANGEABLE = frozenset(ArchStateChanges.__annotations__)


def apply_arch_changes(arch: ArchState, changes: ArchStateChanges) -> ArchState:
    """Return `arch` with the changes.

    Raises TypeError for a field that is not in `ArchStateChanges`, UsageError for an impossible
    state.
    """
    if wrong := changes.keys() - _CHANGEABLE:
        raise TypeError(f"an event cannot change {min(wrong)!r} of the state")
    return replace(arch, **changes) if changes else arch


def kernel_entry_changes(arch: ArchState) -> ArchStateChanges:
    """Return what SYSCALL, SYSENTER and delivery through an interrupt gate change.

    CPL 0, 64-bit code in long mode, RFLAGS.IF=0.
    """
    if arch.real_mode:
        return {"interrupt_flag": False}
    if arch.lma:
        kernel = ArchStateChanges(cpl=0, v86=False, cs_l=True, cs_d=False)
    else:
        kernel = ArchStateChanges(cpl=0, v86=False)
    return {**kernel, "interrupt_flag": False}
