"""Reads all sideband of a recording: one walk over the records, in order of time.

`read_sideband` is the entry point. The kernel's records of one CPU are in order of time, but those
of several CPUs are not, so `sort_by_time` sorts them first. Each record then goes to the consumers:
`Images` (memory), `ThreadTable` with its parts (names, processes, exits, scheduling intervals, lost
data), and `GuestSideband` for records of virtual machines.

All consumers reserve memory in the recording's `MemoryBudget`. If that is used up, a record about
further threads is skipped, nothing is known of the code of its process any more, and a problem is
reported.
"""

from __future__ import annotations

import mmap
from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping
from sys import getsizeof

from rtit.errors import PerfDataError
from rtit.image import Images, MemoryBudget, Problem
from rtit.perfdata import PerfData
from rtit.perfdata import records as perf
from rtit.perfdata.records import FIRST_USER_TYPE, Record
from rtit.sideband import mapping_records
from rtit.sideband.guests import GuestSideband
from rtit.sideband.jit_code import JitCodeLoader
from rtit.sideband.processes import AuxLosses, ProcessExits, ProcessTable
from rtit.sideband.scheduling import IntervalBuilder

_MAX_SORTED_RECORDS, _MAX_SORTED_BYTES = 1 << 16, 1 << 24
"""Records that are sorted in memory. If there are more, only their offsets are sorted, and the
records are read again.
"""
_MAX_RESIDENT = 1 << 24
"""Bytes of pages that stay in memory while records are read again."""


class ThreadTable:
    """The threads of a recording, and what their records say."""

    def __init__(self, data: PerfData | None = None, budget: MemoryBudget | None = None) -> None:
        budget = budget or MemoryBudget()
        self.names: dict[int, str] = {}
        """tid -> last name (comm). A new thread has the name of the thread that created it."""
        self.exits = ProcessExits()
        self.processes = ProcessTable()
        self.intervals = IntervalBuilder(data, budget.reserve_memory)
        self.losses = AuxLosses(budget)
        self.guests: GuestSideband | None = None
        """Threads of virtual machines; None if the file has no records of them."""
        if data is not None and data.guest_ids:
            self.guests = GuestSideband(data, budget.reserve_memory)

    def apply_record(self, record: perf.Record) -> None:
        """Set names from the next record, in order of time."""
        if isinstance(record, perf.Comm):
            self.names[record.tid] = record.comm
        elif isinstance(record, perf.Fork) and record.ptid in self.names:
            self.names.setdefault(record.tid, self.names[record.ptid])


def read_sideband(
    data: PerfData,
    images: Images,
    jit: Mapping[str, str] | None = None,
    find_map: Callable[[int], str | None] = lambda _: None,
) -> ThreadTable:
    """Apply all records of a recording to `images`, and return its threads.

    `jit` maps paths of jitdump files and perf maps to their names for messages; `find_map` returns
    the perf map of a process that has none there. If there are too many threads, the later ones are
    ignored, and `images` has a problem.
    """
    budget = images.budget
    threads = ThreadTable(data, budget)
    known_ids: set[tuple[int, int]] = set()
    if images.kernel is not None:
        try:
            for address, code in data.bpf_code():
                images.kernel.changes.add_code(address, code)
        except PerfDataError as error:
            images.kernel.add_problem("BPF programs", str(error))
    pids = {getattr(record, "pid", -1) for record in data.records()} if jit else set()
    jit_loader = JitCodeLoader(
        images, jit or {}, pids, has_code=bool(data.facts), find_map=find_map
    )
    guests = threads.guests
    too_many_threads: Problem | None = None
    for time, record in sort_by_time(data):
        jit_loader.apply_until(time)
        machine = guests.machine_of_record(record) if guests is not None else 0
        ids = {(machine, number) for number in _process_and_thread_ids(record)}
        if (ids or isinstance(record, perf.Exit)) and not _reserve_memory_for_record(
            budget, record, len(ids - known_ids), len(known_ids)
        ):
            # Reported once, with the number of threads at the first time.
            too_many_threads = too_many_threads or _too_many_threads(len(known_ids))
            images.add_problem(too_many_threads)
            if not machine and isinstance(record, perf.Fork | perf.Mmap | perf.Mmap2 | perf.Comm):
                images.drop_code(time, record.pid)
            continue
        known_ids |= ids
        if guests is not None and machine:
            guests.apply_record(images, time, record)
            continue
        mapping_records.apply_mapping_record(images, time, record)
        threads.apply_record(record)
        threads.exits.apply_record(time, record)
        threads.processes.apply_record(time, record)
        threads.intervals.apply_record(time, record)
        too_many_losses = threads.losses.apply_record(record)
        if too_many_losses is not None:
            images.add_problem(Problem("unreadable", "losses", too_many_losses))
    jit_loader.finish()
    images.finish()
    for intervals in (threads.intervals, *(guests.intervals if guests is not None else ())):
        if intervals.is_truncated:
            images.add_problem(_too_many_intervals(len(intervals)))
    return threads


