"""Which thread had a CPU, and when: scheduling intervals, and the thread of every decoded row.

A per-CPU trace buffer holds the packets of all threads that ran on that CPU, one after the other.
No PT packet names a thread, so the thread of a row is inferred from three sources:

1. **Context-switch records.** `rtit.sideband` turns PERF_RECORD_SWITCH and `sched:sched_switch`
   samples into *scheduling intervals*: from this TSC value on, this thread has the CPU. An interval
   ends where the next one starts; the first may start late, so its predecessor is unknown.
2. **The decoder's TSC estimate.** It is a lower bound: a row ran at its estimated time or later.
3. **The address of `__switch_to`**, if kernel code was traced. The next thread runs from the first
   instruction of this function on. This is exact, and perf draws the line at the same place.

A switch happens in the kernel. If only user code was traced, the switch itself is invisible, and
the next thread shows where execution arrives from outside: at a TIP.PGE, a far transfer or a PSB+.
The native decoder changes address spaces at these packets only, and reports with every batch the
ordinal of the interval that it has reached. No batch spans two intervals.

The trace mode decides how one thread is decoded:

* *User code only.* Intervals of other threads contain nothing that is needed later. The decoder
  skips them, and their bytes are `elsewhere` in the coverage ledger.
* *With kernel code.* A thread is switched out in the middle of kernel functions that the next
  thread continues, so every interval must be decoded. `rtit.trace.threads.thread_extraction` then
  selects rows.

Interval **ordinals** count from 1, as in the native decoder. Ordinal 0 is the time before the first
interval; its thread is unknown.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import numpy as np

from rtit.errors import UnsupportedError
from rtit.image import Image, Images, guest_kernel_pid, guest_process_pid
from rtit.perfdata import PerfData
from rtit.perfdata.attr import AttrFlag, config_value
from rtit.sideband.scheduling import UNKNOWN, IntervalList, SchedulingInterval
from rtit.trace.tables.batch import Batch
from rtit.trace.tables.rows import Branches, Instructions, Rows
from rtit.trace.tables.selection import LATEST

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from typing_extensions import Buffer

    from rtit import _core

B = TypeVar("B", bound=Batch)
ThreadId = tuple[int, int]
"""(pid, tid)."""

GUEST_COLUMNS = ("guest_tid", "guest_pid")
SWITCH_FUNCTION = "__switch_to"
MAX_ESTIMATE_LAG = 1 << 18
"""TSC ticks by which the estimate of the last rows of a batch may trail the real time."""
_INTERVAL_COLUMN = "interval"


class IntervalCode(NamedTuple):
    """The code that an interval executes, as the native decoder takes it."""

    user: _core.Space | None
    """Code of the process; None: the decoder skips the interval."""
    has_certain_start: bool
    """Packets that straddle the start are not reported as an ambiguous position: nothing that was
    traced ran there, or the kernel code shows the switch.
    """
    guest_process: _core.Space | None
    guest_kernel: _core.Space | None


_SKIPPED = IntervalCode(None, False, None, None)
_SKIPPED_IDLE = IntervalCode(None, True, None, None)


@dataclass(frozen=True, eq=False)
class ThreadSchedule:
    """The scheduling intervals of one CPU, and the code of the processes that ran.

    A CPU can have millions of intervals and hundreds of selected threads. What is derived from all
    intervals is therefore computed once here and shared by every `ThreadScope`.
    """

    intervals: IntervalList
    """In order of time."""
    images: Images
    user_code_only: bool
    switch_address: int | None = None
    """Address of `__switch_to`; None if kernel code was not traced or the address is unknown."""

    @property
    def has_guests(self) -> bool:
        """Whether records say which thread of a virtual machine ran."""
        return self.intervals.has_guests

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the columns that `ThreadAttribution` adds."""
        return ("tid", "pid", *(GUEST_COLUMNS if self.has_guests else ()))

    def interval_by_ordinal(self, ordinal: int) -> SchedulingInterval | None:
        """Return the interval with this ordinal; None for ordinal 0."""
        return self.intervals[ordinal - 1] if ordinal > 0 else None

    def last_start(self, tid: int) -> int:
        """The TSC value at which a thread got the CPU for the last time; 0 if it never did."""
        return self._last_starts.get(tid, 0)

    @cached_property
    def _last_starts(self) -> dict[int, int]:
        return dict(zip(self.intervals.tid, self.intervals.start, strict=True))

    @cached_property
    def code_of_intervals(
        self,
    ) -> tuple[array[int], list[IntervalCode], list[list[tuple[int, Image]]]]:
        """For each interval an index into the two lists: the distinct `IntervalCode` values in
        order of first appearance, and the pids and images of each.

        Threads of one process share an entry, so that the lists stay short.
        """
        unknown, index_of, indices = Image(), dict[IntervalCode, int](), array("I")
        images_of: list[list[tuple[int, Image]]] = []
        for pid, tid, guest in self.intervals.iterate_threads():
            image, process, kernel = self.images.find_image(pid) or unknown, None, None
            if guest is not None:
                guest_pids = guest_process_pid(pid, guest.pid), guest_kernel_pid(pid)
                process, kernel = map(self.images.find_image, guest_pids)
            # The idle thread has no user code, so nothing can straddle the start of its interval.
            is_idle = tid == 0 and self.user_code_only
            code = IntervalCode(
                image.native,
                is_idle or self.switch_address is not None,
                process.native if process is not None else None,
                kernel.native if kernel is not None else None,
            )
            if code not in index_of:
                index_of[code] = len(index_of)
                found = [(pid, image)]
                if process is not None:
                    found.append((guest_pids[0], process))
                if kernel is not None:
                    found.append((guest_pids[1], kernel))
                images_of.append(found)
            indices.append(index_of[code])
        return indices, list(index_of), images_of


