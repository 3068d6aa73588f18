"""The fields of the architectural state that an event can change, as keyword arguments."""

from __future__ import annotations

from dataclasses import replace
from typing import TypedDict

from rtit.unit.arch_state import ArchState


class StateChanges(TypedDict, total=False):
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


class ModeChanges(TypedDict, total=False):
    """The fields that an instruction other than a branch or MOV CR3 can change."""

    cs_l: bool
    cs_d: bool
    lma: bool
    real_mode: bool
    pae_paging: bool
    interrupt_flag: bool


_CHANGEABLE = frozenset(StateChanges.__annotations__)


def apply_changes(arch: ArchState, changes: StateChanges) -> ArchState:
    """Return `arch` with the changes.

    Raises TypeError for a field that is not in `StateChanges`, UsageError for an impossible state.
    """
    if wrong := changes.keys() - _CHANGEABLE:
        raise TypeError(f"an event cannot change {min(wrong)!r} of the state")
    return replace(arch, **changes) if changes else arch


def kernel_entry_changes(arch: ArchState) -> StateChanges:
    """Return what SYSCALL, SYSENTER and delivery through an interrupt gate change.

    CPL 0, 64-bit code in long mode, RFLAGS.IF=0.
    """
    if arch.real_mode:
        return {"interrupt_flag": False}
    if arch.lma:
        kernel = StateChanges(cpl=0, v86=False, cs_l=True, cs_d=False)
    else:
        kernel = StateChanges(cpl=0, v86=False)
    return {**kernel, "interrupt_flag": False}
