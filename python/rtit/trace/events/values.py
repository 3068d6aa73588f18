"""What happened, as values: each says it whole, from however many packets it took to tell.

C-states, from the packets of power event trace (sections 33.4.2.22 to 33.4.2.25).

Records of PEBS, from packet blocks (section 33.4.1.1).
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
class Happening:
    """Something that happened between two instructions, or at one.

    time: TSC estimate in ticks, a lower bound. offset: of its first packet in the stream, in bytes.
    row: how many rows of the stream had begun before it (see `rtit.trace.Event`). Addresses are
    None where the packets do not tell them and the code does not either.
    """

    what: ClassVar[str] = ""
    time: int
    offset: int
    row: int

    @property
    def address(self) -> int | None:
        """Where it happened: `at`, or `ip`, or `after`, the first that it has; None if none."""
        names = ("at", "ip", "after")
        known = (getattr(self, name, None) for name in names)
        return next((each for each in known if each is not None), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Enabled(Happening):
    """Tracing goes on: `ip` is the first instruction (TIP.PGE). why: what it was off for: the `why`
    of a `Disabled`, `stop` (TraceStop), `overflow`, None if the stream does not tell.
    """

    what: ClassVar[str] = "enabled"
    ip: int
    why: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Disabled(Happening):
    """Tracing ends (TIP.PGD). at: the last instruction; to: where it led. why: `filter` if it left
    the filter ranges, `context` if it left the context or TraceEn was cleared, which look alike.
    """

    what: ClassVar[str] = "disabled"
    at: int | None
    to: int | None
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Stopped(Happening):
    """TraceStop (section 33.4.2.9)."""

    what: ClassVar[str] = "stopped"


@dataclass(frozen=True, slots=True, kw_only=True)
class Interrupt(Happening):
    """An interrupt, an exception or a software interrupt; without event trace anything that strikes
    between instructions, for then nothing says what it was.

    at: before which instruction; to: its handler, None if that is not traced. vector: 0 to 255,
    None without event trace. cr2: the address of a page fault. user: it is a user interrupt.
    """

    what: ClassVar[str] = "interrupt"
    at: int | None
    to: int | None
    vector: int | None = None
    cr2: int | None = None
    user: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class VmExit(Happening):
    """A VM exit. at: in the guest; to: in the host. vector: of the event that caused it, None if
    none did. reason, qualification: the fields of the VMCS, None if not told.
    """

    what: ClassVar[str] = "VM exit"
    at: int | None
    to: int | None
    vector: int | None = None
    reason: int | None = None
    qualification: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlEvent(Happening):
    """Another event of control flow. name: as in Table 33-50, `VMENTRY`, `IRET`, `SMI`, `RSM`,
    `SIPI`, `INIT`, `SHUTDOWN`, `UIRET`; later than the chapter `SWINTR` and `SYSCALL`; a number if
    the type is reserved. vector: of a SIPI or SWINTR, else None.
    """

    what: ClassVar[str] = "control"
    name: str
    at: int | None
    to: int | None
    vector: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Transaction(Happening):
    """A transaction. step: `begin`, `commit`, `abort`, or `inside`, `outside` for what a PSB+ tells
    that nothing else has told. at: the instruction; to: where an abort led.
    """

    what: ClassVar[str] = "transaction"
    step: str
    at: int | None
    to: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PtWrite(Happening):
    """PTWRITE. at: the instruction; value: its operand, 4 or 8 bytes."""

    what: ClassVar[str] = "ptwrite"
    at: int | None
    value: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Sleep(Happening):
    """Entry to a C-state (PWRE, with its MWAIT and EXSTOP), or from one to another.

    at: the instruction that waits. state, sub_state: as MWAIT encodes them (0 is C1); hardware: not
    asked for by software. hints, extensions: of MWAIT, None if it was none.
    """

    what: ClassVar[str] = "sleep"
    at: int | None
    state: int
    sub_state: int
    hardware: bool
    hints: int | None = None
    extensions: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Wake(Happening):
    """Return to C0 (PWRX). last, deepest: core C-states as MWAIT encodes them. reasons: what woke
    it. since: TSC estimate when it fell asleep, None if that was not seen.
    """

    what: ClassVar[str] = "wake"
    last: int
    deepest: int
    reasons: tuple[str, ...]
    since: int | None

    @staticmethod
    def reasons_of(bits: int) -> tuple[str, ...]:
        """The names of the wake reasons (Table 33-44)."""
        return tuple(name for bit, name in _WAKE.items() if bits & bit)


@dataclass(frozen=True, slots=True, kw_only=True)
class Paused(Happening):
    """Execution stopped for the clock's sake: a change of frequency, throttling (EXSTOP alone)."""

    what: ClassVar[str] = "paused"
    at: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PebsRecord(Happening):
    """A record of PEBS. at: the instruction it belongs to. registers: values by the names of
    Table 33-47, `0xTYPE:0xID` for reserved ones. whole: False if an overflow has cut it. events:
    what the counters counted whose record it is, None where the recording does not say.
    """

    what: ClassVar[str] = "PEBS"
    at: int | None
    registers: Mapping[str, int]
    whole: bool
    events: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Paging(Happening):
    """Another CR3, or VMX non-root operation entered or left (PIP)."""

    what: ClassVar[str] = "paging"
    cr3: int
    nonroot: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Vmcs(Happening):
    """Another VMCS is current."""

    what: ClassVar[str] = "VMCS"
    pointer: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Mode(Happening):
    """Width of the code (16, 32, 64 bits), and whether interrupts are enabled, which is told with
    event trace alone. at: from which instruction on.
    """

    what: ClassVar[str] = "mode"
    at: int | None
    bits: int
    interrupts: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Overflow(Happening):
    """Packets were lost, from `time` (at the latest) to `until`. after: the last instruction that
    is known to have run before; ip: where tracing goes on, None if it is off then.
    """

    what: ClassVar[str] = "overflow"
    until: int
    after: int | None
    ip: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss(Happening):
    """The stream could not be followed. kind: the label of its `ErrorClass`; value: the bad value;
    the ledger has the rest.
    """

    what: ClassVar[str] = "lost"
    kind: str
    value: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Resumed(Happening):
    """After a loss decoding goes on at `ip`."""

    what: ClassVar[str] = "resumed"
    ip: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Frequency(Happening):
    """Another ratio of core to bus clock (CBR); the first one is told, too."""

    what: ClassVar[str] = "frequency"
    ratio: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Trigger(Happening):
    """TRIG, later than the chapter. at: before which instruction; triggers: a bit each; multiple:
    more than one struck; count: instructions since the last place told, None if not told.
    """

    what: ClassVar[str] = "trigger"
    at: int | None
    triggers: int
    multiple: bool
    count: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Maintenance(Happening):
    """MNT: its payload means something to the model's maker."""

    what: ClassVar[str] = "maintenance"
    payload: int