@dataclass(frozen=True, eq=False)
class ThreadScope:
    """A schedule, and which of its threads are wanted."""

    schedule: ThreadSchedule
    selected: tuple[ThreadId, ...] | None = None
    """None: all threads."""
    has_all_threads: bool = False
    """Whether no thread outside of `selected` executed anything."""

    def select_threads(self, *threads: ThreadId, has_all_threads: bool = False) -> ThreadScope:
        """Return the same schedule with only these threads selected."""
        return replace(self, selected=threads, has_all_threads=has_all_threads)

    @property
    def selected_tids(self) -> frozenset[int] | None:
        """The selected threads; None: all."""
        return None if self.selected is None else frozenset(tid for _, tid in self.selected)

    @property
    def thread_count(self) -> int:
        """The number of selected threads; if all are selected, of those that had the CPU."""
        if self.selected is not None:
            return len(self.selected)
        return len(set(self.schedule.intervals.tid))

    @property
    def skips_unselected_intervals(self) -> bool:
        """Whether the decoder skips the intervals of unselected threads."""
        return self.selected is not None and self.schedule.user_code_only

    @property
    def tids_to_extract(self) -> frozenset[int] | None:
        """The threads whose rows must be extracted after decoding; None: keep all rows."""
        if self.has_all_threads or self.skips_unselected_intervals:
            return None
        return self.selected_tids

    def native_interval_columns(self) -> tuple[Buffer, Buffer, list[IntervalCode]]:
        """Columns for the native decoder: start (TSC, u64) and code index (u32) of each interval,
        and the codes that the indices refer to.
        """
        starts = self.schedule.intervals.start
        indices, codes, _ = self.schedule.code_of_intervals
        if not self.skips_unselected_intervals:
            return starts, indices, codes
        wanted, kept = self._decoded_intervals()
        old = np.asarray(indices)
        new_index = np.zeros(len(codes), np.uint32)
        new_index[kept] = np.arange(2, 2 + len(kept))
        # Skipped intervals map to 0 (_SKIPPED) or 1 (_SKIPPED_IDLE).
        idle = np.array([code.has_certain_start for code in codes], np.uint32)[old]
        new_codes = [_SKIPPED, _SKIPPED_IDLE, *(codes[index] for index in kept)]
        return starts, np.where(wanted, new_index[old], idle).data, new_codes

    def other_images(self, first: Image) -> list[tuple[int, Image]]:
        """Return pids and images of `native_interval_columns`, each image once, without `first`.

        In order of first appearance: the native decoder numbers address spaces in this order.
        """
        pid_of: dict[Image, int] = {}
        for index in self._decoded_intervals()[1]:
            for pid, image in self.schedule.code_of_intervals[2][index]:
                pid_of.setdefault(image, pid)
        pid_of.pop(first, None)
        return [(pid, image) for image, pid in pid_of.items()]

    def _decoded_intervals(self) -> tuple[NDArray[np.bool_], list[int]]:
        """Return the mask of decoded intervals, and their distinct code indices in order."""
        indices = np.asarray(self.schedule.code_of_intervals[0])
        wanted = np.ones(len(indices), bool)
        if self.skips_unselected_intervals:
            wanted = np.isin(np.asarray(self.schedule.intervals.tid), [*(self.selected_tids or ())])
        kept, first = np.unique(indices[wanted], return_index=True)
        return wanted, kept[np.argsort(first)].tolist()


