"""What some threads did in a stream that is followed as a whole, since the kernel is in it."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from rtit.trace.tables.batch import Batch, End, Trust
from rtit.trace.tables.counts import Counts
from rtit.trace.tables.ledger import Row
from rtit.trace.tables.rows import Branches, Events, Rows

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


B = TypeVar("B", bound=Batch)

_ELSEWHERE = Trust.ELSEWHERE.label
_CONDITIONAL = (End.CUT, End.CONDITIONAL)
_INDIRECT = (End.INDIRECT_JUMP, End.INDIRECT_CALL, End.FAR, End.SYSCALL, End.VM_ENTRY)


class Own:
    """Takes the rows of threads out of batches that have a column `tid`, in order. What came before
    all rows is of the thread of the first; without any row, of these: no other is known.
    """

    def __init__(self, tids: frozenset[int]) -> None:
        self._tids = [*tids]
        self._was_own: bool | None = None
        self._taken = 0
        self._early: list[Events] = []

    def all(self, batches: Iterator[B]) -> Iterator[B]:
        """Those of a whole stream."""
        last = None
        for last in batches:
            yield self.of(last)
        if self._early and isinstance(last, Rows):
            yield last.replaced(events=_concatenated(self._early))

    def of(self, batch: B) -> B:
        """Those of a batch. Rows keep the events that came during them or behind them."""
        own = _are(self._tids, batch)
        if isinstance(batch, Rows):
            return self._rows(batch, own)  # type: ignore[return-value]
        return batch if own.all() else batch.take(own)

    def _rows(self, rows: Rows, own: NDArray[np.bool_]) -> Rows:
        import numpy as np

        if self._was_own is None:
            if not len(own):
                self._early.append(rows.events)
                return rows.take(own)
            self._was_own = bool(own[0])
        # place 0: the last row of the batch before
        behind = np.concatenate([[self._was_own], own])
        begun = np.concatenate([[0], np.cumsum(own)])
        happened = _concatenated([*self._early, rows.events])
        self._early.clear()
        at = (happened.row - np.uint64(rows.first)).astype(np.int64)
        # a row that has begun may come with the next batch
        inside = np.clip(at, 0, len(own))
        mine = behind[inside]
        row = begun[inside] + (at - inside) + self._taken
        events = happened.take(mine).replaced(row=row[mine].astype(np.uint64))
        found = rows.take(own).replaced(events=events, first=self._taken)
        self._taken += len(found)
        self._was_own = bool(behind[-1])
        return found


def _are(tids: list[int], batch: Batch) -> NDArray[np.bool_]:
    import numpy as np

    return np.isin(batch.more["tid"], tids)


def _concatenated(parts: list[Events]) -> Events:
    import numpy as np

    if len(parts) == 1:
        return parts[0]
    columns = [each.columns() for each in parts]
    names = columns[0].keys()
    whole = {name: np.concatenate([each[name] for each in columns]) for name in names}
    own = {name: whole.pop(name) for name, _, _ in Events.FIELDS}
    return Events(**own, more=whole)


class Shared:
    """How the bytes of a stream and what ran fall to threads: those up to the packet that told of
    the first row of another one are the thread's of the row before.
    """

    def __init__(self, tids: frozenset[int]) -> None:
        self._tids = [*tids]
        self._own: bool | None = None
        self._borders = array("Q")
        self._first = False
        self.instructions = 0
        self._kinds = [0] * (max(End) + 1)

    def see(self, rows: Rows) -> None:
        """The next rows of the whole stream."""
        import numpy as np

        own = _are(self._tids, rows)
        if not len(own):
            return
        if self._own is None:
            self._own = self._first = bool(own[0])
        before = np.concatenate([[self._own], own[:-1]])
        self._borders.extend(rows.offset[before != own].tolist())
        self._own = bool(own[-1])
        self.instructions += int(rows.instructions[own].sum())

    def see_branches(self, branches: Branches) -> None:
        """The next branches of the threads."""
        import numpy as np

        for kind, count in enumerate(np.bincount(branches.kind, minlength=len(self._kinds))):
            self._kinds[kind] += int(count)

    def ledger(self, rows: Iterable[Row]) -> Iterator[Row]:
        """The account of the whole stream, with the bytes of others elsewhere."""
        return _joined(self._parted(rows))

    def _parted(self, rows: Iterable[Row]) -> Iterator[Row]:
        borders, own, at = self._borders, self._first, 0
        for begin, end, *rest in rows:
            start = begin
            while at < len(borders) and borders[at] < end:
                if start < borders[at]:
                    yield _span(start, borders[at], rest, own=own)
                    start = borders[at]
                own = not own
                at += 1
            if start < end or begin == end:
                yield _span(start, end, rest, own=own)

    def counts(self, whole: Counts, rows: Iterable[Row]) -> Counts:
        """Those of the whole stream, with instructions, branches and bytes of the threads alone."""
        sizes = dict.fromkeys((each.label for each in Trust), 0)
        for start, end, kind, *_ in self.ledger(rows):
            sizes[kind] += end - start
        return replace(
            whole,
            instructions=self.instructions,
            conditional=sum(self._kinds[kind] for kind in _CONDITIONAL),
            indirect=sum(self._kinds[kind] for kind in _INDIRECT),
            returns=self._kinds[End.RETURN],
            exact_bytes=sizes[Trust.EXACT.label],
            resumed_bytes=sizes[Trust.RESUMED.label],
            lost_bytes=sizes[Trust.LOST.label],
            elsewhere_bytes=sizes[_ELSEWHERE],
        )


def _span(start: int, end: int, rest: list[Any], *, own: bool) -> Row:
    kind, *error = rest
    # what is lost may be anybody's
    if own or kind == Trust.LOST.label:
        return (start, end, kind, *error)
    return start, end, _ELSEWHERE, None, None, None, None


def _joined(rows: Iterable[Row]) -> Iterator[Row]:
    """Spans of others that follow each other as one."""
    last = None
    for row in rows:
        if last is not None and row[2] == last[2] == _ELSEWHERE:
            last = last[0], row[1], *row[2:]
            continue
        if last is not None:
            yield last
        last = row
    if last is not None:
        yield last
