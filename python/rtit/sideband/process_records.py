"""Sideband records in order of time. Each CPU's are in order; those of several CPUs are not.

Threads: what they are called, whose they are, where they ran.

One walk over the records, for all who learn from them.
"""

from __future__ import annotations

import mmap
from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping
from sys import getsizeof

from rtit.errors import PerfDataError
from rtit.image import Images, Problem
from rtit.perfdata import PerfData
from rtit.perfdata import records as perf
from rtit.perfdata.records import FIRST_USER_TYPE, Record
from rtit.sideband import mapping_records
from rtit.sideband.guests import Guests
from rtit.sideband.jit_code import Jitted
from rtit.sideband.processes import Endings, Losses, Processes
from rtit.sideband.scheduling import Turns

_KEPT, _KEPT_BYTES = 1 << 16, 1 << 24
"""Records that are kept while they are sorted, and the bytes of all; of more only the places are,
and they are read again.
"""
_AT_ONCE = 1 << 24
"""So many bytes of pages, as far as records that are read again lie in them, stay in memory."""


def in_order(data: PerfData) -> Iterator[tuple[int, Record]]:
    """The kernel's records with their times in TSC ticks; 0 for what carries no time, or where the
    file does not say how to convert. Records of one time stay in the order of the file. Raises
    PerfDataError, also if the file changes meanwhile.
    """
    kept: list[tuple[int, Record]] = []
    size = 0
    for pair in _timed(data):
        kept.append(pair)
        size += pair[1].size
        if len(kept) > _KEPT or size > _KEPT_BYTES:
            break
    else:
        kept.sort(key=lambda pair: pair[0])
        yield from kept
        return
    kept.clear()
    yield from _read_again(data)


def _timed(data: PerfData) -> Iterator[tuple[int, Record]]:
    return ((_ticks(data, record), record) for record in data.records() if _has_time(record))


def _has_time(record: Record) -> bool:
    """Those that perf adds, AUXTRACE among them, have none, and would break the order."""
    return record.type < FIRST_USER_TYPE


def _ticks(data: PerfData, record: Record) -> int:
    convert = data.time_conversion
    when = record.sample_id.time if record.sample_id else None
    return convert.to_tsc(when) if convert is not None and when else 0


def _read_again(data: PerfData) -> Iterator[tuple[int, Record]]:
    times, offsets, ends = array("Q"), array("Q"), list[int]()
    sorted_already = True
    for records in data.records_by_part():
        for record in records:
            if not _has_time(record):
                continue
            time = _ticks(data, record)
            sorted_already = sorted_already and (not times or times[-1] <= time)
            times.append(time)
            offsets.append(record.offset)
        ends.append(len(times))
    if sorted_already:
        yield from _timed(data)
        return
    import numpy as np

    order = np.argsort(np.frombuffer(times, np.uint64), kind="stable")
    read = _AT_ONCE
    for index in order:
        if read >= _AT_ONCE:
            data.check()
            data.let_go()
            read = 0
        record = data.record_at(bisect_right(ends, index), offsets[index])
        read += record.size + mmap.PAGESIZE
        yield times[index], record
    data.check()


class Threads:
    """The threads of a recording.

    `names` has the last name (comm) of each that has one, by tid; a thread starts with the name of
    the one that made it. `processes` tells who made whom, `endings` how processes ended,
    `turns` who had each CPU when, `losses` what the buffers lack; `guests` has the threads of
    virtual machines, if the file has records of theirs. `take` says whether so many bytes more may
    be kept.
    """

    def __init__(
        self, data: PerfData | None = None, take: Callable[[int], bool] = lambda _: True
    ) -> None:
        self.names: dict[int, str] = {}
        self.endings = Endings()
        self.processes = Processes()
        self.turns = Turns(data, take)
        self.losses = Losses()
        self.guests = Guests(data, take) if data is not None and data.guest_ids else None

    def apply(self, record: perf.Record) -> None:
        """Take the next record, in order of time."""
        if isinstance(record, perf.Comm):
            self.names[record.tid] = record.comm
        elif isinstance(record, perf.Fork) and record.ptid in self.names:
            self.names.setdefault(record.tid, self.names[record.ptid])


