"""Processes of a recording: parents, names, exits, and the AUX data that the kernel lost.

`ProcessTable` follows FORK, COMM and ITRACE_START. A process id can be used again, so each use is a
`Process` of its own. `ProcessExits` finds the exit status of each process in the EXIT records of
its threads. `AuxLosses` lists, for each AUX buffer, where the flags of AUX records report lost
data.

All three take records in order of time, with `apply`.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from rtit.image import MemoryBudget
from rtit.perfdata import AuxBuffer, ExitStatus
from rtit.perfdata import records as perf
from rtit.perfdata.records import AuxFlag


@dataclass(slots=True, eq=False)
class Process:
    """One process, from its start to its exit; a later process with the same pid is another one."""

    pid: int
    parent: Process | None = field(repr=False)
    """None if the file does not name the parent."""
    start: int
    """TSC ticks; 0: the process started before the recording."""
    name: str = ""
    """The last name of the first thread; "" if unknown."""
    threads: set[int] = field(default_factory=set)
    """Ids of all threads that the process ever had."""
    is_traced: bool = False
    exit: ProcessExit | None = None
    """None if it is unknown how the process ended."""


class ProcessTable:
    """The processes of a recording, each parent before its children."""

    def __init__(self) -> None:
        self._all: list[Process] = []
        self._running: dict[int, Process] = {}

    def apply_record(self, time: int, record: perf.Record) -> None:
        """Add what the next record says; `time` is in TSC ticks."""
        if isinstance(record, perf.Fork):
            if record.tid == record.pid:
                parent = self._process_of_pid(record.ppid) if record.ppid > 0 else None
                self._start_process(record.pid, parent, time)
            self._process_of_pid(record.pid).threads.add(record.tid)
        elif isinstance(record, perf.Comm):
            process = self._process_of_pid(record.pid)
            if record.tid == record.pid:
                process.name = record.comm
        elif isinstance(record, perf.ItraceStart):
            process = self._process_of_pid(record.pid)
            process.threads.add(record.tid)
            process.is_traced = True

    def with_exits(self, exits: Iterable[ProcessExit]) -> list[Process]:
        """Return all processes, with `exit` set from `exits`."""
        by_pid: dict[int, list[Process]] = {}
        for process in self._all:
            process.exit = None
            by_pid.setdefault(process.pid, []).append(process)
        for each in exits:
            candidates = by_pid.get(each.pid, [])
            index = bisect_right(candidates, each.time, key=lambda process: process.start)
            if index:
                candidates[index - 1].exit = each
        return list(self._all)

    def _process_of_pid(self, pid: int) -> Process:
        return self._running.get(pid) or self._start_process(pid, None, 0)

    def _start_process(self, pid: int, parent: Process | None, time: int) -> Process:
        name = parent.name if parent is not None else ""
        process = Process(pid, parent, time, name, {pid})
        self._all.append(process)
        self._running[pid] = process
        return process


@dataclass(frozen=True, slots=True)
class ProcessExit:
    """Process `pid` ended at `time` (TSC ticks).

    `tid` is the thread that took the signal; without one the first thread, if its exit is recorded.
    """

    pid: int
    tid: int
    time: int
    exit_status: ExitStatus

    def __str__(self) -> str:
        """`process 12 ended: exit code 0`; a signal with its thread, if that is not the first."""
        thread = f" in thread {self.tid}" if self.tid != self.pid else ""
        return f"process {self.pid} ended{thread}: {self.exit_status}"


class ProcessExits:
    """One `ProcessExit` for each process with a recorded exit status."""

    def __init__(self) -> None:
        self._found: list[ProcessExit] = []
        self._index: dict[int, int] = {}
        """pid of the current process -> index into `_found`."""
        self.instructions: dict[int, int] = {}
        """Number of traced instructions of each thread that has ended, by tid, if recorded."""

    @property
    def exits_in_order(self) -> list[ProcessExit]:
        """In order of the first recorded exit of one of their threads."""
        return list(self._found)

    def apply_record(self, time: int, record: perf.Record) -> None:
        """Add what the next record says; `time` is in TSC ticks."""
        if isinstance(record, perf.Fork):
            if record.tid == record.pid:  # a new process, perhaps with the pid of an ended one
                self._index.pop(record.pid, None)
        elif isinstance(record, perf.Exit):
            if record.instructions is not None:
                before = self.instructions.get(record.tid, 0)
                self.instructions[record.tid] = before + record.instructions
            status = record.exit_status
            if status is None or not (status.of_process or record.tid == record.pid):
                return
            found = ProcessExit(record.pid, record.tid, time, status)
            index = self._index.setdefault(record.pid, len(self._found))
            if index == len(self._found):
                self._found.append(found)
            elif _exit_significance(found) > _exit_significance(self._found[index]):
                self._found[index] = found


def _exit_significance(found: ProcessExit) -> tuple[bool, bool, bool]:
    status = found.exit_status
    return status.took_signal, status.of_process, found.tid == found.pid


LOSS_DESCRIPTIONS = {
    AuxFlag.TRUNCATED: "the AUX buffer was full: the data after this is missing",
    AuxFlag.PARTIAL: "the AUX data before this has gaps of unknown size",
    AuxFlag.COLLISION: "another user had the trace unit: the data after this is missing",
}
"""Flags that report lost data. OVERWRITE is not one: snapshots set it."""


class AuxLoss(NamedTuple):
    """Data is missing at `offset`, in bytes of AUX data since the buffer was opened."""

    offset: int
    reason: AuxFlag

    def __str__(self) -> str:
        return LOSS_DESCRIPTIONS[self.reason]


class AuxLosses:
    """The losses of each AUX buffer, of a thread or a CPU, in order of the records."""

    def __init__(self, budget: MemoryBudget) -> None:
        self._budget = budget
        self._found: dict[AuxBuffer, list[AuxLoss]] = {}
        self._count = 0

    def apply_record(self, record: perf.Record) -> str | None:
        """Add the losses of the next record.

        Returns a message if they are too many to keep, else None.
        """
        sample_id = record.sample_id
        if not isinstance(record, perf.Aux) or sample_id is None:
            return None
        limits = self._budget.limits
        for flag in LOSS_DESCRIPTIONS:
            if record.flags & flag:
                if self._count >= limits.max_losses or not self._budget.reserve_memory(limits.loss):
                    return (
                        f"there are more than {self._count:,}: the places of later ones are unknown"
                    )
                self._count += 1
                loss = AuxLoss(record.aux_offset + record.length, flag)
                if sample_id.cpu is not None:
                    self._found.setdefault(AuxBuffer(sample_id.cpu, -1), []).append(loss)
                if sample_id.tid is not None:
                    self._found.setdefault(AuxBuffer(-1, sample_id.tid), []).append(loss)
        return None

    def for_buffer(self, buffer: AuxBuffer) -> list[AuxLoss]:
        """Return the losses of one buffer."""
        return self._found.get(buffer, [])
