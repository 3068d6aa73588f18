"""Threads: what they are called, whose they are, where they ran."""

from __future__ import annotations

from rtit.perfdata import PerfData
from rtit.perfdata import records as perf
from rtit.sideband.endings import Endings
from rtit.sideband.guests import Guests
from rtit.sideband.losses import Losses
from rtit.sideband.processes import Processes
from rtit.sideband.turns import Turns


class Threads:
    """The threads of a recording.

    `names` has the last name (comm) of each that has one, by tid; a thread starts with the name of
    the one that made it. `processes` tells who made whom, `endings` how processes ended,
    `turns` who had each CPU when, `losses` what the buffers lack; `guests` has the threads of
    virtual machines, if the file has records of theirs.
    """

    def __init__(self, data: PerfData | None = None) -> None:
        self.names: dict[int, str] = {}
        self.endings = Endings()
        self.processes = Processes()
        self.turns = Turns(data)
        self.losses = Losses()
        self.guests = Guests(data) if data is not None and data.guest_ids else None
        self._first_on: dict[int, tuple[int, int]] = {}

    def first_on(self, cpu: int) -> tuple[int, int]:
        """(pid, tid) of the first thread that was traced on a CPU; -1 where the file does not
        say.
        """
        return self._first_on.get(cpu, (-1, -1))

    def apply(self, record: perf.Record) -> None:
        """Take the next record, in order of time."""
        if isinstance(record, perf.Comm):
            self.names[record.tid] = record.comm
        elif isinstance(record, perf.Fork):
            if record.ptid in self.names:
                self.names.setdefault(record.tid, self.names[record.ptid])
        elif isinstance(record, perf.ItraceStart):
            cpu = record.sample_id.cpu if record.sample_id else None
            if cpu is not None:
                self._first_on.setdefault(cpu, (record.pid, record.tid))
