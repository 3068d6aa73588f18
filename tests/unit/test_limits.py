"""Arguments of events must fit their fields: addresses of 64 bits, vectors of 8, C-states of 4."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from rtit.errors import IllegalEvent
from rtit.processor import ArchState, Processor
from rtit.unit.arch_state import VmxControls
from rtit.unit.parameters.table import Parameters
from unit.every_event import CASES, HERE, USER, Case, run_event, start_traced

ADDRESSES = {
    *("ip", "next_ip", "target", "event_ip", "report_ip", "guest_ip", "host_ip", "handler", "aep"),
    *("from_ip", "to_ip"),
}
BITS = {
    **dict.fromkeys(ADDRESSES, 64),
    "vector": 8,
    "smbase": 32,
    "last": 4,
    "deepest": 4,
    "state": 4,
    "sub_state": 4,
    "payload": 64,
    "info": 64,
}
LITERAL = Parameters(uintr_literal="table")

NEAR = {"taken", "not taken", "jump", "call", "indirect jump", "indirect call", "ret"}
"""Events whose address is in no packet."""

FIELDS = [
    (name, field)
    for name, each in CASES.items()
    for field in each.arguments
    if field in BITS and not (name in NEAR and field == "ip") and name != "uiret"
]


@pytest.mark.parametrize(("name", "field"), FIELDS)
@pytest.mark.parametrize("ctl", [1, 0], ids=["traced", "untraced"])
def test_values_beyond_the_field_are_rejected(name: str, field: str, ctl: int) -> None:
    each, bits = CASES[name], BITS[field]
    for wrong in (1 << bits, -1):
        unit = start_traced(each, parameters=LITERAL, BranchEn=ctl)
        before = unit.snapshot()
        with pytest.raises(IllegalEvent):
            run_event(unit, each, **{field: wrong})
        assert unit.snapshot() == before


@pytest.mark.parametrize(("name", "field"), FIELDS)
def test_values_within_the_field_are_accepted(name: str, field: str) -> None:
    each = CASES[name]
    run_event(start_traced(each), each, **{field: (1 << BITS[field]) - 1})


WRONG: dict[str, tuple[Case, dict[str, Any]]] = {
    "MTCs": (CASES["drop mtc"], {"count": -1}),
    "PADs": (CASES["pad"], {"count": -1}),
    "ticks of a sleep": (CASES["wake"], {"ticks": -1}),
    "ticks of a stop": (CASES["stop clocks"], {"ticks": -1}),
    "a hint of MWAIT": (CASES["sleep"], {"mwait": (256, 0)}),
    "extensions of MWAIT": (CASES["sleep"], {"mwait": (0, 4)}),
    "a VMCS": (CASES["vmptrld"], {"pointer": 1 << 52}),
    "a VMCS that is cleared": (CASES["vmclear"], {"pointer": 1 << 52}),
    "a VMCS before all": (CASES["vmclear"], {"pointer": -4096}),
    "an MSR": (CASES["wrmsr"], {"value": 1 << 64}),
    "EVDs": (CASES["vm exit"], {"qualification": 1 << 64}),
    "a PEBS block": (CASES["pebs"], {"groups": {7: []}}),
}


@pytest.mark.parametrize("what", WRONG)
def test_missing_components_are_rejected(what: str) -> None:
    each, changed = WRONG[what]
    unit = start_traced(each)
    before = unit.snapshot()
    with pytest.raises(IllegalEvent):
        run_event(unit, each, **changed)
    assert unit.snapshot() == before


@pytest.mark.spec("TSX-008")
def test_asynchronous_exit_in_a_transaction_is_rejected() -> None:
    each = replace(CASES["aex"], arch=replace(USER, in_enclave=True, in_tx=True))
    unit = start_traced(each)
    before = unit.snapshot()
    with pytest.raises(IllegalEvent, match="aborts first"):
        run_event(unit, each)
    assert unit.snapshot() == before


@pytest.mark.spec("MSRGEN-007")
def test_stm_vm_entry_loads_no_value_that_wrmsr_rejects() -> None:
    each = CASES["smm vm entry"]
    unit = start_traced(each)
    before = unit.snapshot()
    with pytest.raises(IllegalEvent, match="would fault"):
        run_event(unit, each, controls=VmxControls(entry_loads=((0x570, 1 << 57),)))
    assert unit.snapshot() == before


TAKEN: dict[str, tuple[Case, dict[str, Any]]] = {
    "no MTC": (CASES["drop mtc"], {"count": 0}),
    "no PAD": (CASES["pad"], {"count": 0}),
    "a hint of MWAIT": (CASES["sleep"], {"mwait": (255, 3)}),
    "C0": (CASES["sleep"], {"state": 15, "sub_state": 2}),
}


@pytest.mark.parametrize("what", TAKEN)
def test_largest_value_is_accepted(what: str) -> None:
    each, changed = TAKEN[what]
    run_event(start_traced(each), each, **changed)


@pytest.mark.parametrize(("name", "where"), [("early", "next_ip"), ("late", "host_ip")])
def test_failed_vm_entry_continues_at_the_given_address(name: str, where: str) -> None:
    each = CASES[name]
    for ip in (0, 0x5000):
        unit = start_traced(each)
        assert run_event(unit, each, **{where: ip}) == name
        assert unit.state.ip == ip


NEXT_IPS: dict[str, tuple[ArchState, Callable[[Processor], Any]]] = {
    "mwait": (USER, lambda cpu: cpu.mwait(HERE, 1 << 64, 0x20)),
    "umwait": (USER, lambda cpu: cpu.umwait(HERE, 1 << 64, 0)),
    "halt": (USER, lambda cpu: cpu.halt(HERE, 1 << 64)),
    "begin": (replace(USER, in_tx=True), lambda cpu: cpu.begin_transaction(HERE, 1 << 64)),
    "end": (
        replace(USER, in_tx=True),
        lambda cpu: cpu.end_transaction(HERE, 1 << 64, outermost=False),
    ),
}


@pytest.mark.parametrize("name", NEXT_IPS)
def test_next_address_of_a_processor_wraps(name: str) -> None:
    arch, event = NEXT_IPS[name]
    cpu = Processor(arch=arch)
    before = cpu.snapshot()
    with pytest.raises(IllegalEvent):
        event(cpu)
    assert cpu.snapshot() == before


def test_leaving_an_stm_outside_root_operation_is_rejected() -> None:
    each = CASES["smm vm entry"]
    unit = start_traced(each)
    unit.state.arch = USER
    with pytest.raises(IllegalEvent, match="outside VMX root operation"):
        run_event(unit, each)
