"""The end of a thread's path: the instructions that gdb gets.

gdb keeps every instruction in memory, so a thread is cut to its last instructions. If the thread
has a stream of its own, gdb can decode the packets from a PSB on (`sync_point`); otherwise it gets
the decoded runs as blocks.
"""

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
    from rtit.image import Image
    from rtit.trace import Rows, Stream

_RUN_COLUMNS = ("start", "last", "instructions", "time", "end")
_TRANSFERS = (
    End.CONDITIONAL, End.JUMP, End.CALL, End.INDIRECT_JUMP, End.INDIRECT_CALL, End.RETURN, End.FAR,
)  # fmt: skip
_MAX_PACKET_BYTES = 1 << 25
_MAX_SYNC_POINTS = 1 << 16
_MAX_PACKET_EXCESS = 8
"""Packets may have so many times the requested instructions; with more, blocks are sent instead."""


@dataclass(frozen=True, slots=True)
class SyncPoint:
    """A PSB: its offset in the stream, and the number of instructions before it."""

    offset: int
    instructions_before: int


class ThreadPath:
    """The last instructions of a thread: `limit`, or some more.

    `start`, `last`, `time` and `end` are columns of runs, as in `Rows`. `gap_after` shows whether
    execution may be missing after a row.
    """

    def __init__(self, streams: Sequence[Stream], limit: int, since: int = 0) -> None:
        """Decode the streams of a thread, of which there is at least one.

        Leaves out rows before the TSC value `since`. Raises what decoding raises.
        """
        self.streams = streams
        stream_ends = [_LastRowsOfStream(limit) for _ in streams]
        for stream_end, stream in zip(stream_ends, streams, strict=True):
            for rows in stream.rows():
                stream_end.add_rows(rows, since)
            stream.discard_decoder()
        self.instructions = sum(stream_end.instructions for stream_end in stream_ends)
        """Number of instructions that the thread executed, as far as they could be decoded."""
        start, last, counts, time, end, gap_after = _merge_by_time(stream_ends, streams)
        kept = slice(_first_of_last_rows(counts, limit), None)
        self.start, self.last, self.time = start[kept], last[kept], time[kept]
        self.end, self.gap_after, counts = end[kept], gap_after[kept], counts[kept]
        self.row_instructions = int(counts.sum())
        """Number of instructions in the rows."""
        final, self.last_stream = max(
            zip(reversed(stream_ends), reversed(streams), strict=True),
            key=lambda pair: pair[0].tail.time,
        )
        self.next_ip, self.left_traced_code = (
            final.tail.next_ip,
            final.tail.left_traced_code,
        )
        self._ends_with_gap = final.tail.has_gap
        is_alone = len(streams) == 1 and streams[0].thread_scope is None
        self.sync_point = stream_ends[0].sync_point(streams[0].size, limit) if is_alone else None
        """PSB at which packets can start; None if there is none near enough."""

    @property
    def ends_with_transfer(self) -> bool:
        """Whether the last row ends with a branch that was taken, or another transfer."""
        return bool(len(self.end)) and int(self.end[-1]) in _TRANSFERS

    def last_branch_target(self) -> int | None:
        """Return the target of the branch that ends the last row; None if it is unknown.

        Decodes the stream again; raises what decoding raises.
        """
        found = [*self.last_stream.branches(Selection(tail=1)).rows()]
        self.last_stream.discard_decoder()
        known = (each.target for each in found if each.source == self.last[-1] and each.target)
        return next(known, None)

    @property
    def gap_count(self) -> int:
        """Number of rows after which execution may be missing."""
        return int(self.gap_after[:-1].sum()) + self._ends_with_gap

    def packets_from_sync_point(self) -> bytes:
        """Return the packets from `sync_point` on."""
        if self.sync_point is None:
            raise RtitError("the packets of this thread are mixed with those of others")
        return self.streams[0].read(self.sync_point.offset)

    def instruction_count_for_gdb(self, *, packets: bool) -> int:
        """Return the number of instructions in the packets, or in the rows."""
        if packets and self.sync_point is not None:
            return self.instructions - self.sync_point.instructions_before
        return self.row_instructions


