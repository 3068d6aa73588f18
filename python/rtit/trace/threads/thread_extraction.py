"""Rows, bytes and counts of selected threads, taken from a CPU stream that was decoded as a whole.

Used where the decoder cannot skip other threads because kernel code was traced (see `schedule`).
`ThreadFilter` selects rows of any table. `ThreadAccounting` attributes what has no row of its own:
the bytes of the packets, for the coverage ledger and the totals.

Both assume batches that come in stream order and that have the column `tid`.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from rtit.trace.tables.batch import Batch, End, Trust
from rtit.trace.tables.counts import Counts
from rtit.trace.tables.coverage_ledger import LedgerRow
from rtit.trace.tables.rows import Branches, Events, Rows

B = TypeVar("B", bound=Batch)

_ELSEWHERE = Trust.ELSEWHERE.label
_CONDITIONAL_ENDS = (End.CUT, End.CONDITIONAL)
_INDIRECT_ENDS = (End.INDIRECT_JUMP, End.INDIRECT_CALL, End.FAR, End.SYSCALL, End.VM_ENTRY)


class ThreadFilter:
    """Selects the rows of some threads from the batches of one stream.

    An event belongs to the row during or after which it occurred. Events before the first row
    belong to that row's thread; if a stream has no rows at all they are kept.
    """

    def __init__(self, tids: frozenset[int]) -> None:
        self._tids = [*tids]
        self._last_row_selected: bool | None = None
        """Of the batch before; None: no row yet."""
        self._rows_selected = 0
        self._early_events: list[Events] = []
        """Events before the first row."""

    def filter_batches(self, batches: Iterator[B]) -> Iterator[B]:
        """Yield the selected rows of a whole stream, batch by batch."""
        batch = None
        for batch in batches:
            yield self.select_rows(batch)
        if self._early_events and isinstance(batch, Rows):
            yield batch.replace(events=_concatenate_event_tables(self._early_events))

    def select_rows(self, batch: B) -> B:
        """Return the selected rows of the next batch."""
        selected = _is_selected(batch, self._tids)
        if isinstance(batch, Rows):
            return self._select_with_events(batch, selected)  # type: ignore[return-value]
        return batch if selected.all() else batch.select_rows(selected)

    def _select_with_events(self, rows: Rows, selected: NDArray[np.bool_]) -> Rows:
        if self._last_row_selected is None:
            if not len(selected):
                self._early_events.append(rows.events)
                return rows.select_rows(selected)
            self._last_row_selected = bool(selected[0])
        events = _concatenate_event_tables([*self._early_events, rows.events])
        self._early_events.clear()
        # `started`: rows of this batch that had started when an event occurred, so that the event
        # belongs to row `started - 1`; 0 is the last row of the batch before. An event can be ahead
        # of this batch: its row then comes with the next one.
        started = (events.row - np.uint64(rows.first)).astype(np.int64)
        inside = np.clip(started, 0, len(selected))
        owner_selected = np.concatenate([[self._last_row_selected], selected])
        selected_before = np.concatenate([[0], np.cumsum(selected)])
        is_kept = owner_selected[inside]
        new_row = selected_before[inside] + (started - inside) + self._rows_selected
        events = events.select_rows(is_kept).replace(row=new_row[is_kept].astype(np.uint64))
        found = rows.select_rows(selected).replace(events=events, first=self._rows_selected)
        self._rows_selected += len(found)
        self._last_row_selected = bool(owner_selected[-1])
        return found


class ThreadAccounting:
    """Attributes the bytes of a stream, and what ran, to selected and other threads.

    A row's `offset` is that of the packet that ended it. Where rows change from one side to the
    other, the bytes before the new row's packet belong to the side of the row before.
    """

    def __init__(self, tids: frozenset[int]) -> None:
        self._tids = [*tids]
        self._starts_selected = False
        self._last_selected: bool | None = None
        self._boundaries = array("Q")
        """Offsets at which the stream changes between selected and other threads."""
        self._branches_by_end = [0] * (max(End) + 1)
        self.instructions = 0

    def add_rows(self, rows: Rows) -> None:
        """Takes the next rows of the whole stream, unfiltered."""
        selected = _is_selected(rows, self._tids)
        if not len(selected):
            return
        if self._last_selected is None:
            self._last_selected = self._starts_selected = bool(selected[0])
        before = np.concatenate([[self._last_selected], selected[:-1]])
        self._boundaries.extend(rows.offset[before != selected].tolist())
        self._last_selected = bool(selected[-1])
        self.instructions += int(rows.instructions[selected].sum())

    def add_branches(self, branches: Branches) -> None:
        """Takes the next branches of the selected threads."""
        counts = np.bincount(branches.kind, minlength=len(self._branches_by_end))
        for end, count in enumerate(counts):
            self._branches_by_end[end] += int(count)

    def ledger_of_threads(self, rows: Iterable[LedgerRow]) -> Iterator[LedgerRow]:
        """Return the stream's ledger, with bytes of other threads as `elsewhere`."""
        return _merge_elsewhere(self._split_at_boundaries(rows))

    def _split_at_boundaries(self, rows: Iterable[LedgerRow]) -> Iterator[LedgerRow]:
        selected, next_boundary = self._starts_selected, 0
        for start, end, *rest in rows:
            at = start
            while next_boundary < len(self._boundaries) and self._boundaries[next_boundary] < end:
                if at < self._boundaries[next_boundary]:
                    yield _ledger_row(at, self._boundaries[next_boundary], rest, selected=selected)
                    at = self._boundaries[next_boundary]
                selected = not selected
                next_boundary += 1
            if at < end or start == end:
                yield _ledger_row(at, end, rest, selected=selected)

    def counts_of_threads(self, stream_counts: Counts, ledger_rows: Iterable[LedgerRow]) -> Counts:
        """The stream's totals, with instructions, branches and bytes of the selected threads."""
        sizes = dict.fromkeys((trust.label for trust in Trust), 0)
        for start, end, trust, *_ in self.ledger_of_threads(ledger_rows):
            sizes[trust] += end - start
        return replace(
            stream_counts,
            instructions=self.instructions,
            conditional=sum(self._branches_by_end[end] for end in _CONDITIONAL_ENDS),
            indirect=sum(self._branches_by_end[end] for end in _INDIRECT_ENDS),
            returns=self._branches_by_end[End.RETURN],
            exact_bytes=sizes[Trust.EXACT.label],
            resumed_bytes=sizes[Trust.RESUMED.label],
            lost_bytes=sizes[Trust.LOST.label],
            elsewhere_bytes=sizes[_ELSEWHERE],
        )


def _is_selected(batch: Batch, tids: list[int]) -> NDArray[np.bool_]:
    return np.isin(batch.extra_columns["tid"], tids)


def _concatenate_event_tables(parts: list[Events]) -> Events:
    if len(parts) == 1:
        return parts[0]
    names = tuple(parts[0].extra_columns)
    columns = Events.concatenate(iter(parts), names)
    return Events(extra_columns={name: columns.pop(name) for name in names}, **columns)


def _ledger_row(start: int, end: int, rest: list[Any], *, selected: bool) -> LedgerRow:
    trust, *error = rest
    # Lost bytes have no rows, so they may be of any thread: every thread reports them.
    if selected or trust == Trust.LOST.label:
        return (start, end, trust, *error)
    return start, end, _ELSEWHERE, None, None, None, None


def _merge_elsewhere(rows: Iterable[LedgerRow]) -> Iterator[LedgerRow]:
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
