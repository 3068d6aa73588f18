"""Every branch of a recording retired within its time bounds; the tracer knows the true
time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest

from rtit.capture.events import EventKind
from rtit.capture.ptrace.recorder import PtraceRecorder as TraceUnits
from rtit.capture.ptrace.session import replay_events
from rtit.perfdata import TimeConversion
from rtit.trace import Branches, End, Selection, Settings, Stream, TimeRange, Trace
from rtit.unit.time_model import TimeModel
from support.properties import pairs_in_turn
from support.recordings import RecordedProgram, Recorder

UNKNOWN = (1 << 64) - 1
TIMING = ("earliest", "latest", "cycles", "frequency")
EVENTS = [
    "intel_pt//u",
    "intel_pt/cyc/u",
    "intel_pt/cyc,cyc_thresh=5,mtc_period=9/u",
    "intel_pt/mtc=0,psb_period=0/u",
    "intel_pt/cyc,mtc=0/u",
    "intel_pt/mtc_period=0,noretcomp/u",
    "intel_pt/cyc,mtc_period=0,psb_period=0/u",
]
SAME_CLOCK = TimeModel()
"""One cycle for each instruction, and one TSC tick for each cycle."""
OTHER_CLOCK = TimeModel(cpi=3, core_ratio=21)
BRANCH_KINDS = {
    EventKind.CONDITIONAL,
    EventKind.JUMP,
    EventKind.CALL,
    EventKind.INDIRECT_JUMP,
    EventKind.INDIRECT_CALL,
    EventKind.RETURN,
}


@pytest.fixture(params=["pointers", "recursion", "signal_nested", "threads", "rep"])
def recorded_program(
    request: pytest.FixtureRequest, program: Callable[[str], Path], record: Recorder
) -> RecordedProgram:
    return record([program(request.param)])


def executed_branches(
    recorded_program: RecordedProgram, tid: int, model: TimeModel = SAME_CLOCK
) -> tuple[list[int], list[int]]:
    """Return the address of each branch of a thread, and the TSC at which it retired."""
    found = [
        event
        for event in recorded_program.log.events()
        if event.tid == tid and event.kind in BRANCH_KINDS
    ]
    return [event.ip for event in found], [model.tsc(event.clock) for event in found]


def near_branches(stream: Stream) -> Iterator[Branches]:
    """Yield near branches; the trace does not contain the target of a SYSCALL."""
    for batch in stream.branches(timing=True):
        yield batch.select_rows((batch.kind != End.SYSCALL) & (batch.kind != End.FAR))


def check_plain_times(stream: Stream, clock: TimeConversion | None) -> None:
    """Check that times without `timing` lie within the bounds and never decrease.

    A `Selection` by these times must lose no row.
    """
    for table in (stream.branches, stream.raw_events, stream.packets):
        bounds = table(timing=True).columns()
        # packets have times only if a time range selects them
        times = table().columns().get("time", bounds["time"])
        assert len(times) == len(bounds["time"])
        assert (bounds["earliest"] <= times).all()
        assert (times <= bounds["latest"]).all()
        assert (times[1:] >= times[:-1]).all()
        if len(times):
            middle = np.quantile(times, [0.25, 0.75], method="lower").tolist()
            start, end = (clock.to_nanoseconds(tick) if clock else tick for tick in middle)
            where = TimeRange(start, end)
            first, last = where.to_ticks(clock)
            part = table(Selection(time=where)).columns()["time"]
            assert np.array_equal(part, times[(times >= first) & (times <= last)])


@pytest.mark.parametrize("event", EVENTS)
def test_branches_ran_within_their_bounds(
    recorded_program: RecordedProgram, event: str, tmp_path: Path
) -> None:
    data = tmp_path / "perf.data"
    replay_events(recorded_program.log, data, event=event)
    with Trace(data) as trace:
        for stream in trace.streams:
            assert isinstance(stream.settings, Settings)
            columns = Branches.concatenate(near_branches(stream), TIMING)
            if "cyc" in event:
                check_plain_times(stream, trace.clock)
            sources, times = executed_branches(recorded_program, stream.tid)
            assert columns["source"].tolist() == sources
            truth = np.array(times, np.uint64)
            assert (columns["earliest"] <= truth).all()
            assert (truth <= columns["latest"]).all()
            assert (columns["earliest"] <= columns["time"]).all()
            assert (columns["time"] <= columns["latest"]).all()
            assert (np.diff(columns["earliest"].astype(np.int64)) >= 0).all()
            assert columns["earliest"].min(initial=UNKNOWN) >= 1_000_000_000
            if "mtc_period=0" in event and len(sources) > 100:
                assert (columns["latest"] < UNKNOWN).mean() > 0.9
            # core clock and TSC run at 1 GHz; with a threshold, a CYC may be late
            assert np.abs(columns["frequency"] - 1).max() <= (0.1 if "thresh" in event else 0)
            if "cyc" in event:
                assert columns["cycles"][-1] > 0
                assert (np.diff(columns["cycles"].astype(np.int64)) >= 0).all()
            else:
                assert not columns["cycles"].any()


@pytest.mark.parametrize("event", ["intel_pt/cyc,mtc_period=0/u"])
def test_cycles_equal_ticks_where_each_instruction_takes_one_cycle(
    recorded_program: RecordedProgram, event: str, tmp_path: Path
) -> None:
    """A CYC is exact to the cycle: a row that begins with a packet begins at its time."""
    data = tmp_path / "perf.data"
    replay_events(recorded_program.log, data, event=event)
    with Trace(data) as trace:
        for stream in trace.streams:
            rows = stream.blocks(timing=True).columns()
            assert stream.counts().frequency == 1.0
            assert (rows["earliest"] <= rows["time"]).all()
            # from the first CYC on, cycles and ticks advance equally where cycles are counted
            started = rows["cycles"] > 0
            ticks = np.diff(rows["time"][started].astype(np.int64))
            cycles = np.diff(rows["cycles"][started].astype(np.int64))
            assert (ticks >= cycles).all()
            assert (ticks == cycles).mean() > 0.9


def test_cycles_make_bounds_narrower(recorded_program: RecordedProgram, tmp_path: Path) -> None:
    """With an MTC every 20 thousand ticks, the CYCs around a branch bound its time."""
    widths = {}
    for event in ("intel_pt/mtc_period=9/u", "intel_pt/cyc,mtc_period=9/u"):
        data = tmp_path / "perf.data"
        replay_events(recorded_program.log, data, event=event, time=OTHER_CLOCK)
        with Trace(data) as trace:
            found = []
            for stream in trace.streams:
                columns = Branches.concatenate(near_branches(stream), TIMING)
                truth = np.array(
                    executed_branches(recorded_program, stream.tid, OTHER_CLOCK)[1], np.uint64
                )
                assert (columns["earliest"] <= truth).all()
                assert (truth <= columns["latest"]).all()
                known = columns["latest"] < UNKNOWN
                found += (columns["latest"] - columns["earliest"])[known].tolist()
        widths[event] = sorted(found)
    without, narrowed = widths.values()
    assert len(without) == len(narrowed)
    if len(without) > 1000:
        assert narrowed[len(narrowed) // 2] < without[len(without) // 2] / 8


@pytest.mark.parametrize(("event", "cpus"), pairs_in_turn(EVENTS[:3], [1, 2]))
@pytest.mark.parametrize("name", ["fork", pytest.param("threads", marks=pytest.mark.slow)])
def test_branches_on_shared_cpus_ran_within_their_bounds(
    name: str,
    event: str,
    cpus: int,
    program: Callable[[str], Path],
    record: Recorder,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Switches take time, which the recorder adds to the clock."""
    recorded_program = record([program(name)])
    clock_offsets: list[int] = []
    original_feed = TraceUnits.process_events

    def feed(self: TraceUnits, records: bytes, blobs: Sequence[bytes]) -> None:
        clock_offsets.append(self._clock_offset)
        original_feed(self, records, blobs)

    monkeypatch.setattr(TraceUnits, "process_events", feed)
    data = tmp_path / "perf.data"
    replay_events(recorded_program.log, data, event=event, cpus=cpus)
    with Trace(data) as trace:
        for tid in {stream.tid for stream in trace.threads}:
            streams = [stream for stream in trace.threads if stream.tid == tid]
            parts = [Branches.concatenate(near_branches(each), TIMING) for each in streams]
            columns = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
            # merge the rows of several CPUs in the order of time
            order = np.argsort(columns["time"], kind="stable")
            ran = [
                (event.ip, SAME_CLOCK.tsc(event.clock + ahead))
                for event, ahead in zip(recorded_program.log.events(), clock_offsets, strict=True)
                if event.tid == tid and event.kind in BRANCH_KINDS
            ]
            assert columns["source"][order].tolist() == [ip for ip, _ in ran]
            truth = np.array([time for _, time in ran], np.uint64)
            assert (columns["earliest"][order] <= truth).all()
            assert (truth <= columns["latest"][order]).all()
