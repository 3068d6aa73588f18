"""One walk over the records, for all who learn from them."""

from __future__ import annotations

from collections.abc import Mapping

from rtit.errors import PerfDataError
from rtit.image import Images, Problem
from rtit.perfdata import PerfData
from rtit.perfdata import records as perf
from rtit.sideband import spaces
from rtit.sideband.jitted import Jitted
from rtit.sideband.order import in_order
from rtit.sideband.threads import Threads

_MOST_THREADS = 100_000
"""Threads that are remembered, with their processes: each takes one to two kilobytes, and the file
that names it forty bytes.
"""


def follow(data: PerfData, images: Images, jit: Mapping[str, str] | None = None) -> Threads:
    """Bring `images` through the times of a recording; returns its threads. `jit` are files that
    say what code programs made, with what they are to be called. Of more threads than can be
    remembered the later ones are nobody's, and `images` has the problem. Threads of virtual
    machines are apart: they have numbers that threads here have, too.
    """
    threads = Threads(data)
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
    for time, record in in_order(data):
        jitted.until(time)
        machine = guests.machine(record) if guests is not None else 0
        tid = _begun(record)
        if tid is not None and (machine, tid) not in known:
            if len(known) >= _MOST_THREADS:
                images.lacks(_too_many(len(known)))
                continue
            known.add((machine, tid))
        if guests is not None and machine:
            guests.apply(images, time, record)
            continue
        spaces.apply(images, time, record)
        threads.apply(record)
        threads.endings.apply(time, record)
        threads.processes.apply(time, record)
        threads.turns.apply(time, record)
        too_many = threads.losses.apply(record)
        if too_many is not None:
            images.lacks(Problem("unreadable", "losses", too_many))
    jitted.finish()
    images.finish()
    return threads


def _begun(record: perf.Record) -> int | None:
    """The thread that a record speaks of."""
    if isinstance(record, perf.Comm | perf.Fork | perf.Mmap | perf.Mmap2 | perf.ItraceStart):
        return record.tid
    if isinstance(record, perf.TextPoke) and record.sample_id is not None:
        return record.sample_id.tid
    return None


def _too_many(count: int) -> Problem:
    message = f"there are more than {count:,}: what later ones are and ran is not known"
    return Problem("unreadable", "threads", message, count)
