"""Every pair of situations in every order: invariants after each event, and the decoded path."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import Phase, given
from hypothesis import strategies as st

from rtit.registers import FULL, PROFILES, Msr, Profile
from support.properties import examples
from unit.pairs.machine import Machine, Shape
from unit.pairs.situations import ANYWHERE, AWAY, SITUATIONS
from unit.world.plans import plans
from unit.world.program import Plan

PROCESSORS = [
    name
    for name, each in PROFILES.items()
    if each.vmx_tracing and each.ip_filtering and each.psb_cyc and each.cr3_filtering
]
"""Situations that can overlap with all others."""

ORDERS = ("AaBb", "ABab", "ABba")
"""Orders: a capital letter begins a situation, a small letter ends it."""


def shape(*names: str) -> Shape:
    regions = [name for name in names if name.startswith("topa")]
    return Shape(
        filters="filter_edge" in names,
        stops="trace_stop" in names,
        cr3="cr3_filter" in names,
        stm="stm" in names,
        regions=regions,
    )


def overlapping(first: str, second: str, order: str) -> str:
    """Yield the order, as far as the two situations can overlap."""
    if first in AWAY and second not in ANYWHERE:
        return "AaBb"
    return "ABba" if second in AWAY and first not in ANYWHERE else order


def run(
    plan: Plan, first: str, second: str, order: str, steps: int, profile: Profile = FULL
) -> None:
    plan = replace(plan, ctl=dict(plan.ctl))
    machine = Machine(plan, shape(first, second), profile)
    open_ = {"A": SITUATIONS[first](machine), "B": SITUATIONS[second](machine)}
    with machine.watched():
        machine.enable()
        machine.check()
        machine.walk(steps)
        for situation in overlapping(first, second, order):
            next(open_[situation.upper()], None)
            machine.walk(machine.random.choice((0, 0, 1, steps)))
        machine.end_overflow()
        if machine.now.processor.unit.registers.trace_en:
            machine.pass_entries()
            machine.cpu.set_msr(Msr.CTL, 0, ip=machine.ip)
    machine.finish()


@pytest.mark.parametrize("first", SITUATIONS)
# The same draws each time; change these numbers to run more by hand.
@examples(8, phases=(Phase.generate,), derandomize=True)
@given(
    st.booleans().flatmap(lambda overflows: plans(overflows=overflows)),
    st.sampled_from(ORDERS),
    st.integers(0, 6),
    st.sampled_from(PROCESSORS),
)
def test_every_pair_of_situations_matches_the_reference(
    first: str, plan: Plan, order: str, steps: int, profile: str
) -> None:
    for second in SITUATIONS:
        run(plan, first, second, order, steps, PROFILES[profile])
