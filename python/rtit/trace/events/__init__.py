"""Decoded events: an interrupt with its vector, a PEBS record with its registers, a transaction.

One event can take several packets. `decode_events` combines the raw events of single packets
(`rtit.trace.Event`) into `TraceEvent` values; `Stream.events` does so for a stream.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from rtit.trace.events.decode import (
    EventDecoder,
    describe_event,
    event_to_dict,
    select_events_by_time_and_address,
)
from rtit.trace.events.event_classes import (
    ControlFlowEvent,
    CStateEntry,
    CStateExit,
    DecodingLoss,
    DecodingResumed,
    ExecutionModeChange,
    ExecutionPaused,
    FrequencyChange,
    Interrupt,
    MaintenanceEvent,
    Overflow,
    PagingChange,
    PebsRecord,
    PtWrite,
    TraceEvent,
    TracingDisabled,
    TracingEnabled,
    TracingStopped,
    Transaction,
    TriggerEvent,
    VmcsChange,
    VmExit,
)
from rtit.trace.tables.rows import Rows

__all__ = [
    "CStateEntry",
    "CStateExit",
    "ControlFlowEvent",
    "DecodingLoss",
    "DecodingResumed",
    "ExecutionModeChange",
    "ExecutionPaused",
    "FrequencyChange",
    "Interrupt",
    "MaintenanceEvent",
    "Overflow",
    "PagingChange",
    "PebsRecord",
    "PtWrite",
    "TraceEvent",
    "TracingDisabled",
    "TracingEnabled",
    "TracingStopped",
    "Transaction",
    "TriggerEvent",
    "VmExit",
    "VmcsChange",
    "decode_events",
    "describe_event",
    "event_to_dict",
    "select_events_by_time_and_address",
]


def decode_events(
    batches: Iterable[Rows], pebs_counters: Mapping[int, str] | None = None
) -> Iterator[TraceEvent]:
    """Decode the events of all rows of a stream. `pebs_counters`: what each counter counts."""
    decoder = EventDecoder(pebs_counters or {})
    last_ip: int | None = None
    for rows in batches:
        ips = rows.buffer("last")
        for event in rows.events:
            started = event.row - rows.first
            after = ips[started - 1] if 0 < started <= len(rows) else last_ip
            yield from decoder.decode_raw_event(event, after)
        if len(rows):
            last_ip = ips[-1]
    yield from decoder.end_open_events()