class Power:
    """MWAIT, PWRE and EXSTOP are one entry to a C-state; a PWRE after that is another state, at the
    same place; an EXSTOP alone is a pause.
    """

    def __init__(self) -> None:
        self._mwait: Event | None = None
        self._entry: Event | None = None
        self._since: tuple[int, int | None] | None = None  # asleep: when, and where

    def see(self, event: Event) -> Iterator[Happening]:
        """What an event completes."""
        if event.kind is EventKind.MWAIT:
            yield from self.flush()
            self._mwait = event
        elif event.kind is EventKind.PWRE:
            if self._since is not None:
                yield self._sleep(event, self._since[1])
            else:
                self._entry = event
        elif event.kind is EventKind.EXSTOP:
            at = event.ip or None
            if self._entry is None:
                yield Paused(time=event.time, offset=event.offset, row=event.row, at=at)
            else:
                yield from self._enter(self._entry, at)
        else:
            yield from self.flush()
            yield self._wake(event)

    def flush(self) -> Iterator[Happening]:
        """An entry whose EXSTOP has not come."""
        if self._entry is not None:
            yield from self._enter(self._entry, None)
        self._mwait = None

    def _enter(self, entry: Event, at: int | None) -> Iterator[Happening]:
        yield self._sleep(entry, at)
        self._since = entry.time, at
        self._mwait = self._entry = None

    def _sleep(self, entry: Event, at: int | None) -> Sleep:
        first = self._mwait or entry
        return Sleep(
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

    def _wake(self, event: Event) -> Wake:
        since, self._since = self._since, None
        return Wake(
            time=event.time,
            offset=event.offset,
            row=event.row,
            last=event.value >> 4 & 0xF,
            deepest=event.value & 0xF,
            reasons=Wake.reasons_of(event.value >> 8),
            since=None if since is None else since[0],
        )


class Records:
    """The blocks up to a BEP are one record. `counters`: what each counter counts, by number."""

    def __init__(self, counters: Mapping[int, str]) -> None:
        self._counters = counters
        self._first: Event | None = None
        self._type = 0
        self._registers: dict[str, int] = {}

    def see(self, event: Event) -> Iterator[PebsRecord]:
        """What a BBP, BIP or BEP completes."""
        if event.kind is EventKind.BLOCK_BEGIN:
            self._first = self._first or event
            self._type = event.value & 0xFF
        elif event.kind is EventKind.BLOCK_ITEM:
            name = item_name(self._type, event.ip) or f"{self._type:#x}:{event.ip:#x}"
            self._registers[name] = event.value
        else:
            yield from self._end(event.ip or None, whole=True)

    def cut(self) -> Iterator[PebsRecord]:
        """The record does not go on."""
        yield from self._end(None, whole=False)

    def _end(self, at: int | None, *, whole: bool) -> Iterator[PebsRecord]:
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
                events=self._events(registers),
            )

    def _events(self, registers: Mapping[str, int]) -> tuple[str, ...] | None:
        """By the counters that the record names (Table 33-47), or by the only one."""
        which = registers.get("Applicable Counters")
        if which is None:
            return tuple(self._counters.values()) if len(self._counters) == 1 else None
        found = (name for number, name in self._counters.items() if which >> number & 1)
        return tuple(found) or None
