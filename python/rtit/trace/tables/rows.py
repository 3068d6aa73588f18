"""The tables that decoding produces: blocks with events, instructions, branches, sync points.

Each is a `Batch` of NumPy columns. Iterating a batch gives one named tuple for each row. Times are
estimates in TSC ticks: a lower bound of the time at which a row ran.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sized
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Self

from rtit.trace.tables.batch import (
    Batch,
    BranchKind,
    End,
    EventKind,
    FunctionBatch,
    declare_column,
)
from rtit.trace.threads.address_spaces import column_or_zeros

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from rtit._core import Columns
    from rtit.trace.tables.batch import U8, U32, U64


@dataclass(frozen=True, slots=True)
class Event:
    """One event that a packet reported.

    `row` is the number of rows of the stream that had started before the event. The event occurred
    during the last of them, or between it and the next row. `EventKind` says what `ip` and `value`
    contain; `offset` is the stream offset of the packet.
    """

    row: int
    kind: EventKind
    ip: int
    value: int
    time: int
    offset: int


class Events(Batch):
    """Events in stream order. The columns are the fields of `Event`."""

    ADDRESS_COLUMNS: ClassVar[tuple[str, str] | None] = ("ip", "ip")
    row: U64 = declare_column("u8")
    kind: U8 = declare_column("u1", EventKind)
    ip: U64 = declare_column("u8")
    value: U64 = declare_column("u8")
    time: U64 = declare_column("u8")
    offset: U64 = declare_column("u8")

    def __iter__(self) -> Iterator[Event]:
        for row, kind, *rest in zip(*self.column_lists(), strict=True):
            yield Event(row, EventKind(kind), *rest)


class Block(NamedTuple):
    """One row of `Rows`."""

    start: int
    instructions: int
    last: int
    end: End
    bits: int
    in_tx: int
    time: int
    offset: int


class Rows(FunctionBatch):
    """Blocks: runs of instructions that follow each other in memory, in the order of execution.

    * `start`, `last`: IP of the first and the last instruction
    * `instructions`: their number, at most 2**31; a longer run continues in the next row, with
      `end` CUT
    * `end`: why the run ended, an `End`
    * `bits`: mode of the code, 16, 32 or 64
    * `in_tx`: 1 in a transaction, as far as the trace shows; runs are cut where a transaction
      begins or ends
    * `time`: TSC estimate at the start, a lower bound
    * `offset`: stream offset of the packet that ended the run

    `events` are the events between these rows, and `first` is the number of rows of the stream
    before this batch, so that `events.row - first` counts rows of this batch. Selected rows have no
    events.
    """

    ADDRESS_COLUMNS: ClassVar[tuple[str, str] | None] = ("start", "last")
    start: U64 = declare_column("u8")
    instructions: U32 = declare_column("u4")
    last: U64 = declare_column("u8")
    end: U8 = declare_column("u1", End)
    bits: U8 = declare_column("u1")
    in_tx: U8 = declare_column("u1")
    time: U64 = declare_column("u8")
    offset: U64 = declare_column("u8")
    events: Events
    first: int

    def __init__(
        self,
        *columns: Sized,
        events: Events,
        first: int = 0,
        extra_columns: Mapping[str, NDArray[Any]] | None = None,
        **named: Sized,
    ) -> None:
        super().__init__(*columns, extra_columns=extra_columns, **named)
        self.__dict__.update(events=events, first=first)

    def __iter__(self) -> Iterator[Block]:
        for start, instructions, last, end, *rest in zip(*self.column_lists(), strict=True):
            yield Block(start, instructions, last, End(end), *rest)

    def __repr__(self) -> str:
        instructions = int(self.instructions.sum())
        return (
            f"<Rows {self.first:,} to {self.first + len(self):,}: "
            f"{instructions:,} instructions, {len(self.events):,} events>"
        )

    def select_rows(self, selector: NDArray[Any] | slice) -> Self:
        """Return the rows of a mask or slice, without events."""
        return super().select_rows(selector).replace(events=self.events.select_rows(slice(0, 0)))

    @classmethod
    def from_native(
        cls, columns: Columns, first: int, *, with_spaces: bool = False, with_cr3: bool = False
    ) -> Rows:
        """Wrap the native decoder's columns without copying. `with_spaces`: with `space`.
        `with_cr3`: with `cr3`.
        """
        extra: dict[str, NDArray[Any]] = {}
        if with_spaces:
            extra["space"] = column_or_zeros(columns["space"], len(columns["start"]))
        if with_cr3:
            extra["cr3"] = column_or_zeros(columns["cr3"], len(columns["start"]), "u8")
        return cls(
            *(columns[name] for name, _, _ in cls.FIELDS),
            events=Events(*(columns[f"event_{name}"] for name, _, _ in Events.FIELDS)),
            first=first,
            extra_columns=extra,
        )


class Instruction(NamedTuple):
    """One row of `Instructions`."""

    ip: int
    size: int
    time: int
    bits: int
    in_tx: int


class Instructions(FunctionBatch):
    """Executed instructions in order: `ip`, `size` in bytes, `time` (TSC estimate at the start of
    the run, a lower bound), `bits` (mode of the code: 16, 32 or 64), `in_tx` (1 in a transaction).
    """

    ADDRESS_COLUMNS: ClassVar[tuple[str, str] | None] = ("ip", "ip")
    IS_INSTRUCTION: ClassVar[bool] = True
    ip: U64 = declare_column("u8")
    size: U8 = declare_column("u1")
    time: U64 = declare_column("u8")
    bits: U8 = declare_column("u1")
    in_tx: U8 = declare_column("u1")

    def __iter__(self) -> Iterator[Instruction]:
        return map(Instruction, *self.column_lists())


class Branch(NamedTuple):
    """One row of `Branches`."""

    source: int
    target: int
    kind: BranchKind
    time: int


class Branches(FunctionBatch):
    """Branches and other transfers in order, direct ones included: `source` (IP of the
    instruction), `target`, `kind` (a `BranchKind`), `time` (TSC estimate, a lower bound).

    `target` is 0 for system calls into a kernel that was not traced.
    """

    ADDRESS_COLUMNS: ClassVar[tuple[str, str] | None] = ("source", "source")
    source: U64 = declare_column("u8")
    target: U64 = declare_column("u8")
    kind: U8 = declare_column("u1", BranchKind)
    time: U64 = declare_column("u8")

    def __iter__(self) -> Iterator[Branch]:
        for source, target, kind, time in zip(*self.column_lists(), strict=True):
            yield Branch(source, target, BranchKind(kind), time)


class SyncPoint(NamedTuple):
    """One row of `SyncPoints`."""

    offset: int
    ip: int
    time: int


class SyncPoints(Batch):
    """The decoded PSB+ sequences, where decoding can start: `offset` of the PSB in the stream, `ip`
    (0 if tracing was off), `time` (TSC estimate, a lower bound).
    """

    ADDRESS_COLUMNS: ClassVar[tuple[str, str] | None] = ("ip", "ip")
    offset: U64 = declare_column("u8")
    ip: U64 = declare_column("u8")
    time: U64 = declare_column("u8")

    def __iter__(self) -> Iterator[SyncPoint]:
        return map(SyncPoint, *self.column_lists())
