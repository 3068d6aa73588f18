"""What decoding gives: rows as columns, and the events between them.

What ran, as batches: instructions, branches, sync points.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sized
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Self

from rtit.trace.tables.batch import Batch, End, EventKind, Field
from rtit.trace.threads.address_spaces import filled

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from rtit._core import RowColumns


@dataclass(frozen=True, slots=True)
class Event:
    """One event. `row` rows of the stream had begun before it by what its packets had told until
    then: it came during the last of them, or between it and the next. What `ip` and `value` are
    depends on `kind` (see `EventKind`); `time` is the TSC estimate, a lower bound; `offset` the
    packet's place in the stream.
    """

    row: int
    kind: EventKind
    ip: int
    value: int
    time: int
    offset: int


class Events(Batch):
    """Events as columns of one length, in the order of the stream; iterated they are `Event`s.

    The columns are those of `Event`; the numbers of `kind` are those of `EventKind`.
    """

    FIELDS: ClassVar[tuple[Field, ...]] = (
        ("row", "u8", None),
        ("kind", "u1", EventKind),
        ("ip", "u8", None),
        ("value", "u8", None),
        ("time", "u8", None),
        ("offset", "u8", None),
    )
    WHERE: ClassVar[tuple[str, str] | None] = ("ip", "ip")
    row: NDArray[np.uint64]
    kind: NDArray[np.uint8]
    ip: NDArray[np.uint64]
    value: NDArray[np.uint64]
    time: NDArray[np.uint64]
    offset: NDArray[np.uint64]

    def __iter__(self) -> Iterator[Event]:
        for row, kind, *rest in zip(*self.lists(), strict=True):
            yield Event(row, EventKind(kind), *rest)


class Block(NamedTuple):
    """One row; see `Rows`."""

    start: int
    instructions: int
    last: int
    end: End
    bits: int
    in_tx: int
    time: int
    offset: int


class Rows(Batch):
    """Runs of instructions that followed each other in memory, as columns of one length.

    `start`: IP of the first instruction; `instructions`: how many; `last`: IP of the last; `end`:
    why the run ended, a number of `End`; `bits`: the mode of the code, 16, 32 or 64; `in_tx`: 1 if
    it ran in a transaction as far as the trace tells (a run is cut where one begins or ends);
    `time`: TSC estimate at its start, a lower bound; `offset`: place in the stream of the packet
    that ended it. A run of more than 2**31 instructions goes on in the next row, `end` being CUT.
    `events` is what came between, and `first` how many rows the stream has before
    these: `events.row - first` is a place among these.
    Rows that were chosen from others have no events.
    Those of a CPU that threads share have columns `tid` and `pid`: who ran, -1 where not known.
    """

    FIELDS: ClassVar[tuple[Field, ...]] = (
        ("start", "u8", None),
        ("instructions", "u4", None),
        ("last", "u8", None),
        ("end", "u1", End),
        ("bits", "u1", None),
        ("in_tx", "u1", None),
        ("time", "u8", None),
        ("offset", "u8", None),
    )
    WHERE: ClassVar[tuple[str, str] | None] = ("start", "last")
    start: NDArray[np.uint64]
    instructions: NDArray[np.uint32]
    last: NDArray[np.uint64]
    end: NDArray[np.uint8]
    bits: NDArray[np.uint8]
    in_tx: NDArray[np.uint8]
    time: NDArray[np.uint64]
    offset: NDArray[np.uint64]
    events: Events
    first: int

    def __init__(
        self,
        *columns: Sized,
        events: Events,
        first: int = 0,
        more: Mapping[str, NDArray[Any]] | None = None,
        **named: Sized,
    ) -> None:
        super().__init__(*columns, more=more, **named)
        self.__dict__.update(events=events, first=first)

    def __iter__(self) -> Iterator[Block]:
        for start, instructions, last, end, *rest in zip(*self.lists(), strict=True):
            yield Block(start, instructions, last, End(end), *rest)

    def __repr__(self) -> str:
        instructions = int(self.instructions.sum())
        return (
            f"<Rows {self.first:,} to {self.first + len(self):,}: "
            f"{instructions:,} instructions, {len(self.events):,} events>"
        )

    def take(self, which: NDArray[Any] | slice) -> Self:
        """Some of the rows: a mask, or a slice."""
        return super().take(which).replaced(events=self.events.take(slice(0, 0)))

    @classmethod
    def of(cls, columns: RowColumns, first: int, *, spaced: bool = False) -> Rows:
        """From what the native decoder gives; nothing is copied. `spaced`: with `space`."""
        return cls(
            start=columns["start"],
            instructions=columns["instructions"],
            last=columns["last"],
            end=columns["end"],
            bits=columns["bits"],
            in_tx=columns["in_tx"],
            time=columns["time"],
            offset=columns["offset"],
            events=Events(
                row=_wide(columns["event_row"]),
                kind=memoryview(columns["event_kind"]),
                ip=_wide(columns["event_ip"]),
                value=_wide(columns["event_value"]),
                time=_wide(columns["event_time"]),
                offset=_wide(columns["event_offset"]),
            ),
            first=first,
            more={"space": filled(columns["space"], len(columns["start"]))} if spaced else {},
        )


def _wide(data: bytes) -> Sized:
    """A column of little-endian u64."""
    if sys.byteorder == "little":
        return memoryview(data).cast("Q")
    import numpy as np

    return np.frombuffer(data, np.dtype("<u8"))


class Instruction(NamedTuple):
    """One instruction; see `Instructions`."""

    ip: int
    size: int
    time: int
    bits: int
    in_tx: int


class Instructions(Batch):
    """Instructions that ran, in order. `ip`: address; `size`: bytes; `time`: TSC estimate at the
    start of its run, a lower bound; `bits`: the mode of its code, 16, 32 or 64; `in_tx`: 1 if it
    ran in a transaction, as far as the trace tells.
    """

    FIELDS: ClassVar[tuple[Field, ...]] = (
        ("ip", "u8", None),
        ("size", "u1", None),
        ("time", "u8", None),
        ("bits", "u1", None),
        ("in_tx", "u1", None),
    )
    WHERE: ClassVar[tuple[str, str] | None] = ("ip", "ip")
    ip: NDArray[np.uint64]
    size: NDArray[np.uint8]
    time: NDArray[np.uint64]
    bits: NDArray[np.uint8]
    in_tx: NDArray[np.uint8]

    def __iter__(self) -> Iterator[Instruction]:
        return map(Instruction, *self.lists())


class Branch(NamedTuple):
    """One branch; see `Branches`."""

    source: int
    target: int
    kind: End
    time: int


class Branches(Batch):
    """Branches and other transfers, in order, direct ones as well. `source`: IP of the instruction;
    `target`: where it went; `kind`: an `End`, CUT for a conditional branch that was not taken;
    `time`: TSC estimate, a lower bound.
    """

    FIELDS: ClassVar[tuple[Field, ...]] = (
        ("source", "u8", None),
        ("target", "u8", None),
        ("kind", "u1", End),
        ("time", "u8", None),
    )
    WHERE: ClassVar[tuple[str, str] | None] = ("source", "source")
    source: NDArray[np.uint64]
    target: NDArray[np.uint64]
    kind: NDArray[np.uint8]
    time: NDArray[np.uint64]

    def __iter__(self) -> Iterator[Branch]:
        for source, target, kind, time in zip(*self.lists(), strict=True):
            yield Branch(source, target, End(kind), time)


class SyncPoint(NamedTuple):
    """One PSB+; see `SyncPoints`."""

    offset: int
    ip: int
    time: int


class SyncPoints(Batch):
    """PSB+ that were read: decoding can begin there. `offset`: of the PSB in the stream; `ip`:
    where the program was, 0 if tracing was off; `time`: TSC estimate, a lower bound.
    """

    FIELDS: ClassVar[tuple[Field, ...]] = (
        ("offset", "u8", None),
        ("ip", "u8", None),
        ("time", "u8", None),
    )
    WHERE: ClassVar[tuple[str, str] | None] = ("ip", "ip")
    offset: NDArray[np.uint64]
    ip: NDArray[np.uint64]
    time: NDArray[np.uint64]

    def __iter__(self) -> Iterator[SyncPoint]:
        return map(SyncPoint, *self.lists())