class _LastRowsOfStream:
    """Collects the last rows of one stream, in bounded memory."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._batches: deque[tuple[Any, ...]] = deque()
        self._batch_instructions = 0
        self._sync_points: deque[SyncPoint] = deque(maxlen=_MAX_SYNC_POINTS)
        self.instructions = 0
        self.tail = TraceTail()

    def add_rows(self, rows: Rows, since: int) -> None:
        self._keep_sync_points(rows, since)
        self.tail.add_rows(rows)
        kept = rows.time >= np.uint64(since)
        if not kept.any():
            return
        gap_after = rows.end == End.LOST
        gap_rows = (
            rows.events.row[np.isin(rows.events.kind, GAP_EVENTS)].astype(np.int64) - rows.first
        )
        gap_after[gap_rows[gap_rows > 0] - 1] = True
        if (gap_rows == 0).any() and self._batches:
            self._batches[-1][-1][-1] = True
        columns = *(getattr(rows, name)[kept] for name in _RUN_COLUMNS), gap_after[kept]
        count = int(columns[2].sum())
        self.instructions += count
        self._batches.append(columns)
        self._batch_instructions += count
        while self._batch_instructions - (oldest := int(self._batches[0][2].sum())) >= self._limit:
            self._batches.popleft()
            self._batch_instructions -= oldest

    def _keep_sync_points(self, rows: Rows, since: int) -> None:
        """Keep the PSBs after which there are enough instructions, and one before."""
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
                self._sync_points.append(SyncPoint(offset, at))
        while (
            len(self._sync_points) > 1
            and self.instructions - self._sync_points[1].instructions_before >= self._limit
        ):
            self._sync_points.popleft()

    def sync_point(self, size: int, limit: int) -> SyncPoint | None:
        found = None
        for each in self._sync_points:
            if found is None or self.instructions - each.instructions_before >= limit:
                found = each
        if found is None or size - found.offset > _MAX_PACKET_BYTES:
            return None
        return (
            found
            if self.instructions - found.instructions_before <= limit * _MAX_PACKET_EXCESS
            else None
        )

    def columns_of_last_rows(self) -> tuple[Any, ...]:
        empty = tuple(np.zeros(0, dtype) for dtype in ("u8", "u8", "u4", "u8", "u1", "?"))
        return tuple(map(np.concatenate, zip(empty, *self._batches, strict=True)))


def _merge_by_time(
    stream_ends: Iterable[_LastRowsOfStream], streams: Iterable[Stream]
) -> tuple[Any, ...]:
    """Return the rows of all streams in order of time."""
    found = []
    for stream_end, stream in zip(stream_ends, streams, strict=True):
        found.append(stream_end.columns_of_last_rows())
        if stream.part:  # a snapshot: execution after it is not recorded
            found[-1][-1][-1:] = True
    columns = tuple(map(np.concatenate, zip(*found, strict=True)))
    order = np.argsort(columns[3], kind="stable")
    return tuple(column[order] for column in columns)


def _first_of_last_rows(counts: Any, limit: int) -> int:
    """Return the first of the rows that have the last `limit` instructions."""
    after = np.cumsum(counts[::-1], dtype=np.int64)
    return max(0, len(counts) - 1 - int(np.searchsorted(after, limit)))


_MAX_INSTRUCTION_BYTES = 15
END_OF_TIME = (1 << 64) - 1


def ip_after_instruction(image: Image, ip: int, time: int = END_OF_TIME) -> int | None:
    """Return the IP of the instruction after the one at `ip`; None if its code is unknown."""
    from rtit._core import decode_instruction

    try:
        return ip + decode_instruction(image.read(ip, _MAX_INSTRUCTION_BYTES, time=time), ip)[0]
    except ValueError:
        return None
