"""Threads: what they are called, whose they are, where they ran."""

from __future__ import annotations

from collections.abc import Callable

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
