"""What happened, as values: each says it whole, from however many packets it took to tell."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

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