class ThreadAttribution:
    """Adds the columns `tid` and `pid` to the batches of one decoder, taken in order; where guests
    are known also `guest_tid` and `guest_pid` (-1 for rows outside of `guest_spaces`).
    """

    def __init__(self, schedule: ThreadSchedule, guest_spaces: Sequence[int] = ()) -> None:
        self._intervals = schedule.intervals
        self._guest_spaces = list(guest_spaces) if schedule.has_guests else None
        self._switch_address = schedule.switch_address
        self._current = 0
        """Ordinal of the interval of the last row. Runs ahead of the decoder's after a switch."""
        self._switch_pending = False
        """The last row jumped to `__switch_to`: the next batch begins with another thread."""
        self._end_of_thread = 0
        """Ordinal of the last interval before another thread's, seen from `_current`; a cache."""

    def add_thread_columns(self, batch: B, reached: int) -> B:
        """Return the batch with thread columns. `reached`: ordinal of the decoder's interval."""
        switch_rows = self._switch_rows(batch)
        # By CR3 the decoder may begin an interval early, within the batch and before its start.
        start = self._intervals.start[reached - 1] if reached else 0
        early = sum(row < len(batch) and batch.time[row] < start for row in switch_rows)
        self._current = max(self._current, reached - early)
        first_rows, ordinals = [0], [self._current]
        for row in switch_rows:
            if row >= len(batch):
                self._switch_pending = True
            elif self._may_switch_at(batch, row):
                self._current = self._next_interval_of_other_thread()
                first_rows.append(row)
                ordinals.append(self._current)
        counts = np.diff([*first_rows, len(batch)])
        names = ("tid", "pid", *(GUEST_COLUMNS if self._guest_spaces is not None else ()))
        columns = {
            name: np.repeat(self._values_of_intervals(name, ordinals), counts) for name in names
        }
        if self._guest_spaces is not None:
            in_guest = np.zeros(len(batch), bool)
            if "space" in batch.extra_columns:
                in_guest = np.isin(batch.extra_columns["space"], self._guest_spaces)
            for name in GUEST_COLUMNS:
                found = columns[name]
                # Negative also where an interval has no guest.
                columns[name] = np.where(in_guest & (found >= 0), found, np.int32(UNKNOWN))
        return batch.with_columns(**columns)

    def add_interval_column(self, batch: B, reached: int) -> B:
        """Return the batch with what `add_thread_columns_by_interval` needs, as long as it waits
        for times.
        """
        return batch.with_columns(**{_INTERVAL_COLUMN: np.full(len(batch), reached, np.int64)})

    def add_thread_columns_by_interval(self, batch: B) -> B:
        """Return a batch from `add_interval_column` with thread columns."""
        reached = batch.extra_columns[_INTERVAL_COLUMN]
        batch = batch.without_columns([_INTERVAL_COLUMN])
        return self.add_thread_columns(batch, int(reached[0]) if len(reached) else 0)

    def _values_of_intervals(self, name: str, ordinals: Sequence[int]) -> NDArray[np.int32]:
        column = getattr(self._intervals, name)
        values = [column[ordinal - 1] if ordinal else UNKNOWN for ordinal in ordinals]
        return np.array(values, np.int32)

    def _switch_rows(self, batch: Batch) -> list[int]:
        """Rows at which `__switch_to` begins; `len(batch)`: the first row of the next batch."""
        if self._switch_address is None or not len(batch):
            return []
        pending = [0] if self._switch_pending else []
        self._switch_pending = False
        address = np.uint64(self._switch_address)
        if isinstance(batch, Rows):
            found = np.flatnonzero(batch.start == address)
        elif isinstance(batch, Instructions):
            found = np.flatnonzero(batch.ip == address)
        elif isinstance(batch, Branches):
            # The branch itself still belongs to the old thread.
            found = np.flatnonzero(batch.target == address) + 1
        else:
            return []
        return pending + found.tolist()

    def _may_switch_at(self, batch: Batch, row: int) -> bool:
        """Whether the next thread's interval can start at this row.

        `__switch_to` also runs where records are missing, so an interval that starts after this
        call is not the reason for it.
        """
        following = self._next_interval_of_other_thread()
        if following > len(self._intervals):
            return False
        return self._intervals.start[following - 1] <= _latest_time(batch, row)

    def _next_interval_of_other_thread(self) -> int:
        """Ordinal of the next interval of another thread.

        A thread that runs a virtual machine has consecutive intervals, one for each guest thread.
        """
        tids = self._intervals.tid
        if not self._current:
            return 1
        if self._end_of_thread <= self._current:
            self._end_of_thread = self._current
            while (
                self._end_of_thread < len(tids)
                and tids[self._end_of_thread] == tids[self._current - 1]
            ):
                self._end_of_thread += 1
        return self._end_of_thread + 1


