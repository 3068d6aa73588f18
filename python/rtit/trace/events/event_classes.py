"""The decoded events: one class for each kind of event, however many packets it took.

`CStateTracker` builds `CStateEntry`, `CStateExit` and `ExecutionPaused` from power event
packets (sections 33.4.2.22 to 33.4.2.25), `PebsRecordBuilder` builds `PebsRecord` from packet
blocks (section 33.4.1.1).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar

from rtit.packets import item_name
from rtit.trace.tables.batch import EventKind
from rtit.trace.tables.rows import Event

_WAKE = {1: "interrupt", 2: "timer deadline", 4: "store", 8: "hardware"}


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceEvent:
    """An event at or between instructions.

    time: TSC estimate in ticks, a lower bound. offset: stream offset of its first packet. row:
    number of rows of the stream that had started before it (see `rtit.trace.Event`). Addresses are
    None if neither the packets nor the code give them.
    """

    event_name: ClassVar[str] = ""
    time: int
    offset: int
    row: int

    @property
    def address(self) -> int | None:
        """The first of `at`, `ip` and `after` that is known; None if none is."""
        names = ("at", "ip", "after")
        known = (getattr(self, name, None) for name in names)
        return next((each for each in known if each is not None), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class TracingEnabled(TraceEvent):
    """Tracing is enabled (TIP.PGE): `ip` is the first instruction. why: the reason for which it was
    disabled: the `why` of a `TracingDisabled`, `stop` (TraceStop), `overflow`, or None if unknown.
    """

    event_name: ClassVar[str] = "enabled"
    ip: int
    why: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TracingDisabled(TraceEvent):
    """Tracing is disabled (TIP.PGD). at: the last instruction; to: its target. why: `filter` if
    execution left the filter ranges; `context` if it left the context or TraceEn was cleared, which
    the packets do not distinguish.
    """

    event_name: ClassVar[str] = "disabled"
    at: int | None
    to: int | None
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TracingStopped(TraceEvent):
    """TraceStop (section 33.4.2.9)."""

    event_name: ClassVar[str] = "stopped"


@dataclass(frozen=True, slots=True, kw_only=True)
class Interrupt(TraceEvent):
    """An interrupt, an exception or a software interrupt. Without event trace: any asynchronous
    event, since the packets do not give its kind.

    at: the next instruction; to: the handler, None if it is not traced. vector: 0 to 255, None
    without event trace. cr2: the address of a page fault. user: it is a user interrupt.
    """

    event_name: ClassVar[str] = "interrupt"
    at: int | None
    to: int | None
    vector: int | None = None
    cr2: int | None = None
    user: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class VmExit(TraceEvent):
    """A VM exit. at: in the guest; to: in the host. vector: of the event that caused it, or None.
    reason, qualification: the fields of the VMCS, None if unknown.
    """

    event_name: ClassVar[str] = "VM exit"
    at: int | None
    to: int | None
    vector: int | None = None
    reason: int | None = None
    qualification: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlFlowEvent(TraceEvent):
    """Another event of control flow. name: as in Table 33-50, `VMENTRY`, `IRET`, `SMI`, `RSM`,
    `SIPI`, `INIT`, `SHUTDOWN`, `UIRET`; newer than the chapter: `SWINTR`, `SYSCALL`; a number if
    the type is reserved. vector: of a SIPI or SWINTR, else None.
    """

    event_name: ClassVar[str] = "control"
    name: str
    at: int | None
    to: int | None
    vector: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Transaction(TraceEvent):
    """A transaction. step: `begin`, `commit` or `abort`; `inside` or `outside` if only a PSB+
    reports the state. at: the instruction; to: the target of an abort.
    """

    event_name: ClassVar[str] = "transaction"
    step: str
    at: int | None
    to: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PtWrite(TraceEvent):
    """PTWRITE. at: the instruction; value: its operand, 4 or 8 bytes."""

    event_name: ClassVar[str] = "ptwrite"
    at: int | None
    value: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CStateEntry(TraceEvent):
    """Entry to a C-state (PWRE, with its MWAIT and EXSTOP), or from one to another.

    at: the waiting instruction. state, sub_state: as MWAIT encodes them (0 is C1); hardware: not
    requested by software. hints, extensions: of MWAIT, None without one.
    """

    event_name: ClassVar[str] = "sleep"
    at: int | None
    state: int
    sub_state: int
    hardware: bool
    hints: int | None = None
    extensions: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CStateExit(TraceEvent):
    """Return to C0 (PWRX). last, deepest: core C-states as MWAIT encodes them. reasons: for
    waking. since: TSC estimate of the entry, None if it is not in the trace.
    """

    event_name: ClassVar[str] = "wake"
    last: int
    deepest: int
    reasons: tuple[str, ...]
    since: int | None

    @staticmethod
    def reasons_of(bits: int) -> tuple[str, ...]:
        """Return the names of the wake reasons (Table 33-44)."""
        return tuple(name for bit, name in _WAKE.items() if bits & bit)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutionPaused(TraceEvent):
    """Execution paused for a change of frequency or for throttling (EXSTOP alone)."""

    event_name: ClassVar[str] = "paused"
    at: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PebsRecord(TraceEvent):
    """A record of PEBS. at: the instruction it belongs to. registers: values by the names of
    Table 33-47, `0xTYPE:0xID` for reserved ones. whole: False if an overflow truncated it.
    events: what the counters of the record count, None if unknown.
    """

    event_name: ClassVar[str] = "PEBS"
    at: int | None
    registers: Mapping[str, int]
    whole: bool
    events: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PagingChange(TraceEvent):
    """Another CR3, or VMX non-root operation entered or left (PIP)."""

    event_name: ClassVar[str] = "paging"
    cr3: int
    nonroot: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class VmcsChange(TraceEvent):
    """Another VMCS is current."""

    event_name: ClassVar[str] = "VMCS"
    pointer: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutionModeChange(TraceEvent):
    """Width of the code (16, 32, 64 bits), and whether interrupts are enabled (only with event
    trace). at: the first instruction in this mode.
    """

    event_name: ClassVar[str] = "mode"
    at: int | None
    bits: int
    interrupts: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Overflow(TraceEvent):
    """Packets were lost, from `time` (at the latest) to `until`. after: the last known
    instruction before; ip: where tracing continues, None if it is off then.
    """

    event_name: ClassVar[str] = "overflow"
    until: int
    after: int | None
    ip: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodingLoss(TraceEvent):
    """A part of the stream could not be decoded. kind: the label of its `ErrorClass`; value: the
    bad value. The ledger has the details.
    """

    event_name: ClassVar[str] = "lost"
    kind: str
    value: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodingResumed(TraceEvent):
    """After a loss decoding continues at `ip`."""

    event_name: ClassVar[str] = "resumed"
    ip: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FrequencyChange(TraceEvent):
    """Another ratio of core to bus clock (CBR); also the first one."""

    event_name: ClassVar[str] = "frequency"
    ratio: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TriggerEvent(TraceEvent):
    """TRIG (newer than the chapter). at: the next instruction; triggers: one bit each; multiple:
    there were several; count: instructions since the last known position, or None.
    """

    event_name: ClassVar[str] = "trigger"
    at: int | None
    triggers: int
    multiple: bool
    count: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class MaintenanceEvent(TraceEvent):
    """MNT: its payload is specific to the processor model."""

    event_name: ClassVar[str] = "maintenance"
    payload: int


class CStateTracker:
    """Combines MWAIT, PWRE and EXSTOP to one entry to a C-state. A PWRE after that is a change of
    state at the same instruction. An EXSTOP alone is a pause.
    """

    def __init__(self) -> None:
        self._mwait: Event | None = None
        self._entry: Event | None = None
        self._asleep: tuple[int, int | None] | None = None
        """Time and address of the entry to the C-state; None: awake."""

    def add_power_event(self, event: Event) -> Iterator[TraceEvent]:
        """Yield the events that a packet completes."""
        if event.kind is EventKind.MWAIT:
            yield from self.report_pending_sleep()
            self._mwait = event
        elif event.kind is EventKind.PWRE:
            if self._asleep is not None:
                yield self._build_sleep_event(event, self._asleep[1])
            else:
                self._entry = event
        elif event.kind is EventKind.EXSTOP:
            at = event.ip or None
            if self._entry is None:
                yield ExecutionPaused(time=event.time, offset=event.offset, row=event.row, at=at)
            else:
                yield from self._report_sleep(self._entry, at)
        else:
            yield from self.report_pending_sleep()
            yield self._build_wake_event(event)

    def report_pending_sleep(self) -> Iterator[TraceEvent]:
        """Report an entry without EXSTOP."""
        if self._entry is not None:
            yield from self._report_sleep(self._entry, None)
        self._mwait = None

    def _report_sleep(self, entry: Event, at: int | None) -> Iterator[TraceEvent]:
        yield self._build_sleep_event(entry, at)
        self._asleep = entry.time, at
        self._mwait = self._entry = None

    def _build_sleep_event(self, entry: Event, at: int | None) -> CStateEntry:
        first = self._mwait or entry
        return CStateEntry(
            time=first.time,
            offset=first.offset,
            row=first.row,
            at=at,
            state=entry.value >> 4 & 0xF,
            sub_state=entry.value & 0xF,
            hardware=bool(entry.value >> 8),
            hints=None if self._mwait is None else self._mwait.value & 0xFFFF_FFFF,
            extensions=None if self._mwait is None else self._mwait.value >> 32,
        )

    def _build_wake_event(self, event: Event) -> CStateExit:
        since, self._asleep = self._asleep, None
        return CStateExit(
            time=event.time,
            offset=event.offset,
            row=event.row,
            last=event.value >> 4 & 0xF,
            deepest=event.value & 0xF,
            reasons=CStateExit.reasons_of(event.value >> 8),
            since=None if since is None else since[0],
        )


class PebsRecordBuilder:
    """Combines the blocks up to a BEP to one record. `counters`: what each PEBS counter counts."""

    def __init__(self, counters: Mapping[int, str]) -> None:
        self._counters = counters
        self._first: Event | None = None
        self._type = 0
        self._registers: dict[str, int] = {}

    def add_pebs_packet(self, event: Event) -> Iterator[PebsRecord]:
        """Yield the record that a BBP, BIP or BEP completes."""
        if event.kind is EventKind.BLOCK_BEGIN:
            self._first = self._first or event
            self._type = event.value & 0xFF
        elif event.kind is EventKind.BLOCK_ITEM:
            name = item_name(self._type, event.ip) or f"{self._type:#x}:{event.ip:#x}"
            self._registers[name] = event.value
        else:
            yield from self._complete_record(event.ip or None, whole=True)

    def report_truncated_record(self) -> Iterator[PebsRecord]:
        """Report the open record as truncated."""
        yield from self._complete_record(None, whole=False)

    def _complete_record(self, at: int | None, *, whole: bool) -> Iterator[PebsRecord]:
        first, registers = self._first, self._registers
        self._first, self._registers = None, {}
        if first is not None:
            yield PebsRecord(
                time=first.time,
                offset=first.offset,
                row=first.row,
                at=at,
                registers=registers,
                whole=whole,
                events=self._events_counted_by_record(registers),
            )

    def _events_counted_by_record(self, registers: Mapping[str, int]) -> tuple[str, ...] | None:
        """Return the events that the counters of the record count (Table 33-47)."""
        which = registers.get("Applicable Counters")
        if which is None:
            return tuple(self._counters.values()) if len(self._counters) == 1 else None
        found = (name for number, name in self._counters.items() if which >> number & 1)
        return tuple(found) or None
