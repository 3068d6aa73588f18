"""Random programs on a random processor, traced by the unit, decode to the executed path."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.properties import examples

pytest.importorskip("rtit._core", reason="the native module is not built")

from flow.loop.checks import STEPS, check_damage, check_run
from flow.loop.program import AREAS
from flow.loop.run import Run

SEEDS = st.integers(0, (1 << 64) - 1)


@pytest.mark.spec("DEC-002", "DEC-003", "DEC-004", "DEC-014")
@examples(40)
@given(SEEDS, st.sampled_from(STEPS))
def test_decoded_path_equals_executed_path(seed: int, steps: int) -> None:
    check_run(Run(seed, steps))


@examples(25)
@given(SEEDS, SEEDS)
def test_damaged_stream_decodes_to_no_false_path(seed: int, where: int) -> None:
    run, random = Run(seed, 300), Random(where)
    for _ in range(4):
        check_damage(run, random)


def test_random_runs_execute_all_kinds_of_code() -> None:
    """In every area all code but traps runs; calls nest deeper than 64."""
    ran: set[tuple[int, str]] = set()
    could: set[tuple[int, str]] = set()
    deepest = 0
    for seed in range(80):
        run = Run(seed, 600)
        kinds = {each.ip: (run.area(each.ip), each.kind) for each in run.program.values()}
        could |= set(kinds.values())
        ran |= {kinds[ip] for ip in run.truth}
        deepest = max(deepest, run.deepest)
    assert could - ran == {(area, "trap") for area in AREAS}
    assert deepest > 64
