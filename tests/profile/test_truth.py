"""Counts of every edge and every instruction of a profile equal the execution."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from programs.build import BARE, PROGRAMS
from rtit.capture.events import EventKind
from rtit.profile.builder import build_profile
from rtit.profile.tables import Binary, ExecutedRanges, Profile
from rtit.trace import End, Trace
from rtit.x86 import InstructionClass
from support.recordings import RecordedProgram, Recorder

ProgramBuilder = Callable[[str], Path]

# `narrow` has 32-bit code in a 64-bit file, which a profile reads as 64-bit code.
NAMES = [
    name
    for name, each in PROGRAMS.items()
    if each.ends and each.flags == tuple(BARE) and name != "narrow"
]
NEAR_BRANCHES = {
    EventKind.CONDITIONAL: End.CONDITIONAL,
    EventKind.JUMP: End.JUMP,
    EventKind.CALL: End.CALL,
    EventKind.INDIRECT_JUMP: End.INDIRECT_JUMP,
    EventKind.INDIRECT_CALL: End.INDIRECT_CALL,
    EventKind.RETURN: End.RETURN,
}
Edge = tuple[int, int, End]


def executed_edges(live: RecordedProgram) -> Counter[Edge]:
    """Return the edges that the tracer saw, by single steps."""
    found: Counter[Edge] = Counter()
    for event in live.log.events():
        if event.kind == EventKind.CONDITIONAL and not event.flags & 1:
            found[event.ip, event.ip + event.length, End.CUT] += 1
        elif event.kind in NEAR_BRANCHES:
            found[event.ip, event.target, NEAR_BRANCHES[event.kind]] += 1
    return found


def build(live: RecordedProgram) -> Profile:
    with Trace(live.data) as trace:
        return build_profile(trace, trace.streams)


def addresses(found: Profile) -> Counter[Edge]:
    """Return the edges of all binaries by address; a fixed program has those of its file."""
    edges: dict[Edge, int] = {}
    by_number = {each.number: each for each in found.binaries}
    for binary in found.binaries:
        columns = binary.edges
        for source_binary, source, target_binary, target, kind, count in zip(
            columns.source_binary.tolist(),
            columns.source.tolist(),
            columns.target_binary.tolist(),
            columns.target.tolist(),
            columns.kind.tolist(),
            columns.count.tolist(),
            strict=True,
        ):
            ends = [
                by_number[number].symbols.address(at) if number in by_number else at
                for number, at in ((source_binary, source), (target_binary, target))
            ]
            edges[ends[0], ends[1], End(kind)] = count
    return Counter(
        {edge: count for edge, count in edges.items() if edge[2] in (0, *NEAR_BRANCHES.values())}
    )


def record_once(name: str, program: ProgramBuilder, record: Recorder) -> RecordedProgram:
    live = record([program(name), *PROGRAMS[name].arguments])
    if live.status in PROGRAMS[name].may_exit:
        pytest.skip("this machine cannot show the situation")
    return live


@pytest.mark.parametrize("name", NAMES)
def test_every_edge_has_its_executed_count(
    name: str, program: ProgramBuilder, record: Recorder
) -> None:
    live = record_once(name, program, record)
    exe = program(name)
    found = build(live)
    assert found.main is not None
    assert found.main.path == str(exe)
    elf = found.main.symbols.elf
    (low, high) = min(row[1] for row in elf.segments), max(row[1] + row[3] for row in elf.segments)
    wanted = executed_edges(live)
    # For code in no file the profile has the edges from and to files.
    here = {edge for edge in wanted if any(low <= end < high for end in edge[:2])}
    assert addresses(found) == Counter({edge: wanted[edge] for edge in here})
    assert here


@pytest.mark.parametrize("name", NAMES)
def test_every_instruction_has_its_executed_count(
    name: str, program: ProgramBuilder, record: Recorder
) -> None:
    live = record_once(name, program, record)
    found = build(live)
    ran: Counter[int] = Counter()
    with Trace(live.data) as trace:
        for stream in trace.streams:
            ran.update(stream.instructions().columns()["ip"].tolist())
    counted: Counter[int] = Counter()
    for binary in found.binaries:
        at = binary.symbols.addresses(binary.offset)
        counted.update(dict(zip(at.tolist(), binary.count.tolist(), strict=True)))
    assert found.instructions == ran.total()
    assert counted.total() + found.losses.no_file + found.losses.changed_code == ran.total()
    if not found.losses.no_file:
        assert counted == ran
    assert not found.losses.bytes_lost


@pytest.mark.parametrize("name", ["pointers", "recursion", "returns", "rep"])
def test_executed_ranges_cover_all_instructions(
    name: str, program: ProgramBuilder, record: Recorder
) -> None:
    main = build(record_once(name, program, record)).main
    assert main is not None
    stretches = ExecutedRanges(main)
    counts = np.zeros(len(main.offset), np.uint64)
    rows = zip(stretches.first, stretches.last, stretches.count, strict=True)
    for first, last, count in rows:
        counts[first : last + 1] += count
        inside = main.offset[first:last] + main.length[first:last]
        assert (inside == main.offset[first + 1 : last + 1]).all()
        leaves = np.isin(
            main.kind[first:last],
            [InstructionClass.JUMP, InstructionClass.INDIRECT_JUMP, InstructionClass.RETURN],
        )
        assert not leaves.any()
    assert (counts == main.count).all()
    assert_flow(main, stretches)


def assert_flow(main: Binary, stretches: ExecutedRanges) -> None:
    """Assert that the incoming edges and fall-throughs of each range add up to its count, except at
    the entry of the program.
    """
    arrivals: Counter[int] = Counter()
    taken = main.edges.select_rows(
        (main.edges.target_binary == main.number) & (main.edges.kind != End.CUT)
    )
    returned = {
        int(offset + length)
        for offset, length, kind in zip(main.offset, main.length, main.kind, strict=True)
        if kind in (InstructionClass.CALL, InstructionClass.INDIRECT_CALL)
    }
    for target, kind, count in zip(
        taken.target.tolist(), taken.kind.tolist(), taken.count.tolist(), strict=True
    ):
        # the return address follows the call
        if kind != End.RETURN or target not in returned:
            arrivals[target] += count
    for row, count in zip(*stretches.ranges_that_fall_through(), strict=True):
        arrivals[int(main.offset[row + 1])] += int(count)
    wrong = [
        hex(offset)
        for offset, count in zip(
            main.offset[stretches.first].tolist(), stretches.count.tolist(), strict=True
        )
        if arrivals[offset] != count
    ]
    assert wrong in ([], [hex(main.symbols.elf.entry)]) or len(wrong) == 1