def _latest_time(batch: Batch, row: int) -> int:
    """Return the latest time of a row."""
    latest = batch.extra_columns.get("latest")
    if latest is not None:
        if latest[row] < LATEST:
            return int(latest[row])
    else:
        # The row ran after the packet that gave its time and before the next packet of a branch. A
        # timing packet may come in between, so the row can be later than the next larger estimate,
        # but not than the second larger one.
        times = batch.time
        later = times[row:][times[row:] > times[row]]
        later = later[later > later[:1]]
        if len(later):
            return int(later[0])
    return int(batch.time[row]) + MAX_ESTIMATE_LAG


def threads_in(batches: Iterable[Batch]) -> list[ThreadId]:
    """Return the distinct (pid, tid) of rows with thread columns, in order of first appearance."""
    found: dict[ThreadId, None] = {}
    for batch in batches:
        first = _first_rows_of_threads(batch.extra_columns["tid"])
        pids_and_tids = (batch.extra_columns[name][first].tolist() for name in ("pid", "tid"))
        found |= dict.fromkeys(zip(*pids_and_tids, strict=True))
    return list(found)


def instructions_by_thread(batches: Iterable[Rows]) -> Counter[int]:
    """Return the number of instructions of each thread, by tid, of rows with thread columns."""
    found: Counter[int] = Counter()
    for rows in batches:
        if len(rows):
            tids = rows.extra_columns["tid"]
            first = _first_rows_of_threads(tids)
            sums = np.add.reduceat(rows.instructions, first, dtype=np.uint64)
            for tid, count in zip(tids[first].tolist(), sums.tolist(), strict=True):
                found[tid] += count
    return found


def _first_rows_of_threads(tids: NDArray[np.int32]) -> NDArray[np.intp]:
    """Return the rows at which the thread is another one than before."""
    is_first = np.ones(len(tids), np.bool_)
    is_first[1:] = tids[1:] != tids[:-1]
    return np.flatnonzero(is_first)


def schedule_of_cpu(
    intervals: IntervalList, images: Images, data: PerfData
) -> ThreadSchedule | None:
    """The schedule of a CPU's stream, or None if only one thread can have run in what was traced.

    Raises UnsupportedError if several threads can have run and the trace has no TSC packets, or the
    file no conversion between TSC and perf's clock: then switches have no place in the stream.
    """
    event = data.intel_pt
    user_code_only = event is not None and bool(event.attr.flags & AttrFlag.EXCLUDE_KERNEL)
    has_tsc = event is not None and config_value(event.attr.config, "tsc")
    has_times = has_tsc and data.time_conversion is not None
    # Any thread enters the kernel, including threads of which no code is known.
    counts_unknown_code = bool(has_times and not user_code_only)
    if not intervals.has_guests and not _has_several_threads(
        intervals, images, counts_unknown_code=counts_unknown_code
    ):
        return None
    if not has_times:
        lacking = (
            "file has no conversion from TSC to perf's clock"
            if has_tsc
            else "trace has no TSC packets (recorded with tsc=0)"
        )
        raise UnsupportedError(
            f"{data.path}: cannot attribute code to threads: several threads share a CPU, and the "
            f"{lacking}",
            hint="" if has_tsc else "record without tsc=0",
        )
    switch_address = None if user_code_only else images.kernel_address(SWITCH_FUNCTION)
    return ThreadSchedule(intervals, images, user_code_only, switch_address)


def _has_several_threads(
    intervals: IntervalList, images: Images, *, counts_unknown_code: bool
) -> bool:
    tids = (
        tid
        for pid, tid, _ in intervals.iterate_threads()
        if counts_unknown_code or images.find_image(pid) is not None
    )
    first = next(tids, None)
    return any(tid != first for tid in tids)
