"""The end of what a thread did: as much as a debugger is given of it."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from rtit.errors import RtitError
from rtit.trace import End, EventKind, Selection
from rtit.views.trace_tail import GAP_EVENTS, TraceTail

if TYPE_CHECKING:
    from rtit.trace import Rows, Stream

_COLUMNS = ("start", "last", "instructions", "time", "end")
_TRANSFERS = (
    End.CONDITIONAL, End.JUMP, End.CALL, End.INDIRECT_JUMP, End.INDIRECT_CALL, End.RETURN, End.FAR,
)  # fmt: skip
_MOST_BYTES = 1 << 25
_MOST_SYNCS = 1 << 16
_FURTHER = 8
"""The packets from a PSB on may have so many times the instructions that were asked for."""


@dataclass(frozen=True, slots=True)
class Sync:
    """A PSB: its offset in the stream, and how many instructions come before it."""

    offset: int
    before: int


class Path:
    """The last instructions of a thread, `most` or some more.

    `instructions`: how many it executed, as far as they could be decoded; `start`, `last`, `time`,
    `end`: columns with a row a run, as in `Rows`, of the last of them; `broken`: whether something
    is missing behind a row; `kept`: how many instructions those rows have; `next`: the IP behind
    the last row, None if no packet told it; `left`: whether one told that the thread went on where
    nothing is traced; `sync`: the PSB from which on a decoder can be given the packets themselves,
    None if there is none near enough.
    """

    def __init__(self, streams: Sequence[Stream], most: int, since: int = 0) -> None:
        """`streams` are those of one thread, one at least; what was before `since` (TSC) is left
        out. Raises what decoding does.
        """
        self.streams = streams
        parts = [_Part(most) for _ in streams]
        for part, stream in zip(parts, streams, strict=True):
            for rows in stream.rows():
                part.add(rows, since)
            stream.forget()
        self.instructions = sum(part.instructions for part in parts)
        start, last, counts, time, end, broken = _together(parts, streams)
        kept = slice(_first(counts, most), None)
        self.start, self.last, self.time = start[kept], last[kept], time[kept]
        self.end, self.broken, counts = end[kept], broken[kept], counts[kept]
        self.kept = int(counts.sum())
        final, self._final = max(
            zip(reversed(parts), reversed(streams), strict=True),
            key=lambda pair: pair[0].tail.time,
        )
        self.next, self.left = final.tail.next_ip, final.tail.left_traced_code
        self._lost = final.tail.has_gap
        whole = len(streams) == 1 and streams[0].shares is None
        self.sync = parts[0].sync(streams[0].size, most) if whole else None

    @property
    def turned(self) -> bool:
        """Whether the last row ends with a branch that was taken, or another transfer."""
        return bool(len(self.end)) and int(self.end[-1]) in _TRANSFERS

    def target(self) -> int | None:
        """Where the last branch went, if it ends the last row; None if that is not known. Decodes
        once more; raises what decoding does.
        """
        found = [*self._final.branches(Selection(tail=1)).rows()]
        self._final.forget()
        return next((each.target for each in found if each.source == self.last[-1]), None)

    @property
    def gaps(self) -> int:
        """How often something is missing between rows, or behind the last."""
        return int(self.broken[:-1].sum()) + self._lost

    def packets(self) -> bytes:
        """The packets from `sync` on."""
        if self.sync is None:
            raise RtitError("the packets of this thread cannot be given alone")
        found, at = [], 0
        for part in self.streams[0].parts():
            if at + len(part) > self.sync.offset:
                found.append(bytes(part[max(0, self.sync.offset - at) :]))
            at += len(part)
        return b"".join(found)

    def given(self, *, packets: bool) -> int:
        """How many instructions that is: of the packets, or of the rows."""
        if packets and self.sync is not None:
            return self.instructions - self.sync.before
        return self.kept


class _Part:
    """The end of one stream, in bounded memory."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._batches: deque[tuple[Any, ...]] = deque()
        self._held = 0
        self._syncs: deque[Sync] = deque(maxlen=_MOST_SYNCS)
        self.instructions = 0
        self.tail = TraceTail()

    def add(self, rows: Rows, since: int) -> None:
        self._note(rows, since)
        self.tail.add(rows)
        kept = rows.time >= np.uint64(since)
        if not kept.any():
            return
        broken = rows.end == End.LOST
        holes = rows.events.row[np.isin(rows.events.kind, GAP_EVENTS)].astype(np.int64) - rows.first
        broken[holes[holes > 0] - 1] = True
        if (holes == 0).any() and self._batches:
            self._batches[-1][-1][-1] = True
        columns = *(getattr(rows, name)[kept] for name in _COLUMNS), broken[kept]
        count = int(columns[2].sum())
        self.instructions += count
        self._batches.append(columns)
        self._held += count
        while self._held - (oldest := int(self._batches[0][2].sum())) >= self._most:
            self._batches.popleft()
            self._held -= oldest

    def _note(self, rows: Rows, since: int) -> None:
        """Remember the PSBs from which on there is enough, and one before."""
        here = rows.events.kind == EventKind.PSB
        if not here.any():
            return
        counts = np.where(rows.time >= np.uint64(since), rows.instructions, 0)
        before = np.append(0, np.cumsum(counts, dtype=np.int64))
        for row, offset, time in zip(
            (rows.events.row[here] - np.uint64(rows.first)).tolist(),
            rows.events.offset[here].tolist(),
            rows.events.time[here].tolist(),
            strict=True,
        ):
            if time >= since:
                at = self.instructions + int(before[min(row, len(before) - 1)])
                self._syncs.append(Sync(offset, at))
        while len(self._syncs) > 1 and self.instructions - self._syncs[1].before >= self._most:
            self._syncs.popleft()

    def sync(self, size: int, most: int) -> Sync | None:
        found = None
        for each in self._syncs:
            if found is None or self.instructions - each.before >= most:
                found = each
        if found is None or size - found.offset > _MOST_BYTES:
            return None
        return found if self.instructions - found.before <= most * _FURTHER else None

    def columns(self) -> tuple[Any, ...]:
        empty = tuple(np.zeros(0, dtype) for dtype in ("u8", "u8", "u4", "u8", "u1", "?"))
        return tuple(map(np.concatenate, zip(empty, *self._batches, strict=True)))


def _together(parts: Iterable[_Part], streams: Iterable[Stream]) -> tuple[Any, ...]:
    """The rows of all parts in order of time."""
    found = []
    for part, stream in zip(parts, streams, strict=True):
        found.append(part.columns())
        if stream.part:  # a snapshot: something was left out behind it
            found[-1][-1][-1:] = True
    columns = tuple(map(np.concatenate, zip(*found, strict=True)))
    order = np.argsort(columns[3], kind="stable")
    return tuple(column[order] for column in columns)


def _first(counts: Any, most: int) -> int:
    """From which row on there are `most` instructions."""
    after = np.cumsum(counts[::-1], dtype=np.int64)
    return max(0, len(counts) - 1 - int(np.searchsorted(after, most)))