def _process_and_thread_ids(record: perf.Record) -> tuple[int, ...]:
    """Return the ids of threads and processes in a record."""
    if isinstance(record, perf.Fork):
        return record.tid, record.pid, record.ptid, record.ppid
    if isinstance(record, perf.Comm | perf.Mmap | perf.Mmap2 | perf.ItraceStart):
        return record.tid, record.pid
    sample_id = record.sample_id
    if isinstance(record, perf.TextPoke) and sample_id is not None:
        return tuple(number for number in (sample_id.tid, sample_id.pid) if number is not None)
    return ()


def _reserve_memory_for_record(
    budget: MemoryBudget, record: perf.Record, new_ids: int, known_ids: int
) -> bool:
    """Reserve memory for a record about threads; False if there is none."""
    limits = budget.limits
    size = (limits.thread_id + limits.process) * new_ids
    if isinstance(record, perf.Fork) and record.pid == record.tid:
        size += limits.process
    elif isinstance(record, perf.Exit) and record.exit_status is not None:
        size += limits.process_exit
    elif isinstance(record, perf.Comm):
        size += max(0, getsizeof(record.comm) - limits.included_name)
    if known_ids + new_ids > limits.max_threads:
        return False
    return not size or budget.reserve_memory(size)


def _too_many_intervals(count: int) -> Problem:
    message = f"there are more than {count:,}: the thread of later ones is unknown"
    return Problem("unreadable", "scheduling intervals", message, count)


def _too_many_threads(count: int) -> Problem:
    message = f"there are more than {count:,}: later ones are unknown, and what they executed"
    return Problem("unreadable", "threads", message, count)


def sort_by_time(data: PerfData) -> Iterator[tuple[int, Record]]:
    """Yield the kernel's records with their times in TSC ticks, in order of time.

    The time is 0 for a record without one, and if the file has no clock conversion. Records with
    equal times stay in file order. Raises PerfDataError, also if the file changes meanwhile.
    """
    pairs: list[tuple[int, Record]] = []
    times, offsets, ends = array("Q"), array("Q"), list[int]()
    size, is_sorted = 0, True
    for records in data.records_by_file():
        for record in filter(_is_of_kernel, records):
            time = _record_time_in_ticks(data, record)
            is_sorted = is_sorted and (not times or times[-1] <= time)
            times.append(time)
            offsets.append(record.offset)
            size += record.size
            if len(times) > _MAX_SORTED_RECORDS or size > _MAX_SORTED_BYTES:
                pairs.clear()
            else:
                pairs.append((time, record))
        ends.append(len(times))
    if len(pairs) == len(times):
        yield from sorted(pairs, key=lambda pair: pair[0])
        return
    if is_sorted:
        yield from (
            (_record_time_in_ticks(data, each), each)
            for each in filter(_is_of_kernel, data.records())
        )
        return
    import numpy as np

    order = np.argsort(np.frombuffer(times, np.uint64), kind="stable")
    resident = _MAX_RESIDENT
    for index in order:
        if resident >= _MAX_RESIDENT:
            data.check_not_truncated()
            data.release_pages()
            resident = 0
        record = data.record_at(bisect_right(ends, index), offsets[index])
        resident += record.size + mmap.PAGESIZE
        yield times[index], record
    data.check_not_truncated()


def _is_of_kernel(record: Record) -> bool:
    """Records that perf adds (AUXTRACE and others) have no time and would break the order."""
    return record.type < FIRST_USER_TYPE


def _record_time_in_ticks(data: PerfData, record: Record) -> int:
    conversion = data.time_conversion
    time = record.sample_id.time if record.sample_id else None
    return conversion.to_tsc(time) if conversion is not None and time else 0
