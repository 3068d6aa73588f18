"""Random runs of the trace unit's tests decode to the paths that their readers find.

Filters, TraceStop, CR3, guests, enclaves, transactions, SMM, PEBS, events, XSAVES and overflows
happen there at random (`unit.execution`, `unit.world`).
"""

from __future__ import annotations

from array import array
from typing import Any

import pytest
from hypothesis import example, given

from rtit.unit.parameters.table import Parameters
from scenario.encoding import PREFIX, encode
from support.properties import examples
from unit.execution import program as execution
from unit.execution.run import trace_program
from unit.world import program as world
from unit.world.plans import plans
from unit.world.world import World

core = pytest.importorskip("rtit._core", reason="the native module is not built")

NAMES = {"cr3": "mov_cr3", "xbegin": "begin_transaction"}
PTWRITE = bytes.fromhex("f30faee0")
LOSS = "loss reported by hardware"
CPU = (6, 0x96, 1)
"""A processor without SKD022: a FUP and TIP.PGD at a VM entry are an event."""


def code(program: dict[int, tuple[str, int]], step: int) -> Any:
    """Return a space with the program as instructions of `step` bytes."""
    made = core.Space()
    for ip, (kind, target) in program.items():
        if kind == "ptwrite":
            data = PREFIX * (step - len(PTWRITE)) + PTWRITE
        else:
            data = encode(NAMES.get(kind, kind), ip, step, target or ip, 64, None)
        made.map(0, ip, data)
    return made


def stop_at(first: int, last: int, *, user: int, seed: int) -> execution.Settings:
    """Return settings of a program that runs with a TraceStop range and no time packets."""
    ctl = {"OS": 1, "User": user, "CR3Filter": 0, "BranchEn": 1, "DisRETC": 0, "ADDR0_CFG": 2}
    ctl |= dict.fromkeys(("TSCEn", "MTCEn", "CYCEn", "MTCFreq", "CycThresh"), 0)
    return execution.Settings(ctl, [(2, first, last)], Parameters(tnt_flush=0), seed, 900)


# Their packets do not show whether a MOV CR3 or a branch after it stopped the trace.
STOP_AT_MOV_CR3 = stop_at(0xFFFFFFFF81000068, 0xFFFFFFFF81000068, user=1, seed=700)
STOP_AT_BRANCH = stop_at(0xFFFFFFFF81000000, 0xFFFFFFFF81000010, user=0, seed=61)


def decode_stream(stream: bytes, space: Any, **more: Any) -> tuple[list[int], list[Any]]:
    flow = core.StreamDecoder(stream, space, cpu=CPU, **more)
    ips = array("Q")
    while (part := flow.instructions(1 << 16)) is not None:
        ips.extend(part["ip"])
    return list(ips), flow.ledger()


@pytest.mark.spec("PGD-008", "PGD-009", "PGD-010", "DEC-007", "DEC-008")
@examples(40)
@given(execution.all_settings())
@example(STOP_AT_MOV_CR3)
@example(STOP_AT_BRANCH)
def test_filtered_path_of_a_random_program_is_decoded(chosen: execution.Settings) -> None:
    run, _, stream = trace_program(chosen)
    space = code(run.program, execution.STEP)
    ips, ledger = decode_stream(stream, space, no_retcomp=bool(chosen.ctl["DisRETC"]))
    stops = {row[6] for row in ledger if "the trace stopped at the MOV CR3" in (row[4] or "")}
    problems = {row[3] for row in ledger if row[6] not in stops}
    assert problems <= {None, "incomplete"}
    # The first packets may come before the first PSB.
    may_begin_later = chosen.parameters.psb_on_enable_order == "after_pge"
    assert is_path_with_losses(run.truth, ips, stops, may_begin_later=may_begin_later)


def is_path_with_losses(
    truth: list[int], ips: list[int], stops: set[int], *, may_begin_later: bool
) -> bool:
    """Return whether `ips` is `truth` but for losses.

    A loss follows an address of `stops`. With `may_begin_later`, the beginning may be lost, too.
    """
    # Each is a number of instructions at the beginning of `truth` that are decoded or lost.
    reached = set(range(len(truth) + 1)) if may_begin_later else {0}
    for ip in ips:
        reached = {count + 1 for count in reached if truth[count : count + 1] == [ip]}
        if ip in stops and reached:
            reached = set(range(min(reached), len(truth) + 1))
    return len(truth) in reached


@pytest.mark.spec("DEC-004", "FUP-005", "MTSX-003", "PTW-006")
@examples(40)
@given(plans())
def test_events_of_a_random_program_are_decoded(plan: world.Plan) -> None:
    run = World(plan)
    stream = run.run()
    ips, ledger = decode_stream(
        stream, code(run.program, world.STEP), no_retcomp=bool(plan.ctl["DisRETC"])
    )
    # A FUP at ENCLU ends the path before it.
    truth = [ip for ip in run.truth if run.program[ip][0] not in world.WITH_FUP]
    assert {row[3] for row in ledger} <= {None, "incomplete"}
    assert ips == truth[len(truth) - len(ips) :]


@pytest.mark.spec("OVF-011", "OVF-013")
@examples(40)
@given(plans(overflows=True))
def test_path_around_overflows_of_a_random_program_is_decoded(plan: world.Plan) -> None:
    """A prefix of each piece between two overflows is decoded, and all of the last."""
    run = World(plan)
    stream = run.run()
    ips, ledger = decode_stream(
        stream, code(run.program, world.STEP), no_retcomp=bool(plan.ctl["DisRETC"])
    )
    assert {row[3] for row in ledger} <= {None, "incomplete", LOSS}
    assert are_prefixes(run, ips)


def are_prefixes(run: World, ips: list[int]) -> bool:
    """Return whether `ips` are prefixes of the pieces, in order."""
    ends = {0}
    for first, last in run.pieces:
        piece = [ip for ip in run.truth[first:last] if run.program[ip][0] not in world.WITH_FUP]
        reached: set[int] = set()
        for start in ends:
            size = 0
            while size < len(piece) and ips[start + size : start + size + 1] == [piece[size]]:
                size += 1
            reached.update(range(start, start + size + 1))
        ends = reached
    return len(ips) in ends
