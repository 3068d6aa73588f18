"""Records of virtual machines and of their host, and machines without records."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import pytest

from rtit.image import Images
from rtit.perfdata import PerfData, SwitchRecords, Writer
from rtit.perfdata import records as perf
from rtit.perfdata.records import Misc, SampleId
from rtit.sideband import IntervalList, SchedulingInterval, read_sideband
from rtit.sideband.guests import _SPLIT_BYTES, GuestSideband
from rtit.sideband.scheduling import GuestThread
from support.limits import limit_recordings

ONE, OTHER = 500, 600
"""Pids of virtual machines; thread pid + 1 is the only CPU of each."""


class Merged:
    """Stand-in for a file with merged records of host and guests."""

    guest_ids = {10: (ONE, 0), 20: (OTHER, 0)}  # noqa: RUF012
    guest_cpus = {(ONE, ONE + 1): 0, (OTHER, OTHER + 1): 0}  # noqa: RUF012


def who(machine: int, tid: int) -> SampleId:
    return SampleId(pid=tid, tid=tid, cpu=3, id={ONE: 10, OTHER: 20}[machine])


def out(machine: int, tid: int, following: int) -> perf.SwitchCpuWide:
    of = who(machine, tid)
    return perf.SwitchCpuWide(0, 15, Misc.SWITCH_OUT, 0, of, following, following)


def guests() -> GuestSideband:
    return GuestSideband(cast("PerfData", Merged()))


def test_guest_without_records_keeps_intervals() -> None:
    """perf still reports which threads are its CPUs."""
    found = guests()
    found.apply_record(Images(), 40, out(ONE, 7, 8))
    intervals = [
        SchedulingInterval(10, ONE, ONE + 1),
        SchedulingInterval(50, OTHER, OTHER + 1),
        SchedulingInterval(70, 1, 1),
    ]
    assert found.split_at_guest_switches(IntervalList(intervals)) == [
        SchedulingInterval(10, ONE, ONE + 1, GuestThread(7, 7)),
        SchedulingInterval(40, ONE, ONE + 1, GuestThread(8, 8)),
        *intervals[1:],
    ]


def test_interval_splits_reserve_memory() -> None:
    """A file may say that each CPU ran the one of a machine all the time."""
    bytes_left = 1 << 20

    def reserve(size: int) -> bool:
        nonlocal bytes_left
        bytes_left -= size
        return bytes_left >= 0

    found = GuestSideband(cast("PerfData", Merged()), reserve)
    for time in range(4):
        found.apply_record(Images(), 40 + time, out(ONE, 7 + time, 8 + time))
    bytes_left = 10 * _SPLIT_BYTES
    whole = [GuestThread(number, number) for number in (7, 8, 9, 10, 11)]
    for _ in range(2):
        intervals = found.split_at_guest_switches(
            IntervalList([SchedulingInterval(10, ONE, ONE + 1)])
        )
        assert [each.guest for each in intervals] == whole
        assert not found.has_too_many_splits
    intervals = found.split_at_guest_switches(
        IntervalList([SchedulingInterval(10, ONE, ONE + 1), SchedulingInterval(90, ONE, ONE + 1)])
    )
    # The second interval begins with a known thread, without a split.
    assert [each.guest for each in intervals] == [*whole[:3], GuestThread(-1, -1), whole[4]]
    assert found.has_too_many_splits


def test_guest_threads_do_not_collide_with_host() -> None:
    """For each record that can introduce a thread."""
    images = Images()
    images.set_thread(900, 7)
    start = perf.ItraceStart(0, 12, 0, 0, who(ONE, 7), 7, 7)
    guests().apply_record(images, 10, start)
    assert images._pids[7] == 900


def test_thread_limit_includes_guests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Machines have threads with the same tids."""
    limit_recordings(monkeypatch, max_threads=3)
    ids = {number: (number, 0) for number in range(1, 10)}
    path = tmp_path / "perf.data"
    with Writer(
        path, config=0x2601, cpuid="GenuineIntel,6,94,3", switches=SwitchRecords.CPU_WIDE
    ) as to:
        to.comm(7, 7, 1, "name")
    with PerfData(path) as data:
        (record,) = [each for each in data.records() if isinstance(each, perf.Comm)]
        many = [
            perf.Comm(0, 3, 0, 0, SampleId(pid=7, tid=7, id=number), 7, 7, "name") for number in ids
        ]
        monkeypatch.setattr(PerfData, "guest_ids", ids)
        monkeypatch.setattr(PerfData, "records_by_file", lambda _: iter([iter([record, *many])]))
        found = read_sideband(data, images := Images())
    assert found.guests is not None
    assert len(found.names) + len(found.guests.names) == 3
    assert [problem.value for problem in images.problems] == [3]
