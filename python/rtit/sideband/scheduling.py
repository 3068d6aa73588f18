"""Which thread has each CPU, from which time on: scheduling intervals.

The intervals come from context-switch records (PERF_RECORD_SWITCH, SWITCH_CPU_WIDE, samples of
`sched:sched_switch`), ITRACE_START and EXIT. A recording can have millions of intervals, so
`IntervalList` keeps them as columns.

A trace unit that is disabled and enabled at a switch is enabled again before the kernel writes the
record of the switch-in. An interval therefore starts when the thread before was switched out.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import repeat
from typing import NamedTuple, overload

from rtit.perfdata import PerfData
from rtit.perfdata import records as perf
from rtit.perfdata.samples import raw_data

UNKNOWN = -1
"""The id of an unknown thread or process."""
_NO_GUEST = -2
"""In the guest columns: the interval has no guest."""


class GuestThread(NamedTuple):
    """Thread `tid` of process `pid` in a virtual machine."""

    pid: int
    tid: int


@dataclass(frozen=True, slots=True)
class SchedulingInterval:
    """From `start` (TSC ticks) on, thread `tid` of process `pid` has the CPU.

    Thread 0 is the idle thread; -1 is unknown. `guest` is the thread that runs in the virtual
    machine, if the thread is a virtual CPU and the file names the guest thread.
    """

    start: int
    pid: int
    tid: int
    guest: GuestThread | None = None


class IntervalList(Sequence[SchedulingInterval]):
    """Scheduling intervals of one CPU in order of time, as columns.

    `start` (64 bits), `pid` and `tid` (32 bits) have one number for each interval. `guest_pid` and
    `guest_tid` are empty if no interval has a guest.
    """

    __slots__ = ("guest_pid", "guest_tid", "pid", "start", "tid")

    def __init__(self, intervals: Iterable[SchedulingInterval] = ()) -> None:
        self.start = array("Q")
        self.pid, self.tid = array("i"), array("i")
        self.guest_pid, self.guest_tid = array("i"), array("i")
        for each in intervals:
            self.append(each.start, each.pid, each.tid, each.guest)

    @property
    def has_guests(self) -> bool:
        """Whether at least one interval has a guest."""
        return bool(self.guest_pid)

    def append(self, start: int, pid: int, tid: int, guest: GuestThread | None = None) -> None:
        """Append an interval that starts no earlier than the last one."""
        if guest is not None and not self.has_guests:
            self.guest_pid = array("i", [_NO_GUEST]) * len(self)
            self.guest_tid = array("i", self.guest_pid)
        self.start.append(start)
        self.pid.append(pid)
        self.tid.append(tid)
        if self.has_guests or guest is not None:
            guest_pid, guest_tid = guest or (_NO_GUEST, _NO_GUEST)
            self.guest_pid.append(guest_pid)
            self.guest_tid.append(guest_tid)

    def guest_thread_at(self, index: int) -> GuestThread | None:
        """Return the guest thread of an interval, or None."""
        if not self.has_guests or self.guest_pid[index] == _NO_GUEST:
            return None
        return GuestThread(self.guest_pid[index], self.guest_tid[index])

    def iterate_threads(self) -> Iterator[tuple[int, int, GuestThread | None]]:
        """Return the process, thread and guest thread of each interval."""
        guests = map(self.guest_thread_at, range(len(self))) if self.has_guests else repeat(None)
        return zip(self.pid, self.tid, guests, strict=False)

    def __len__(self) -> int:
        return len(self.start)

    @overload
    def __getitem__(self, index: int) -> SchedulingInterval: ...
    @overload
    def __getitem__(self, index: slice) -> list[SchedulingInterval]: ...
    def __getitem__(self, index: int | slice) -> SchedulingInterval | list[SchedulingInterval]:
        if isinstance(index, slice):
            return [self[each] for each in range(*index.indices(len(self)))]
        return SchedulingInterval(
            self.start[index], self.pid[index], self.tid[index], self.guest_thread_at(index)
        )

    def __eq__(self, other: object) -> bool:
        return list(self) == other if isinstance(other, Sequence) else NotImplemented

    __hash__ = None  # type: ignore[assignment]


_SCHED_SWITCH = "sched:sched_switch"
# Layout of the tracepoint: eight common bytes; comm (16), pid, priority and state (8) of the thread
# before; comm and pid of the next thread.
_NEXT_PID = struct.Struct("<i")
_NEXT_PID_OFFSET = 56

# Approximate memory: of one CPU, and of one interval. Memory is reserved for 64 intervals at once.
_CPU_BYTES = 1024
_INTERVAL_BYTES = 24
_RESERVED_INTERVALS = 64


@dataclass(slots=True)
class _CpuIntervals:
    reserve_memory: Callable[[int], bool]
    intervals: IntervalList = field(default_factory=IntervalList)
    switched_out_at: int | None = None
    """When the last thread was switched out; None after a switch-in."""
    first_thread: tuple[int, int] | None = None
    """(pid, tid) of the first traced thread."""
    is_full: bool = False
    """No memory was left. The last interval is of an unknown thread and has no end."""

    def add_interval(self, start: int, pid: int, tid: int) -> None:
        intervals = self.intervals
        if intervals:
            if self.is_full or (intervals.pid[-1], intervals.tid[-1]) == (pid, tid):
                return
            start = max(start, intervals.start[-1])
        if not len(intervals) % _RESERVED_INTERVALS and not self.reserve_memory(
            _RESERVED_INTERVALS * _INTERVAL_BYTES
        ):
            self.is_full = True
            pid = tid = UNKNOWN
        intervals.append(start, pid, tid)

    def assume_first_thread(self, pid: int, tid: int) -> None:
        """Assume that the thread had the CPU from the beginning, if no interval is known yet."""
        if not self.intervals:
            self.add_interval(0, pid, tid)


class IntervalBuilder:
    """Builds the scheduling intervals of each CPU from the records of a recording.

    `reserve_memory` returns whether that many more bytes may be used. After it returned False the
    later threads are unknown, and `is_truncated` is true.
    """

    def __init__(
        self,
        data: PerfData | None = None,
        reserve_memory: Callable[[int], bool] = lambda _: True,
    ) -> None:
        self._cpus: dict[int, _CpuIntervals] = {}
        self._reserve_memory = reserve_memory
        self._has_lost_cpus = False
        events = data.events if data is not None else []
        self._switch_events = {
            number: event.attr
            for number, event in enumerate(events)
            if event.name.startswith(_SCHED_SWITCH)
        }
        self._pids: dict[int, int] = {}

    def __len__(self) -> int:
        return sum(len(cpu.intervals) for cpu in self._cpus.values())

    @property
    def cpus(self) -> list[int]:
        """The CPUs that have intervals, sorted."""
        return sorted(self._cpus)

    @property
    def is_truncated(self) -> bool:
        """Whether memory did not suffice for all intervals."""
        return self._has_lost_cpus or any(cpu.is_full for cpu in self._cpus.values())

    def intervals_of(self, cpu: int) -> IntervalList:
        """Return the intervals of a CPU. Adjacent intervals are of different threads."""
        state = self._cpus.get(cpu)
        if state is None:
            return IntervalList()
        intervals = state.intervals
        if intervals and min(intervals.pid) < 0:
            for index, pid in enumerate(intervals.pid):
                if pid < 0:
                    intervals.pid[index] = self._pids.get(intervals.tid[index], UNKNOWN)
        return intervals

    def first_thread(self, cpu: int) -> tuple[int, int]:
        """(pid, tid) of the first thread that was traced on a CPU; (-1, -1) if unknown."""
        state = self._cpus.get(cpu)
        return (state.first_thread if state is not None else None) or (UNKNOWN, UNKNOWN)

    def apply_record(self, time: int, record: perf.Record) -> None:
        """Process the next record, in order of time (TSC ticks)."""
        if isinstance(record, perf.Fork | perf.Comm):
            self._pids[record.tid] = record.pid
        sample_id = record.sample_id
        if sample_id is None or sample_id.cpu is None:
            return
        if isinstance(record, perf.SwitchCpuWide | perf.Switch):
            if sample_id.tid is not None and sample_id.pid is not None:
                self._apply_switch(time, record, sample_id.cpu, sample_id.pid, sample_id.tid)
        elif isinstance(record, perf.ItraceStart):
            self._pids[record.tid] = record.pid
            cpu = self._intervals_of_cpu(sample_id.cpu)
            cpu.first_thread = cpu.first_thread or (record.pid, record.tid)
            cpu.assume_first_thread(record.pid, record.tid)
            self._switch_in(cpu, time, record.pid, record.tid)
        elif isinstance(record, perf.Exit):
            cpu = self._intervals_of_cpu(sample_id.cpu)
            if cpu.intervals and cpu.intervals[-1].tid == record.tid:
                cpu.switched_out_at = time
        elif isinstance(record, perf.Sample) and record.event in self._switch_events:
            self._sched_switch(time, record, self._intervals_of_cpu(sample_id.cpu))

    def _apply_switch(
        self, time: int, record: perf.SwitchCpuWide | perf.Switch, number: int, pid: int, tid: int
    ) -> None:
        cpu = self._intervals_of_cpu(number)
        if record.is_out:
            cpu.assume_first_thread(pid, tid)
            cpu.switched_out_at = time
            if isinstance(record, perf.SwitchCpuWide):
                cpu.add_interval(time, record.other_pid, record.other_tid)
        else:
            if isinstance(record, perf.SwitchCpuWide):
                cpu.assume_first_thread(record.other_pid, record.other_tid)
            self._switch_in(cpu, time, pid, tid)

    @staticmethod
    def _switch_in(cpu: _CpuIntervals, time: int, pid: int, tid: int) -> None:
        cpu.add_interval(time if cpu.switched_out_at is None else cpu.switched_out_at, pid, tid)
        cpu.switched_out_at = None

    def _sched_switch(self, time: int, record: perf.Sample, cpu: _CpuIntervals) -> None:
        sample_id = record.sample_id
        raw = raw_data(self._switch_events[record.event], memoryview(record.body))
        if sample_id is None or raw is None or len(raw) < _NEXT_PID_OFFSET + _NEXT_PID.size:
            return
        if sample_id.tid is not None:
            cpu.assume_first_thread(
                UNKNOWN if sample_id.pid is None else sample_id.pid, sample_id.tid
            )
        (tid,) = _NEXT_PID.unpack_from(raw, _NEXT_PID_OFFSET)
        cpu.add_interval(time, 0 if tid == 0 else UNKNOWN, tid)

    def _intervals_of_cpu(self, number: int) -> _CpuIntervals:
        if number in self._cpus:
            return self._cpus[number]
        cpu = _CpuIntervals(self._reserve_memory)
        if self._reserve_memory(_CPU_BYTES):
            self._cpus[number] = cpu
        else:
            self._has_lost_cpus = True
        return cpu