_MOST_THREADS = 100_000
"""Numbers of threads and processes that are remembered."""
_OF_NUMBER = 192
_OF_PROCESS = 448
_OF_ENDING = 448
"""Bytes that one takes, about, one life of a process, and what is told of its end."""
_NAME = 128
"""Bytes that are reckoned in these for a name."""


def follow(data: PerfData, images: Images, jit: Mapping[str, str] | None = None) -> Threads:
    """Bring `images` through the times of a recording; returns its threads. `jit` are files that
    say what code programs made, with what they are to be called. Of more threads than can be
    remembered the later ones are nobody's, and `images` has the problem. Threads of virtual
    machines are apart: they have numbers that threads here have, too.
    """
    threads = Threads(data, images.take)
    known: set[tuple[int, int]] = set()
    if images.kernel is not None:
        try:
            for address, code in data.bpf_code():
                images.kernel.changes.code(address, code)
        except PerfDataError as error:
            images.kernel.lacks("BPF programs", str(error))
    pids = {getattr(record, "pid", -1) for record in data.records()} if jit else set()
    jitted = Jitted(images, jit or {}, pids)
    guests = threads.guests
    refused: Problem | None = None
    for time, record in in_order(data):
        jitted.until(time)
        machine = guests.machine(record) if guests is not None else 0
        named = {(machine, number) for number in _named(record)}
        tells = bool(named) or isinstance(record, perf.Exit)
        if tells and not _fits(images, record, len(named - known), len(known)):
            # one problem, with the count that there was first
            refused = refused or _too_many(len(known))
            images.lacks(refused)
            if not machine and isinstance(record, perf.Fork | perf.Mmap | perf.Mmap2 | perf.Comm):
                images.lose(time, record.pid)
            continue
        known |= named
        if guests is not None and machine:
            guests.apply(images, time, record)
            continue
        mapping_records.apply(images, time, record)
        threads.apply(record)
        threads.endings.apply(time, record)
        threads.processes.apply(time, record)
        threads.turns.apply(time, record)
        too_many = threads.losses.apply(record, images.take)
        if too_many is not None:
            images.lacks(Problem("unreadable", "losses", too_many))
    jitted.finish()
    images.finish()
    for turns in (threads.turns, *(guests.turns if guests is not None else ())):
        if turns.beyond:
            images.lacks(_too_many_turns(len(turns)))
    return threads


def _named(record: perf.Record) -> tuple[int, ...]:
    """The threads and processes that a record speaks of."""
    if isinstance(record, perf.Fork):
        return record.tid, record.pid, record.ptid, record.ppid
    if isinstance(record, perf.Comm | perf.Mmap | perf.Mmap2 | perf.ItraceStart):
        return record.tid, record.pid
    who = record.sample_id
    if isinstance(record, perf.TextPoke) and who is not None:
        return tuple(number for number in (who.tid, who.pid) if number is not None)
    return ()


def _fits(images: Images, record: perf.Record, new: int, known: int) -> bool:
    """Whether there is room for what a record tells, with so many numbers that are new."""
    size = (_OF_NUMBER + _OF_PROCESS) * new
    if isinstance(record, perf.Fork) and record.pid == record.tid:
        size += _OF_PROCESS
    elif isinstance(record, perf.Exit) and record.ending is not None:
        size += _OF_ENDING
    elif isinstance(record, perf.Comm):
        size += max(0, getsizeof(record.comm) - _NAME)
    if known + new > _MOST_THREADS:
        return False
    return not size or images.take(size)


def _too_many_turns(count: int) -> Problem:
    message = f"there are more than {count:,}: who had the CPUs then is not known"
    return Problem("unreadable", "turns of threads", message, count)


def _too_many(count: int) -> Problem:
    message = f"there are more than {count:,}: what later ones are and ran is not known"
    return Problem("unreadable", "threads", message, count)
