"""Scheduling intervals from switch records."""

from __future__ import annotations

import struct
import tracemalloc
from pathlib import Path

import pytest

from rtit.perfdata import Attr, Event, PerfData, SampleType
from rtit.perfdata import records as perf
from rtit.perfdata.records import Misc, SampleId
from rtit.sideband import IntervalBuilder, SchedulingInterval


def who(tid: int, cpu: int = 0, pid: int | None = None) -> SampleId:
    return SampleId(pid=tid if pid is None else pid, tid=tid, cpu=cpu)


def switch_out(tid: int, cpu: int = 0) -> perf.Switch:
    return perf.Switch(0, 14, Misc.SWITCH_OUT, 0, who(tid, cpu))


def switch_in(tid: int, cpu: int = 0) -> perf.Switch:
    return perf.Switch(0, 14, 0, 0, who(tid, cpu))


def cpu_wide_out(tid: int, following: int, cpu: int = 0) -> perf.SwitchCpuWide:
    return perf.SwitchCpuWide(0, 15, Misc.SWITCH_OUT, 0, who(tid, cpu), following, following)


def cpu_wide_in(tid: int, before: int, cpu: int = 0) -> perf.SwitchCpuWide:
    return perf.SwitchCpuWide(0, 15, 0, 0, who(tid, cpu), before, before)


def itrace_start(tid: int, cpu: int = 0) -> perf.ItraceStart:
    return perf.ItraceStart(0, 12, 0, 0, who(tid, cpu), tid, tid)


def exit_record(tid: int, cpu: int = 0) -> perf.Exit:
    return perf.Exit(0, 4, 0, 0, who(tid, cpu), tid, tid, tid, tid, 0, b"")


def build_intervals(*records: tuple[int, perf.Record]) -> IntervalBuilder:
    found = IntervalBuilder()
    for time, record in records:
        found.apply_record(time, record)
    return found


def on(found: IntervalBuilder, cpu: int = 0) -> list[tuple[int, int]]:
    return [(each.start, each.tid) for each in found.intervals_of(cpu)]


def test_first_switch_out_shows_earlier_thread() -> None:
    assert on(build_intervals((10, switch_out(5)), (20, switch_in(6)))) == [(0, 5), (10, 6)]


def test_interval_starts_at_switch_out() -> None:
    """The trace of a thread begins before its switch-in record."""
    found = build_intervals(
        (5, switch_in(5)),
        (10, switch_out(5)),
        (20, switch_in(6)),
        (30, switch_out(6)),
        (35, switch_in(5)),
    )
    assert on(found) == [(5, 5), (10, 6), (30, 5)]


def test_exit_ends_interval() -> None:
    assert on(build_intervals((5, switch_in(5)), (10, exit_record(5)), (20, switch_in(6)))) == [
        (5, 5),
        (10, 6),
    ]
    # a record of another CPU's thread does not count
    assert on(build_intervals((5, switch_in(5)), (10, exit_record(7)), (20, switch_in(6)))) == [
        (5, 5),
        (20, 6),
    ]


def test_cpu_wide_switch_names_next_thread() -> None:
    found = build_intervals(
        (10, cpu_wide_out(0, 5)), (12, cpu_wide_in(5, 0)), (20, cpu_wide_out(5, 0))
    )
    assert on(found) == [(0, 0), (10, 5), (20, 0)]
    # a lost record
    assert on(build_intervals((12, cpu_wide_in(5, 7)), (20, cpu_wide_in(6, 5)))) == [
        (0, 7),
        (12, 5),
        (20, 6),
    ]


def test_cpus_have_separate_intervals() -> None:
    found = build_intervals(
        (1, itrace_start(5, 0)),
        (2, itrace_start(6, 3)),
        (10, switch_out(5, 0)),
        (11, switch_in(5, 3)),
    )
    assert found.cpus == [0, 3]
    assert (on(found, 0), on(found, 3), on(found, 1)) == ([(0, 5)], [(0, 6), (11, 5)], [])


