"""The coverage ledger: what became of every byte of a stream.

The native decoder divides a stream into spans without gaps between them. A span is decoded exactly,
resumed (decoded after a loss, not yet confirmed by a PSB), lost, or elsewhere (packets of threads
that were not requested). An error says why a span is not exact. `Ledger` has the spans as columns.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Mapping, Sized
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from rtit.trace.tables.batch import EXTRA_COLUMNS, Batch, ErrorClass, Field, Trust, declare_column

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from rtit import _core
    from rtit.trace.tables.batch import U8, U32, U64


LedgerRow = tuple[int, int, str, str | None, str | None, int | None, int | None]
"""A span as the native decoder reports it: start, end, status; error class, text, offset, value."""

_GAP_LABELS = (Trust.RESUMED.label, Trust.LOST.label)
_MAX_SHOWN_SPANS = 10
"""In the `repr`: a damaged stream may have millions of spans."""
_ROWS_AT_ONCE = 1 << 12


def native_ledger_rows(decoder: _core.StreamDecoder | _core.ReusableDecoder) -> Iterator[LedgerRow]:
    """The spans of a decoder, fetched in portions: as tuples they take ten times the memory."""
    first, rows = 0, decoder.ledger(0, _ROWS_AT_ONCE)
    while rows:
        yield from rows
        first += len(rows)
        rows = decoder.ledger(first, _ROWS_AT_ONCE) if len(rows) == _ROWS_AT_ONCE else []


@dataclass(frozen=True, slots=True)
class Span:
    """The status of the bytes from `start` up to `end`.

    `kind` is the label of a `Trust`: exact, resumed, lost or elsewhere. `error` says why, and
    `cause` has the class of the error; "" and None without one.
    """

    start: int
    end: int
    kind: str
    error: str
    cause: ErrorClass | None = None

    @property
    def is_gap(self) -> bool:
        """Whether executed code may be missing from it."""
        return self.kind in _GAP_LABELS

    @classmethod
    def from_row(cls, row: LedgerRow) -> Self:
        """Convert a row of the native decoder."""
        start, end, trust, cause, text, _, _ = row
        return cls(start, end, trust, text or "", ErrorClass.from_label(cause) if cause else None)

    def __str__(self) -> str:
        text = f"bytes {self.start:#x} to {self.end:#x} {self.kind}"
        return f"{text}: {self.error}" if self.error else text


def insert_losses(
    rows: Iterable[LedgerRow], losses: Iterable[tuple[int, str]]
) -> Iterator[LedgerRow]:
    """Insert an empty lost span at the offset of each loss: (offset, reason).

    The data was lost before it reached the file, so no byte of the stream changes its status.
    """
    pending = sorted(losses, key=lambda loss: loss[0])[::-1]
    end = 0
    for begin, end, *rest in rows:
        start = begin
        while pending and pending[-1][0] < end:
            at, reason = pending.pop()
            if start < at:
                yield start, at, *rest  # type: ignore[misc]
                start = at
            yield _empty_lost_span(at, reason)
        yield start, end, *rest  # type: ignore[misc]
    for _, reason in reversed(pending):
        yield _empty_lost_span(end, reason)


def _empty_lost_span(at: int, reason: str) -> LedgerRow:
    return at, at, Trust.LOST.label, ErrorClass.HARDWARE_LOSS.label, reason, at, 0


class Ledger(Batch):
    """The spans of a stream as columns. Iteration and indexing give `Span` objects.

    * `start`, `end`: stream offsets
    * `kind`: a `Trust`
    * `cause`: an `ErrorClass`, 0 without an error
    * `value`: the bad value, 0 if there is none
    * `error`: an index into `texts`, the reasons
    """

    start: U64 = declare_column("u8")
    end: U64 = declare_column("u8")
    kind: U8 = declare_column("u1", Trust)
    cause: U8 = declare_column("u1", ErrorClass)
    value: U64 = declare_column("u8")
    error: U32 = declare_column("u4", ())
    texts: tuple[str, ...]

    def __init__(
        self,
        *columns: Sized,
        texts: tuple[str, ...] = ("",),
        extra_columns: Mapping[str, NDArray[Any]] | None = None,
        **named: Sized,
    ) -> None:
        super().__init__(*columns, extra_columns=extra_columns, **named)
        self.__dict__.update(texts=texts)

    @property
    def fields(self) -> tuple[Field, ...]:
        """The columns; each ledger has its own labels of `error`."""
        fields = (*self.FIELDS[:-1], ("error", "u4", self.texts))
        return *fields, *(EXTRA_COLUMNS[name] for name in self.extra_columns)

    def __iter__(self) -> Iterator[Span]:
        return map(self.__getitem__, range(len(self)))

    def __getitem__(self, index: int) -> Span:
        """The span at an index. Raises IndexError."""
        cause = int(self.cause[index])
        return Span(
            int(self.start[index]),
            int(self.end[index]),
            Trust(self.kind[index]).label,
            self.texts[self.error[index]],
            ErrorClass(cause) if cause else None,
        )

    def __repr__(self) -> str:
        spans = [str(self[index]) for index in range(min(len(self), _MAX_SHOWN_SPANS))]
        more = (
            [f"and {len(self) - _MAX_SHOWN_SPANS:,} more"] if len(self) > _MAX_SHOWN_SPANS else []
        )
        return f"<Ledger: {', '.join(spans + more)}>"

    @classmethod
    def from_rows(cls, rows: Iterable[LedgerRow]) -> Self:
        """Build a ledger from rows of the native decoder."""
        texts: dict[str, int] = {"": 0}
        start, end, value = array("Q"), array("Q"), array("Q")
        kind, cause, error = array("B"), array("B"), array("I")
        for begin, until, trust, why, text, _, bad in rows:
            start.append(begin)
            end.append(until)
            kind.append(Trust.from_label(trust))
            cause.append(ErrorClass.from_label(why) if why else 0)
            value.append(bad or 0)
            error.append(texts.setdefault(text or "", len(texts)))
        return cls(start, end, kind, cause, value, error, texts=tuple(texts))
