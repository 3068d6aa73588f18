"""Processes: who started whom, what each was called, how it ended."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass, field

from rtit.perfdata import records as perf
from rtit.sideband.endings import Ended


@dataclass(slots=True, eq=False)
class Process:
    """One life of process `pid`: a number that is used again is a process of its own.

    `parent` is the process that made it, None if the file does not say; `since`: when (TSC ticks, 0
    for one that was there before). `name` is the last of its first thread, "" if it had none;
    `threads`: the thread ids that it ever had; `traced`: a trace of it began; `ended`: how it
    ended, None if that is not known.
    """

    pid: int
    parent: Process | None = field(repr=False)
    since: int
    name: str = ""
    threads: set[int] = field(default_factory=set)
    traced: bool = False
    ended: Ended | None = None


class Processes:
    """The processes of a recording; a parent comes before those that it made."""

    def __init__(self) -> None:
        self._all: list[Process] = []
        self._now: dict[int, Process] = {}

    def apply(self, time: int, record: perf.Record) -> None:
        """Take the next record, in order of time (TSC ticks)."""
        if isinstance(record, perf.Fork):
            if record.tid == record.pid:
                parent = self._known(record.ppid) if record.ppid > 0 else None
                self._begin(record.pid, parent, time)
            self._known(record.pid).threads.add(record.tid)
        elif isinstance(record, perf.Comm):
            process = self._known(record.pid)
            if record.tid == record.pid:
                process.name = record.comm
        elif isinstance(record, perf.ItraceStart):
            process = self._known(record.pid)
            process.threads.add(record.tid)
            process.traced = True

    def all(self, endings: Iterable[Ended]) -> list[Process]:
        """All of them, with these ends."""
        lives: dict[int, list[Process]] = {}
        for process in self._all:
            process.ended = None
            lives.setdefault(process.pid, []).append(process)
        for ended in endings:
            own = lives.get(ended.pid, [])
            place = bisect_right(own, ended.time, key=lambda each: each.since)
            if place:
                own[place - 1].ended = ended
        return list(self._all)

    def _known(self, pid: int) -> Process:
        return self._now.get(pid) or self._begin(pid, None, 0)

    def _begin(self, pid: int, parent: Process | None, time: int) -> Process:
        name = parent.name if parent is not None else ""
        process = Process(pid, parent, time, name, {pid})
        self._all.append(process)
        self._now[pid] = process
        return process
