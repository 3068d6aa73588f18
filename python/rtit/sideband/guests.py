"""Sideband of virtual machines: the records that `perf inject --guest-data` added to the host's.

The event id of such a record says which machine it is of (a machine is named by the pid of its
process on the host) and on which vcpu it was written. pids, tids and paths in it are those of the
guest; they are translated to numbers and paths that no process or file of the host has.
`GuestSideband` applies the records to `Images`, and builds the scheduling intervals of each vcpu.
With these it splits the host's intervals: while a thread of the host runs a vcpu, the guest's
thread on that vcpu is known.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

from rtit.image import Images, Problem, guest_path, guest_process_pid
from rtit.perfdata import PerfData
from rtit.perfdata import records as perf
from rtit.sideband import mapping_records
from rtit.sideband.scheduling import UNKNOWN, GuestThread, IntervalBuilder, IntervalList

_SPLIT_BYTES = 32
"""Approximate memory of one more interval of the host."""
TOO_MANY_SPLITS = Problem(
    "unreadable",
    "scheduling intervals of guests",
    "too many of them share CPUs: the guest thread is unknown",
)
_UNKNOWN = GuestThread(UNKNOWN, UNKNOWN)


class GuestSideband:
    """Applies the records of virtual machines, and splits the host's intervals by guest thread."""

    def __init__(self, data: PerfData, take: Callable[[int], bool] = lambda _: True) -> None:
        self.names: dict[tuple[int, int], str] = {}
        """The last name of each guest thread, by (machine, tid in the guest)."""
        self._ids = data.guest_ids
        self._cpus = data.guest_cpus
        self._reserve_memory = take
        self._intervals: dict[int, IntervalBuilder] = {}
        self.has_too_many_splits = False
        """Whether memory did not suffice for all splits: later guest threads are unknown. A hostile
        file can put one vcpu on all CPUs at once.
        """

    def machine_of_record(self, record: perf.Record) -> int:
        """Return the machine of a record; 0 for records of the host."""
        event_id = record.sample_id.id if record.sample_id is not None else None
        return self._ids.get(event_id, (0, 0))[0] if event_id is not None else 0

    def apply_record(self, images: Images, time: int, record: perf.Record) -> None:
        """Apply the next record of a machine, in order of time (TSC ticks)."""
        sample_id = record.sample_id
        if sample_id is None or sample_id.id is None:
            return
        machine, vcpu = self._ids[sample_id.id]
        if isinstance(record, perf.Comm):
            self.names[machine, record.tid] = record.comm
        elif isinstance(record, perf.Fork) and (machine, record.ptid) in self.names:
            self.names.setdefault((machine, record.tid), self.names[machine, record.ptid])
        mapping_records.apply_mapping_record(
            images, time, _with_host_numbers(machine, record), machine=machine
        )
        # The CPU of the guest is the vcpu, wherever the host ran it.
        inside = replace(record, sample_id=replace(sample_id, cpu=vcpu))
        if machine not in self._intervals:
            self._intervals[machine] = IntervalBuilder(reserve_memory=self._reserve_memory)
        self._intervals[machine].apply_record(time, inside)

    @property
    def intervals(self) -> Iterable[IntervalBuilder]:
        """The intervals of each machine."""
        return self._intervals.values()

    def split_at_guest_switches(self, intervals: IntervalList) -> IntervalList:
        """Return the intervals of a host's CPU, split where the guest thread changes."""
        found = IntervalList()
        on: dict[tuple[int, int], IntervalList] = {}
        for number, (pid, tid, _) in enumerate(intervals.iterate_threads()):
            since = intervals.start[number]
            vcpu = self._cpus.get((pid, tid))
            if vcpu is None or pid not in self._intervals:
                found.append(since, pid, tid)
                continue
            if (pid, tid) not in on:
                on[pid, tid] = self._intervals[pid].intervals_of(vcpu)
            inside = on[pid, tid]
            if not inside:
                found.append(since, pid, tid)
                continue
            until = intervals.start[number + 1] if number + 1 < len(intervals) else None
            for begin, guest in _guest_intervals(inside, since, until):
                if begin > since and not self._reserve_memory(_SPLIT_BYTES):
                    self.has_too_many_splits = True
                    found.append(begin, pid, tid, _UNKNOWN)
                    break
                found.append(begin, pid, tid, guest)
        return found


def _guest_intervals(
    inside: IntervalList, since: int, until: int | None
) -> Iterator[tuple[int, GuestThread]]:
    """Yield the guest threads on a vcpu from `since` to `until`, each with its start."""
    first = bisect_right(inside.start, since)
    yield since, _guest_thread_at(inside, first - 1) if first else _UNKNOWN
    for number in range(first, len(inside)):
        if until is not None and inside.start[number] >= until:
            break
        yield inside.start[number], _guest_thread_at(inside, number)


def _guest_thread_at(inside: IntervalList, number: int) -> GuestThread:
    return GuestThread(inside.pid[number], inside.tid[number])


def _with_host_numbers(machine: int, record: perf.Record) -> perf.Record:
    """Return the record with pids, tids and paths that no process or file of the host has."""

    def host_thread_number(number: int) -> int:
        return guest_process_pid(machine, number) if number > 0 else number

    if isinstance(record, perf.Mmap | perf.Mmap2) and not record.path.startswith(("[", "//")):
        record = replace(record, path=guest_path(machine, record.path))
    if isinstance(record, perf.Fork):
        record = replace(
            record, ppid=host_thread_number(record.ppid), ptid=host_thread_number(record.ptid)
        )
    if isinstance(record, perf.Comm | perf.Fork | perf.Mmap | perf.Mmap2 | perf.ItraceStart):
        return replace(
            record, pid=host_thread_number(record.pid), tid=host_thread_number(record.tid)
        )
    sample_id = record.sample_id
    if isinstance(record, perf.TextPoke) and sample_id is not None and sample_id.pid is not None:
        return replace(record, sample_id=replace(sample_id, pid=host_thread_number(sample_id.pid)))
    return record
