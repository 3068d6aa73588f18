"""Combines the events of single packets into `TraceEvent` values (section 33.4.1), and prints them.

`EventDecoder` is a state machine. An event that more packets can complete is *open*:

* EVD packets wait for their CFE; a CFE with the IP bit waits for the FUP and TIP of the event.
* MODE.TSX waits for its FUP; an abort also for its TIP.
* OVF waits for the FUP at which tracing continues.
* CStateTracker packets and PEBS blocks have builders of their own in `event_classes`.

A packet that does not belong to the open event ends it, and it is reported as it is. State updates
(PIP, VMCS, MODE.Exec, CBR, MNT) may come between the packets of an event; they are queued and
reported after it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields
from itertools import islice

from rtit.packets import CFE_TYPES
from rtit.trace.events import event_classes
from rtit.trace.events.event_classes import CStateTracker, PebsRecordBuilder, TraceEvent
from rtit.trace.tables.batch import ErrorClass, EventKind
from rtit.trace.tables.rows import Event
from rtit.trace.tables.selection import RowFilter


def select_events_by_time_and_address(
    events: Iterator[TraceEvent], row_filter: RowFilter
) -> Iterator[TraceEvent]:
    """Return the events with a selected time and address, limited by `head` or `tail`.

    An event without an address matches no address range.
    """
    if row_filter.selects_by_time or row_filter.ranges is not None:
        events = (each for each in events if _is_event_selected(each, row_filter))
    if row_filter.head is not None:
        return islice(events, row_filter.head)
    if row_filter.tail is not None:
        return iter(deque(events, maxlen=row_filter.tail))
    return events


def _is_event_selected(event: TraceEvent, row_filter: RowFilter) -> bool:
    first, last = row_filter.times
    if not first <= event.time <= last:
        return False
    if row_filter.ranges is None:
        return True
    address = event.address
    return address is not None and any(
        each.start <= address < each.end and each.since <= event.time < each.until
        for each in row_filter.ranges
    )


_POSITION_FIELDS = frozenset({"time", "offset", "row"})
_C_STATE_FIELDS = frozenset({"state", "last", "deepest"})
_HEXADECIMAL_FIELDS = frozenset(
    {"at", "to", "ip", "after", "cr2", "cr3", "pointer", "value", "payload", "qualification"}
)


def describe_event(event: TraceEvent) -> str:
    """Return the name of an event and its fields as `name=value`, without time and position."""
    words = [str(getattr(event, "name", event.event_name))]
    for field in fields(event):
        value = getattr(event, field.name)
        if (
            field.name in _POSITION_FIELDS
            or field.name == "name"
            or value is None
            or value is False
        ):
            continue
        words.append(_format_field(field.name, value))
    return " ".join(words)


def event_to_dict(event: TraceEvent) -> dict[str, object]:
    """A dict for `json.dumps`: the name as `event`, and all fields. Unknown values are None."""
    values_by_name = {field.name: getattr(event, field.name) for field in fields(event)}
    return {"event": event.event_name, **values_by_name}


def _format_field(name: str, value: object) -> str:
    if value is True:
        return name
    if isinstance(value, dict):
        return " ".join(f"{key.replace(' ', '_')}={each:#x}" for key, each in value.items())
    if isinstance(value, tuple):
        return f"{name}={','.join(map(str, value)) or 'none'}".replace(" ", "_")
    if isinstance(value, int) and name in _C_STATE_FIELDS:
        return f"{name}=C{(value + 1) & 0xF}"
    if isinstance(value, int) and name in _HEXADECIMAL_FIELDS:
        return f"{name}={value:#x}"
    return f"{name}={value}".replace(" ", "_")


_STATE_UPDATES = frozenset(
    {EventKind.PAGING, EventKind.VMCS, EventKind.MODE_EXEC, EventKind.CBR, EventKind.MNT}
)
"""Events that may come between the packets of another event."""
_POWER = frozenset({EventKind.MWAIT, EventKind.PWRE, EventKind.EXSTOP, EventKind.PWRX})
_BLOCK = frozenset({EventKind.BLOCK_BEGIN, EventKind.BLOCK_ITEM, EventKind.BLOCK_END})
_MAX_PACKETS = 64
"""Queued packets of one event. No valid event has more; this bounds memory."""
_BITS = {0: 16, 1: 64, 2: 32}
_PFA, _VMXQ, _VMXR = 0, 1, 2
_INTR, _VMEXIT, _VMEXIT_INTR, _UINTR = 1, 8, 9, 0xC
_WITH_VECTOR = frozenset({0x5, 0xE})


class EventDecoder:
    """Call `add` for every raw event in order, and `flush` at the end.

    `pebs_counters`: what each PEBS counter counts.
    """

    def __init__(self, pebs_counters: Mapping[int, str]) -> None:
        self._data: dict[int, Event] = {}  # EVD by type, until their CFE
        self._controls: list[tuple[Event, dict[int, Event]]] = []  # CFEs without an IP yet
        self._transaction: Event | None = None
        self._overflow: tuple[Event, int | None] | None = None
        self._queued: list[TraceEvent] = []
        self._power = CStateTracker()
        self._records = PebsRecordBuilder(pebs_counters)
        self._ratio = self._mode = -1
        self._off: str | None = None  # why tracing is off

    def decode_raw_event(self, event: Event, after: int | None) -> Iterator[TraceEvent]:
        """The events that a raw event completes. `after`: IP of the last instruction before it."""
        kind = event.kind
        if len(self._queued) + len(self._controls) > _MAX_PACKETS:
            yield from self._release_open_events(event)
        if kind in _STATE_UPDATES and self._has_open_events():
            self._queued += self._single_packet_event(event)
        elif kind is EventKind.EVD:
            self._data[event.ip] = event
        elif kind is EventKind.CFE:
            yield from self._handle_cfe(event)
        elif kind in (EventKind.ASYNC, EventKind.ASYNC_DISABLED):
            yield from self._add_asynchronous(event)
        elif kind is EventKind.RESUMED and self._overflow is not None:
            yield from self._end_overflow(event, event.ip)
        elif kind in _BLOCK:
            yield from self._release_open_events(event)
            yield from self._records.add_pebs_packet(event)
        else:
            if kind in _POWER:
                yield from self._release_open_events()
                yield from self._power.add_power_event(event)
                return
            yield from self.end_open_events(event)
            if kind is EventKind.MODE_TSX:
                self._transaction = event
            elif kind is EventKind.OVERFLOW:
                self._overflow = event, after
            else:
                yield from self._single_packet_event(event)

    def end_open_events(self, event: Event | None = None) -> Iterator[TraceEvent]:
        """Yield the open events that end before `event`, or at the end of the stream."""
        if event is not None and event.kind is EventKind.PSB:
            yield from self._end_at_psb(event)
        yield from self._release_open_events(event)
        yield from self._power.report_pending_sleep()
        if event is None or event.kind in (EventKind.ERROR, EventKind.PSB):
            yield from self._records.report_truncated_record()

    def _has_open_events(self) -> bool:
        aborts = self._transaction is not None and self._transaction.value & 2
        return bool(self._controls or self._data or aborts or self._overflow)

    def _release_open_events(self, event: Event | None = None) -> Iterator[TraceEvent]:
        if self._overflow is not None:
            yield from self._end_overflow(event or self._overflow[0], None)
        if self._transaction is not None:
            yield self._transaction_event(self._transaction, None)
        for control, data in self._controls:
            yield _build_event_of_cfe(control, data, None, None)
        yield from self._queued
        self._transaction, self._controls, self._queued, self._data = None, [], [], {}

    def _handle_cfe(self, event: Event) -> Iterator[TraceEvent]:
        data, self._data = self._data, {}
        if event.ip:
            yield from self._release_open_events(event)
            yield _build_event_of_cfe(event, data, event.ip, None)
        else:
            if self._overflow is not None or self._transaction is not None:
                yield from self._release_open_events(event)
            self._controls.append((event, data))

    def _add_asynchronous(self, event: Event) -> Iterator[TraceEvent]:
        """Yield a FUP and a TIP or TIP.PGD: the last packets of an event."""
        off = event.kind is EventKind.ASYNC_DISABLED
        at, to = event.ip or None, event.value or None
        is_interrupt = True
        if self._transaction is not None and self._transaction.value & 2:
            yield self._transaction_event(self._transaction, to)
            self._transaction = None
        elif self._controls:
            *others, (control, data) = self._controls
            for other, other_data in others:
                yield _build_event_of_cfe(other, other_data, at, None)
            yield _build_event_of_cfe(control, data, at, to)
        elif not off or to is not None:
            yield from self._release_open_events(event)
            position = _position_fields(event)
            yield event_classes.Interrupt(**position, at=at, to=to, user=False)
        else:
            yield from self._release_open_events(event)
            is_interrupt = False
        self._controls = []
        if off:
            why = "filter" if to is not None else "context" if is_interrupt else "event or TraceEn"
            self._off = why
            yield event_classes.TracingDisabled(**_position_fields(event), at=at, to=to, why=why)
        yield from self._queued
        self._queued = []

    def _end_overflow(self, event: Event, ip: int | None) -> Iterator[TraceEvent]:
        if self._overflow is not None:
            lost, after = self._overflow
            self._overflow = None
            self._off = "overflow" if ip is None else None
            yield event_classes.Overflow(
                **_position_fields(lost), until=event.time, after=after, ip=ip
            )
            yield from self._queued
            self._queued = []

    def _end_at_psb(self, event: Event) -> Iterator[TraceEvent]:
        transaction = self._transaction
        if transaction is not None and transaction.offset == event.offset:
            step = "inside" if transaction.value & 1 else "outside"
            yield event_classes.Transaction(
                **_position_fields(transaction), step=step, at=transaction.ip or None
            )
            self._transaction = None

    @staticmethod
    def _transaction_event(event: Event, to: int | None) -> TraceEvent:
        step = "abort" if event.value & 2 else "begin" if event.value & 1 else "commit"
        return event_classes.Transaction(
            **_position_fields(event), step=step, at=event.ip or None, to=to
        )

    def _single_packet_event(self, event: Event) -> Iterator[TraceEvent]:
        """Yield the event of a single packet."""
        if event.kind is EventKind.CBR:
            if event.value != self._ratio:
                self._ratio = event.value
                yield event_classes.FrequencyChange(**_position_fields(event), ratio=event.value)
        elif event.kind is EventKind.MODE_EXEC:
            if event.value != self._mode:
                self._mode = event.value
                bits, flag = _BITS.get(event.value & 3, 0), bool(event.value & 4)
                yield event_classes.ExecutionModeChange(
                    **_position_fields(event), at=event.ip or None, bits=bits, interrupts=flag
                )
        elif event.kind is EventKind.DISABLED:
            to = event.value or None
            self._off = "context" if to is None else "filter"
            yield event_classes.TracingDisabled(
                **_position_fields(event), at=event.ip or None, to=to, why=self._off
            )
        elif event.kind is EventKind.ENABLED:
            yield event_classes.TracingEnabled(
                **_position_fields(event), ip=event.ip, why=self._off
            )
            self._off = None
        elif event.kind is EventKind.STOPPED:
            self._off = "stop"
            yield event_classes.TracingStopped(**_position_fields(event))
        elif event.kind is EventKind.ERROR and event.value == ErrorClass.HARDWARE_LOSS:
            return  # The OVF reports it.
        elif event.kind in _SINGLE_PACKET_EVENTS:
            yield _SINGLE_PACKET_EVENTS[event.kind](event)


def _position_fields(event: Event) -> dict[str, int]:
    return {"time": event.time, "offset": event.offset, "row": event.row}


def _build_event_of_cfe(
    event: Event, data: dict[int, Event], at: int | None, to: int | None
) -> TraceEvent:
    """Return the event of a CFE and of the EVDs before it."""
    kind, vector = event.value & 0xFF, event.value >> 8
    payload = {number: each.value for number, each in data.items()}
    position = _position_fields(min([event, *data.values()], key=lambda each: each.offset))
    if kind in (_INTR, _UINTR):
        return event_classes.Interrupt(
            **position, at=at, to=to, vector=vector, cr2=payload.get(_PFA), user=kind == _UINTR
        )
    if kind in (_VMEXIT, _VMEXIT_INTR):
        return event_classes.VmExit(
            **position,
            at=at,
            to=to,
            vector=vector if kind == _VMEXIT_INTR else None,
            reason=payload.get(_VMXR),
            qualification=payload.get(_VMXQ),
        )
    name = CFE_TYPES.get(kind, str(kind))
    return event_classes.ControlFlowEvent(
        **position,
        name=name,
        at=at,
        to=to,
        vector=vector if kind in _WITH_VECTOR else None,
    )


def _build_trigger_event(event: Event) -> TraceEvent:
    value = event.value
    return event_classes.TriggerEvent(
        **_position_fields(event),
        at=event.ip or None,
        triggers=value & 0xFF,
        multiple=bool(value & 1 << 8),
        count=value >> 16 if value & 1 << 9 else None,
    )


def _build_loss_event(event: Event) -> TraceEvent:
    kind = ErrorClass(event.value).label
    return event_classes.DecodingLoss(**_position_fields(event), kind=kind, value=event.ip)


_SINGLE_PACKET_EVENTS: dict[EventKind, Callable[[Event], TraceEvent]] = {
    EventKind.RESUMED: lambda event: event_classes.DecodingResumed(
        **_position_fields(event), ip=event.ip
    ),
    EventKind.ERROR: _build_loss_event,
    EventKind.PAGING: lambda event: event_classes.PagingChange(
        **_position_fields(event), cr3=event.value & ~1, nonroot=bool(event.value & 1)
    ),
    EventKind.VMCS: lambda event: event_classes.VmcsChange(
        **_position_fields(event), pointer=event.value
    ),
    EventKind.PTWRITE: lambda event: event_classes.PtWrite(
        **_position_fields(event), at=event.ip or None, value=event.value
    ),
    EventKind.TRIG: _build_trigger_event,
    EventKind.MNT: lambda event: event_classes.MaintenanceEvent(
        **_position_fields(event), payload=event.value
    ),
}