def test_itrace_start_begins_interval() -> None:
    found = build_intervals(
        (10, switch_out(5)), (20, itrace_start(6)), (25, switch_in(6)), (30, itrace_start(6))
    )
    assert on(found) == [(0, 5), (10, 6)]


def test_itrace_start_gives_the_first_traced_thread_of_a_cpu() -> None:
    found = build_intervals(
        (1, itrace_start(1, 0)),
        (2, switch_out(7, 3)),
        (3, itrace_start(2, 0)),
        (4, itrace_start(4, 2)),
    )
    assert [found.first_thread(cpu) for cpu in range(4)] == [(1, 1), (-1, -1), (4, 4), (-1, -1)]


def test_intervals_beyond_memory_are_unknown() -> None:
    """One CPU, then 64 intervals at once; no memory is left for those of a second CPU."""
    left = [3]

    def take(size: int) -> bool:
        left[0] -= 1
        return left[0] >= 0

    found = IntervalBuilder(reserve_memory=take)
    for time in range(200):
        found.apply_record(time, switch_in(5 + time % 2))
    assert not on(found, 1)
    whole, last = on(found)[:-1], on(found)[-1]
    assert whole == [(time, 5 + time % 2) for time in range(128)]
    assert last == (128, -1)
    assert found.is_truncated
    assert len(found) == 129
    found.apply_record(200, switch_in(5, 1))
    assert found.cpus == [0]


def test_interval_uses_few_bytes() -> None:
    """A recording has millions of intervals, each from one or two records."""
    found, count = IntervalBuilder(), 20_000
    tracemalloc.start()
    try:
        for time in range(1 << 60, count + (1 << 60)):
            found.apply_record(time, switch_in(1000 + time % 2))
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(found) == count
    assert kept < 24 * count


def test_interval_starts_do_not_decrease() -> None:
    found = build_intervals(
        (10, switch_out(5)), (20, switch_in(6)), (20, cpu_wide_out(6, 7)), (15, switch_in(8))
    )
    times = [since for since, _ in on(found)]
    assert times == sorted(times)


@pytest.mark.parametrize(
    ("kinds", "before"), [(0, b""), (SampleType.CALLCHAIN, struct.pack("<QQ", 1, 0x1000))]
)
def test_sched_switch_samples_begin_intervals(kinds: int, before: bytes) -> None:
    """The format since 2.6.35: prev_comm, prev_pid, prev_prio, prev_state, next_comm, next_pid.
    Other fields of the sample may precede it.
    """

    class File:
        events = (
            Event(Attr(1), (1,), "dummy:u"),
            Event(Attr(2, sample_type=SampleType.RAW | kinds), (2,), "sched:sched_switch"),
        )

    raw = struct.pack("<8x16siiq16sii", b"a", 5, 120, 0, b"b", 6, 120)
    body = before + struct.pack("<I", len(raw)) + raw
    found = IntervalBuilder(File())  # type: ignore[arg-type]
    found.apply_record(1, perf.Comm(0, 3, 0, 0, None, 60, 6, "b"))
    for event, time in ((0, 5), (1, 10)):
        found.apply_record(time, perf.Sample(0, 9, 0, 0, who(5), event, None, None, None, body))
    found.apply_record(20, perf.Sample(0, 9, 0, 0, who(6), 1, None, None, None, body[:50]))
    assert found.intervals_of(0) == [SchedulingInterval(0, 5, 5), SchedulingInterval(10, 60, 6)]


def test_intervals_of_a_hardware_recording_are_known(traces: Path) -> None:
    """perf of CPUs: thread 19731, the first of its process, runs on CPU 1 after idle."""
    with PerfData(traces / "hase" / "control_flow-skylake.perf.data") as data:
        found = IntervalBuilder(data)
        for record in data.records():
            found.apply_record(record.time or 0, record)
    first = found.intervals_of(1)[:2]
    assert [(interval.pid, interval.tid) for interval in first] == [(0, 0), (19731, 19731)]
    assert first[1].start == 969388448163140
