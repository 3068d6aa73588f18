"""How processes ended, from what the records of their threads say."""

from __future__ import annotations

from dataclasses import dataclass

from rtit.perfdata import Ending
from rtit.perfdata import records as perf


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
