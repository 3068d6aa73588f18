"""A snapshot has all state that affects later packets."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest

from rtit.processor import ArchState, Processor
from rtit.registers import CTL, Msr
from rtit.unit.parameters.table import Parameters
from rtit.unit.state import (
    DecoderKnowledge,
    LastBranches,
    OverflowedState,
    StateSavedByAcm,
    StateSavedByAex,
    StateSavedBySmi,
    StateSavedBySmmVmExit,
    UnitState,
)
from rtit.unit.trace_unit import TraceUnit

FIXED = {
    "errata",
    "ip_encodings",
    "on_branch_trace",
    "on_pmi",
    "parameters",
    "profile",
    "pads_or_holds_back",
}
FIXED |= {"tnt_full"}
"""Arguments of the constructor."""

DERIVED = {
    "has_bounded_buffer",
    "configuration",
    "cyc_limit",
    "defers_tips",
    "packets",
    "emit",
    "pending_knowledge",
}
"""State that `restore` recomputes; no packet is pending between two events."""

IN_SNAPSHOT = {"output", "registers", "state", "time"}


def test_unit_consists_of_known_parts() -> None:
    """A new attribute must be in the snapshot, or in one of these lists."""
    slots: set[str] = set()
    for base in TraceUnit.__mro__:
        slots |= set(getattr(base, "__slots__", ()))
    assert slots == FIXED | DERIVED | IN_SNAPSHOT


ARCH = ArchState(cpl=0)
OTHERS: dict[str, Any] = {
    "arch": ARCH,
    "host": ARCH,
    "smram": StateSavedBySmi(ARCH, 5, True, None),
    "executive": StateSavedBySmmVmExit(ARCH, None),
    "acm": StateSavedByAcm(True),
    "last_branches": LastBranches(debugctl=1),
    "overflow": OverflowedState(True),
    "decoder_knowledge": DecoderKnowledge(mode=2),
    "bytes_until_pmi": 4,
    "held_back": b"abc",
    "deferred_tips": b"abc",
    "ssa": (StateSavedByAex(5, True),),
}


@pytest.mark.parametrize("name", [field.name for field in fields(UnitState)])
def test_every_part_of_the_state_is_saved_and_compared(name: str) -> None:
    unit = Processor().unit
    plain = unit.snapshot()
    now = getattr(unit.state, name)
    if name == "ret_stack":
        unit.state.ret_stack.append(7)
    elif name in OTHERS:
        setattr(unit.state, name, OTHERS[name])
    else:
        setattr(unit.state, name, not now if isinstance(now, bool) else now + 1)
    changed = unit.snapshot()
    assert changed != plain
    assert set(changed.state.diff(plain.state)) == {name}
    other = Processor().unit
    other.restore(changed)
    assert other.state.diff(changed.state) == {}
    unit.restore(plain)
    assert unit.snapshot() == plain


def test_snapshot_does_not_change_with_the_unit() -> None:
    """Later events do not change it."""
    cpu = Processor(parameters=Parameters(held_bytes=40, topa_cache="table"))
    cpu.set_msr(Msr.OUTPUT_MASK_PTRS, 0xFFF)
    cpu.set_msr(Msr.CTL, CTL.encode(TraceEn=1, User=1, BranchEn=1), next_ip=0x1000)
    cpu.call(0x1000, 0x1005, 0x2000)
    first, again = cpu.unit.snapshot(), cpu.unit.snapshot()
    cpu.call(0x2000, 0x2005, 0x3000)
    cpu.at(100)
    cpu.indirect_jump(0x3000, 0x4000)
    cpu.set_msr(Msr.CTL, 0)
    assert first == again
    assert cpu.unit.snapshot() != first
