"""What the kernel says was lost of the buffers: flags of AUX records."""

from __future__ import annotations

from typing import NamedTuple

from rtit.perfdata import Queue
from rtit.perfdata import records as perf
from rtit.perfdata.records import AuxFlag

WORDS = {
    AuxFlag.TRUNCATED: "the AUX buffer was full: what came next is missing",
    AuxFlag.PARTIAL: "the AUX data up to here has gaps that nothing counts",
    AuxFlag.COLLISION: "somebody else had the trace unit: what came next is missing",
}
"""What is a loss; OVERWRITE is what snapshots do."""


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

    def apply(self, record: perf.Record) -> None:
        """Take the next record."""
        who = record.sample_id
        if not isinstance(record, perf.Aux) or who is None:
            return
        for flag in WORDS:
            if record.flags & flag:
                loss = Loss(record.aux_offset + record.length, flag)
                if who.cpu is not None:
                    self._found.setdefault(Queue(who.cpu, -1), []).append(loss)
                if who.tid is not None:
                    self._found.setdefault(Queue(-1, who.tid), []).append(loss)

    def of(self, queue: Queue) -> list[Loss]:
        """Those of one buffer."""
        return self._found.get(queue, [])
