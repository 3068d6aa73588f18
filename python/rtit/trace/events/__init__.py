"""Events with their meaning: an interrupt with its vector, a PEBS record with its registers.

`happenings` makes them from rows; `Stream.events` does it for a stream. What they are: `values`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from rtit.trace.events.decode import Join, as_json, chosen, describe
from rtit.trace.events.values import (
    ControlEvent,
    Disabled,
    Enabled,
    Frequency,
    Happening,
    Interrupt,
    Loss,
    Maintenance,
    Mode,
    Overflow,
    Paging,
    Paused,
    PebsRecord,
    PtWrite,
    Resumed,
    Sleep,
    Stopped,
    Transaction,
    Trigger,
    Vmcs,
    VmExit,
    Wake,
)
from rtit.trace.tables.rows import Rows

__all__ = [
    "ControlEvent",
    "Disabled",
    "Enabled",
    "Frequency",
    "Happening",
    "Interrupt",
    "Loss",
    "Maintenance",
    "Mode",
    "Overflow",
    "Paging",
    "Paused",
    "PebsRecord",
    "PtWrite",
    "Resumed",
    "Sleep",
    "Stopped",
    "Transaction",
    "Trigger",
    "VmExit",
    "Vmcs",
    "Wake",
    "as_json",
    "chosen",
    "describe",
    "happenings",
]


def happenings(
    chunks: Iterable[Rows], counters: Mapping[int, str] | None = None
) -> Iterator[Happening]:
    """What happened, in the order of the stream, from all rows of it; `counters` names what each
    counter of PEBS counts.
    """
    join = Join(counters or {})
    last: int | None = None
    for rows in chunks:
        ips = rows.buffer("last")
        for event in rows.events:
            before = event.row - rows.first
            after = ips[before - 1] if 0 < before <= len(rows) else last
            yield from join.see(event, after)
        if len(rows):
            last = ips[-1]
    yield from join.flush()
