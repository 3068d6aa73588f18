"""Which happenings a selection takes.

Happenings as a line of text, and as JSON.

From the events that packets give, one each, to what happened (section 33.4.1).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields
from itertools import islice

from rtit.packets import CFE_TYPES
from rtit.trace.events import values
from rtit.trace.events.values import Happening, Power, Records
from rtit.trace.tables.batch import ErrorClass, EventKind
from rtit.trace.tables.rows import Event
from rtit.trace.tables.selection import Filter


def chosen(found: Iterator[Happening], wanted: Filter) -> Iterator[Happening]:
    """By time, by address (`Happening.address`; what has none is at no place), and by number."""
    if wanted.is_timed or wanted.places is not None:
        found = (each for each in found if _is_wanted(each, wanted))
    if wanted.head is not None:
        return islice(found, wanted.head)
    if wanted.tail is not None:
        return iter(deque(found, maxlen=wanted.tail))
    return found


def _is_wanted(happening: Happening, wanted: Filter) -> bool:
    first, last = wanted.times
    if not first <= happening.time <= last:
        return False
    if wanted.places is None:
        return True
    address = happening.address
    return address is not None and any(
        each.start <= address < each.end and each.since <= happening.time < each.until
        for each in wanted.places
    )


_PLACE = frozenset({"time", "offset", "row"})
_STATES = frozenset({"state", "last", "deepest"})
_HEXADECIMAL = frozenset(
    {"at", "to", "ip", "after", "cr2", "cr3", "pointer", "value", "payload", "qualification"}
)


def describe(happening: Happening) -> str:
    """What happened and what is known of it, as `name=value`, without the time and the place."""
    words = [str(getattr(happening, "name", happening.what))]
    for field in fields(happening):
        value = getattr(happening, field.name)
        if field.name in _PLACE or field.name == "name" or value is None or value is False:
            continue
        words.append(_word(field.name, value))
    return " ".join(words)


def as_json(happening: Happening) -> dict[str, object]:
    """A dict for `json.dumps`: `event` is its name, the rest as in its class; what is not known is
    null.
    """
    found = {field.name: getattr(happening, field.name) for field in fields(happening)}
    return {"event": happening.what, **found}


def _word(name: str, value: object) -> str:
    if value is True:
        return name
    if isinstance(value, dict):
        return " ".join(f"{key.replace(' ', '_')}={each:#x}" for key, each in value.items())
    if isinstance(value, tuple):
        return f"{name}={','.join(map(str, value)) or 'none'}".replace(" ", "_")
    if isinstance(value, int) and name in _STATES:
        return f"{name}=C{(value + 1) & 0xF}"
    if isinstance(value, int) and name in _HEXADECIMAL:
        return f"{name}={value:#x}"
    return f"{name}={value}".replace(" ", "_")


_BETWEEN = frozenset(
    {EventKind.PAGING, EventKind.VMCS, EventKind.MODE_EXEC, EventKind.CBR, EventKind.MNT}
)
"""What may come between the packets of one event; it is told after it."""
_POWER = frozenset({EventKind.MWAIT, EventKind.PWRE, EventKind.EXSTOP, EventKind.PWRX})
_BLOCK = frozenset({EventKind.BLOCK_BEGIN, EventKind.BLOCK_ITEM, EventKind.BLOCK_END})
_MOST = 64
"""Packets of one event, and more than any has: a flood of them is not kept."""
_BITS = {0: 16, 1: 64, 2: 32}
_PFA, _VMXQ, _VMXR = 0, 1, 2
_INTR, _VMEXIT, _VMEXIT_INTR, _UINTR = 1, 8, 9, 0xC
_WITH_VECTOR = frozenset({0x5, 0xE})


class Join:
    """Puts together what belongs together. `see` every event in order, `flush` at the end.
    `counters`: what those of PEBS count, by number.
    """

    def __init__(self, counters: Mapping[int, str]) -> None:
        self._data: dict[int, Event] = {}  # EVD by type, until their CFE
        self._controls: list[tuple[Event, dict[int, Event]]] = []  # CFEs without an IP yet
        self._transaction: Event | None = None
        self._overflow: tuple[Event, int | None] | None = None
        self._queued: list[Happening] = []
        self._power = Power()
        self._records = Records(counters)
        self._ratio = self._mode = -1
        self._off: str | None = None  # why tracing is off

    def see(self, event: Event, after: int | None) -> Iterator[Happening]:
        """What an event completes. after: the last instruction that ran before it."""
        kind = event.kind
        if len(self._queued) + len(self._controls) > _MOST:
            yield from self._flush(event)
        if kind in _BETWEEN and self._is_open():
            self._queued += self._plain(event)
        elif kind is EventKind.EVD:
            self._data[event.ip] = event
        elif kind is EventKind.CFE:
            yield from self._control(event)
        elif kind in (EventKind.ASYNC, EventKind.ASYNC_DISABLED):
            yield from self._struck(event)
        elif kind is EventKind.RESUMED and self._overflow is not None:
            yield from self._resolved(event, event.ip)
        elif kind in _BLOCK:
            yield from self._flush(event)
            yield from self._records.see(event)
        else:
            if kind in _POWER:
                yield from self._flush()
                yield from self._power.see(event)
                return
            yield from self.flush(event)
            if kind is EventKind.MODE_TSX:
                self._transaction = event
            elif kind is EventKind.OVERFLOW:
                self._overflow = event, after
            else:
                yield from self._plain(event)

    def flush(self, event: Event | None = None) -> Iterator[Happening]:
        """What waits for more that has not come when `event` comes, or at the end."""
        if event is not None and event.kind is EventKind.PSB:
            yield from self._told_by_psb(event)
        yield from self._flush(event)
        yield from self._power.flush()
        if event is None or event.kind in (EventKind.ERROR, EventKind.PSB):
            yield from self._records.cut()

    def _is_open(self) -> bool:
        aborts = self._transaction is not None and self._transaction.value & 2
        return bool(self._controls or self._data or aborts or self._overflow)

    def _flush(self, event: Event | None = None) -> Iterator[Happening]:
        if self._overflow is not None:
            yield from self._resolved(event or self._overflow[0], None)
        if self._transaction is not None:
            yield self._transacted(self._transaction, None)
        for control, data in self._controls:
            yield _control(control, data, None, None)
        yield from self._queued
        self._transaction, self._controls, self._queued, self._data = None, [], [], {}

    def _control(self, event: Event) -> Iterator[Happening]:
        data, self._data = self._data, {}
        if event.ip:
            yield from self._flush(event)
            yield _control(event, data, event.ip, None)
        else:
            if self._overflow is not None or self._transaction is not None:
                yield from self._flush(event)
            self._controls.append((event, data))

    def _struck(self, event: Event) -> Iterator[Happening]:
        """FUP and TIP or TIP.PGD: the end of a compound event."""
        off = event.kind is EventKind.ASYNC_DISABLED
        at, to = event.ip or None, event.value or None
        named = True
        if self._transaction is not None and self._transaction.value & 2:
            yield self._transacted(self._transaction, to)
            self._transaction = None
        elif self._controls:
            *others, (control, data) = self._controls
            for other, its in others:
                yield _control(other, its, at, None)
            yield _control(control, data, at, to)
        elif not off or to is not None:
            yield from self._flush(event)
            place = _place(event)
            yield values.Interrupt(**place, at=at, to=to, user=False)
        else:
            yield from self._flush(event)
            named = False
        self._controls = []
        if off:
            why = "filter" if to is not None else "context" if named else "event or TraceEn"
            self._off = why
            yield values.Disabled(**_place(event), at=at, to=to, why=why)
        yield from self._queued
        self._queued = []

    def _resolved(self, event: Event, ip: int | None) -> Iterator[Happening]:
        if self._overflow is not None:
            lost, after = self._overflow
            self._overflow = None
            self._off = "overflow" if ip is None else None
            yield values.Overflow(**_place(lost), until=event.time, after=after, ip=ip)
            yield from self._queued
            self._queued = []

    def _told_by_psb(self, event: Event) -> Iterator[Happening]:
        told = self._transaction
        if told is not None and told.offset == event.offset:
            step = "inside" if told.value & 1 else "outside"
            yield values.Transaction(**_place(told), step=step, at=told.ip or None)
            self._transaction = None

    @staticmethod
    def _transacted(event: Event, to: int | None) -> Happening:
        step = "abort" if event.value & 2 else "begin" if event.value & 1 else "commit"
        return values.Transaction(**_place(event), step=step, at=event.ip or None, to=to)

    def _plain(self, event: Event) -> Iterator[Happening]:
        """What one event says alone."""
        if event.kind is EventKind.CBR:
            if event.value != self._ratio:
                self._ratio = event.value
                yield values.Frequency(**_place(event), ratio=event.value)
        elif event.kind is EventKind.MODE_EXEC:
            if event.value != self._mode:
                self._mode = event.value
                bits, flag = _BITS.get(event.value & 3, 0), bool(event.value & 4)
                yield values.Mode(**_place(event), at=event.ip or None, bits=bits, interrupts=flag)
        elif event.kind is EventKind.DISABLED:
            to = event.value or None
            self._off = "context" if to is None else "filter"
            yield values.Disabled(**_place(event), at=event.ip or None, to=to, why=self._off)
        elif event.kind is EventKind.ENABLED:
            yield values.Enabled(**_place(event), ip=event.ip, why=self._off)
            self._off = None
        elif event.kind is EventKind.STOPPED:
            self._off = "stop"
            yield values.Stopped(**_place(event))
        elif event.kind is EventKind.ERROR and event.value == ErrorClass.HARDWARE_LOSS:
            return  # its OVF tells of it
        elif event.kind in _PLAIN:
            yield _PLAIN[event.kind](event)


def _place(event: Event) -> dict[str, int]:
    return {"time": event.time, "offset": event.offset, "row": event.row}


def _control(event: Event, data: dict[int, Event], at: int | None, to: int | None) -> Happening:
    """What a CFE and the EVDs before it say."""
    kind, vector = event.value & 0xFF, event.value >> 8
    payload = {number: each.value for number, each in data.items()}
    place = _place(min([event, *data.values()], key=lambda each: each.offset))
    if kind in (_INTR, _UINTR):
        return values.Interrupt(
            **place, at=at, to=to, vector=vector, cr2=payload.get(_PFA), user=kind == _UINTR
        )
    if kind in (_VMEXIT, _VMEXIT_INTR):
        return values.VmExit(
            **place,
            at=at,
            to=to,
            vector=vector if kind == _VMEXIT_INTR else None,
            reason=payload.get(_VMXR),
            qualification=payload.get(_VMXQ),
        )
    name = CFE_TYPES.get(kind, str(kind))
    told = vector if kind in _WITH_VECTOR else None
    return values.ControlEvent(**place, name=name, at=at, to=to, vector=told)


def _trigger(event: Event) -> Happening:
    value = event.value
    return values.Trigger(
        **_place(event),
        at=event.ip or None,
        triggers=value & 0xFF,
        multiple=bool(value & 1 << 8),
        count=value >> 16 if value & 1 << 9 else None,
    )


def _loss(event: Event) -> Happening:
    kind = ErrorClass(event.value).label
    return values.Loss(**_place(event), kind=kind, value=event.ip)


_PLAIN: dict[EventKind, Callable[[Event], Happening]] = {
    EventKind.RESUMED: lambda event: values.Resumed(**_place(event), ip=event.ip),
    EventKind.ERROR: _loss,
    EventKind.PAGING: lambda event: values.Paging(
        **_place(event), cr3=event.value & ~1, nonroot=bool(event.value & 1)
    ),
    EventKind.VMCS: lambda event: values.Vmcs(**_place(event), pointer=event.value),
    EventKind.PTWRITE: lambda event: values.PtWrite(
        **_place(event), at=event.ip or None, value=event.value
    ),
    EventKind.TRIG: _trigger,
    EventKind.MNT: lambda event: values.Maintenance(**_place(event), payload=event.value),
}
