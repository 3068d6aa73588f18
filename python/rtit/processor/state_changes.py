"""What an event can change of the architectural state, as its keyword arguments."""

from __future__ import annotations

from dataclasses import replace
from typing import TypedDict

from rtit.unit.arch_state import ArchState


class StateChanges(TypedDict, total=False):
    """Fields of `ArchState` that a far transfer, an event or a VMX transition changes; what is not given
    is what the event itself says, and else as it was.

    What other events lead to is no argument: transactions, enclaves, VMX operation and SMM.
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


class ModeChanges(TypedDict, total=False):
    """Those that an instruction other than a branch or MOV CR3 can change."""

    cs_l: bool
    cs_d: bool
    lma: bool
    real_mode: bool
    pae_paging: bool
    interrupt_flag: bool


_CHANGEABLE = frozenset(StateChanges.__annotations__)


def apply_changes(arch: ArchState, changes: StateChanges) -> ArchState:
    """`arch` with the changes. TypeError for one that is none of `Changes`, UsageError for what
    cannot be.
    """
    if wrong := changes.keys() - _CHANGEABLE:
        raise TypeError(f"an event cannot change {min(wrong)!r} of the state")
    return replace(arch, **changes) if changes else arch


def kernel_entry_changes(arch: ArchState) -> StateChanges:
    """What SYSCALL, SYSENTER and delivery through an interrupt gate do to the state before: CPL 0,
    in long mode 64-bit code, RFLAGS.IF=0.
    """
    if arch.real_mode:
        return {"interrupt_flag": False}
    if arch.lma:
        kernel = StateChanges(cpl=0, v86=False, cs_l=True, cs_d=False)
    else:
        kernel = StateChanges(cpl=0, v86=False)
    return {**kernel, "interrupt_flag": False}
