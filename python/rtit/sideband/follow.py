"""One walk over the records, for all who learn from them."""

from __future__ import annotations

from rtit.image import Images, Problem
from rtit.perfdata import PerfData
from rtit.perfdata import records as perf
from rtit.sideband import spaces
from rtit.sideband.order import in_order
from rtit.sideband.threads import Threads

_MOST_THREADS = 100_000
"""Threads that are remembered, with their processes: each takes one to two kilobytes, and the file
that names it forty bytes.
"""


def follow(data: PerfData, images: Images) -> Threads:
    """Bring `images` through the times of a recording; returns its threads. Of more threads than
    can be remembered the later ones are nobody's, and `images` has the problem.
    """
    threads = Threads(data)
    known: set[int] = set()
    for time, record in in_order(data):
        tid = _begun(record)
        if tid is not None and tid not in known:
            if len(known) >= _MOST_THREADS:
                images.lacks(_too_many(len(known)))
                continue
            known.add(tid)
        spaces.apply(images, time, record)
        threads.apply(record)
        threads.endings.apply(time, record)
        threads.processes.apply(time, record)
        threads.turns.apply(time, record)
        threads.losses.apply(record)
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
