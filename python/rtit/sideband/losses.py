"""What the kernel says was lost of the buffers: flags of AUX records."""

from __future__ import annotations

from collections.abc import Callable
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
