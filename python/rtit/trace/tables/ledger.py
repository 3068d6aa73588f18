"""The account of a stream's bytes."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Mapping, Sized
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Self

from rtit.trace.tables.batch import MORE, Batch, ErrorClass, Field, Trust

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from rtit import _core


Row = tuple[int, int, str, str | None, str | None, int | None, int | None]
"""As the native decoder gives them: start, end, trust; class of the error, text, offset, value."""


_GAPS = (Trust.RESUMED.label, Trust.LOST.label)
_SHOWN = 10
"""Spans that the text of a ledger has: that of a damaged stream may have millions."""
_AT_ONCE = 1 << 12


def account(native: _core.Flow | _core.Decoder) -> Iterator[Row]:
    """The rows of a decoder's account, some at a time: each takes ten times the room that it has
    in there.
    """
    first, rows = 0, native.ledger(0, _AT_ONCE)
    while rows:
        yield from rows
        first += len(rows)
        rows = native.ledger(first, _AT_ONCE) if len(rows) == _AT_ONCE else []


@dataclass(frozen=True, slots=True)
class Span:
    """What is known of bytes `start`..`end` of a stream: `kind` is exact, resumed, lost, or
    elsewhere for what another thread did; `error` says why, `cause` what kind of error that is,
    None where there is none.
    """

    start: int
    end: int
    kind: str
    error: str
    cause: ErrorClass | None = None

    @property
    def is_gap(self) -> bool:
        """Whether something of what ran may be missing in it."""
        return self.kind in _GAPS

    @classmethod
    def of(cls, row: Row) -> Self:
        """From a row of the native decoder's account."""
        start, end, trust, cause, text, _, _ = row
        return cls(start, end, trust, text or "", ErrorClass.labelled(cause) if cause else None)

    def __str__(self) -> str:
        text = f"bytes {self.start:#x} to {self.end:#x} {self.kind}"
        return f"{text}: {self.error}" if self.error else text


def with_losses(rows: Iterable[Row], losses: Iterable[tuple[int, str]]) -> Iterator[Row]:
    """The rows of an account, and between them what is missing at these offsets: nothing of the
    stream, so that no byte more is lost.
    """
    waiting = sorted(losses, key=lambda loss: loss[0])[::-1]
    end = 0
    for begin, end, *rest in rows:
        start = begin
        while waiting and waiting[-1][0] < end:
            at, reason = waiting.pop()
            if start < at:
                yield start, at, *rest  # type: ignore[misc]
                start = at
            yield _missing(start, reason)
        yield start, end, *rest  # type: ignore[misc]
    for _, reason in reversed(waiting):
        yield _missing(end, reason)


def _missing(at: int, reason: str) -> Row:
    return at, at, Trust.LOST.label, ErrorClass.HARDWARE_LOSS.label, reason, at, 0


class Ledger(Batch):
    """Spans of a stream, without gaps between them, as columns of one length; iterated and by
    number they are `Span`s.

    `start`, `end`: offsets; `kind`: a `Trust`; `cause`: an `ErrorClass`, 0 where nothing is wrong;
    `value`: the bad value, 0 if there is none; `error`: a place in `texts`, which say why.
    """

    FIELDS: ClassVar[tuple[Field, ...]] = (
        ("start", "u8", None),
        ("end", "u8", None),
        ("kind", "u1", Trust),
        ("cause", "u1", ErrorClass),
        ("value", "u8", None),
        ("error", "u4", ()),
    )
    WHEN: ClassVar[str | None] = None
    start: NDArray[np.uint64]
    end: NDArray[np.uint64]
    kind: NDArray[np.uint8]
    cause: NDArray[np.uint8]
    value: NDArray[np.uint64]
    error: NDArray[np.uint32]
    texts: tuple[str, ...]

    def __init__(
        self,
        *columns: Sized,
        texts: tuple[str, ...] = ("",),
        more: Mapping[str, NDArray[Any]] | None = None,
        **named: Sized,
    ) -> None:
        super().__init__(*columns, more=more, **named)
        self.__dict__.update(texts=texts)

    @property
    def fields(self) -> tuple[Field, ...]:
        """The columns; the words of `error` are this ledger's own."""
        own = (*self.FIELDS[:-1], ("error", "u4", self.texts))
        return *own, *(MORE[name] for name in self.more)

    def __iter__(self) -> Iterator[Span]:
        return map(self.__getitem__, range(len(self)))

    def __getitem__(self, index: int) -> Span:
        """Span `index`; raises IndexError."""
        cause = int(self.cause[index])
        return Span(
            int(self.start[index]),
            int(self.end[index]),
            Trust(self.kind[index]).label,
            self.texts[self.error[index]],
            ErrorClass(cause) if cause else None,
        )

    def __repr__(self) -> str:
        spans = [str(self[index]) for index in range(min(len(self), _SHOWN))]
        more = [f"and {len(self) - _SHOWN:,} more"] if len(self) > _SHOWN else []
        return f"<Ledger: {', '.join(spans + more)}>"

    @classmethod
    def of(cls, rows: Iterable[Row]) -> Self:
        """From the account of the native decoder."""
        texts: dict[str, int] = {"": 0}
        start, end, value = array("Q"), array("Q"), array("Q")
        kind, cause, error = array("B"), array("B"), array("I")
        for begin, until, trust, why, text, _, bad in rows:
            start.append(begin)
            end.append(until)
            kind.append(Trust.labelled(trust))
            cause.append(ErrorClass.labelled(why) if why else 0)
            value.append(bad or 0)
            error.append(texts.setdefault(text or "", len(texts)))
        return cls(start, end, kind, cause, value, error, texts=tuple(texts))
