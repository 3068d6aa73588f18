"""Processes: who started whom, what each was called, how it ended.

How processes ended, from what the records of their threads say.

What the kernel says was lost of the buffers: flags of AUX records.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from rtit.perfdata import Ending, Queue
from rtit.perfdata import records as perf
from rtit.perfdata.records import AuxFlag


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


@dataclass(frozen=True, slots=True)
class Ended:
    """Process `pid` ended at `time` (TSC ticks) as `ending` says, in thread `tid`: the one that
    took the signal, else its first, where both are known.
    """

    pid: int
    tid: int
    time: int
    ending: Ending

    def __str__(self) -> str:
        """`process 12 ended: exit code 0`; a signal with its thread, if that is another."""
        thread = f" in thread {self.tid}" if self.tid != self.pid else ""
        return f"process {self.pid} ended{thread}: {self.ending}"


class Endings:
    """One `Ended` for each process whose end is known."""

    def __init__(self) -> None:
        self._found: list[Ended] = []
        self._place: dict[int, int] = {}
        self.instructions: dict[int, int] = {}
        """How many were traced of each thread that has ended, by tid, where that is known."""

    @property
    def processes(self) -> list[Ended]:
        """In the order of their first threads that ended."""
        return list(self._found)

    def apply(self, time: int, record: perf.Record) -> None:
        """Take the next record, in order of time (TSC ticks)."""
        if isinstance(record, perf.Fork):
            if record.tid == record.pid:  # a new process, maybe under an old number
                self._place.pop(record.pid, None)
        elif isinstance(record, perf.Exit):
            if record.instructions is not None:
                before = self.instructions.get(record.tid, 0)
                self.instructions[record.tid] = before + record.instructions
            ending = record.ending
            if ending is None or not (ending.of_process or record.tid == record.pid):
                return
            ended = Ended(record.pid, record.tid, time, ending)
            place = self._place.setdefault(record.pid, len(self._found))
            if place == len(self._found):
                self._found.append(ended)
            elif _weight(ended) > _weight(self._found[place]):
                self._found[place] = ended


def _weight(ended: Ended) -> tuple[bool, bool, bool]:
    ending = ended.ending
    return ending.took_signal, ending.of_process, ended.tid == ended.pid


WORDS = {
    AuxFlag.TRUNCATED: "the AUX buffer was full: what came next is missing",
    AuxFlag.PARTIAL: "the AUX data up to here has gaps that nothing counts",
    AuxFlag.COLLISION: "somebody else had the trace unit: what came next is missing",
}
"""What is a loss; OVERWRITE is what snapshots do."""


_MOST = 1 << 17
"""Losses that are kept of a recording."""
_OF_LOSS = 256
"""Bytes that one takes, about."""


class Loss(NamedTuple):
    """At `offset` bytes of AUX data of a buffer, counted from when it was opened, for `reason`."""

    offset: int
    reason: AuxFlag

    def __str__(self) -> str:
        return WORDS[self.reason]


class Losses:
    """The losses of all buffers, of a thread or a CPU, in the order of the records."""

    def __init__(self) -> None:
        self._found: dict[Queue, list[Loss]] = {}
        self._count = 0

    def apply(self, record: perf.Record, take: Callable[[int], bool]) -> str | None:
        """Take the next record, if there is room for so many bytes (`take`). What is wrong if it
        has a loss more than are kept, else None.
        """
        who = record.sample_id
        if not isinstance(record, perf.Aux) or who is None:
            return None
        for flag in WORDS:
            if record.flags & flag:
                if self._count >= _MOST or not take(_OF_LOSS):
                    kept = f"{self._count:,}"
                    return f"there are more than {kept}: where the later ones are is not told"
                self._count += 1
                loss = Loss(record.aux_offset + record.length, flag)
                if who.cpu is not None:
                    self._found.setdefault(Queue(who.cpu, -1), []).append(loss)
                if who.tid is not None:
                    self._found.setdefault(Queue(-1, who.tid), []).append(loss)
        return None

    def of(self, queue: Queue) -> list[Loss]:
        """Those of one buffer."""
        return self._found.get(queue, [])
