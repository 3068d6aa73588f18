"""One walk over the records, for all who learn from them."""

from __future__ import annotations

from collections.abc import Mapping
from sys import getsizeof

from rtit.errors import PerfDataError
from rtit.image import Images, Problem
from rtit.perfdata import PerfData
from rtit.perfdata import records as perf
from rtit.sideband import spaces
from rtit.sideband.jitted import Jitted
from rtit.sideband.order import in_order
from rtit.sideband.threads import Threads

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
        spaces.apply(images, time, record)
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
