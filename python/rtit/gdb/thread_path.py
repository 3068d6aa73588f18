"""The end of a thread's path: the instructions that gdb gets.

gdb keeps every instruction in memory, so a thread is cut to its last instructions. If the thread
has a stream of its own, gdb can decode the packets from a PSB on (`sync_point`); otherwise it gets
the decoded runs as blocks.

Such a stream is decoded from a PSB near its end. `_decode_end` explains when the result is that of
the whole stream; otherwise more of the stream is decoded.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
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
_MIN_DECODED_BYTES = 1 << 16
"""Bytes at the end of a stream that are decoded first."""
_MAX_PSB_PLUS_PACKETS = 64
_LEAD_IN_PSBS = 8
"""PSBs before the last instructions at which decoding begins; the decoder's threads use as many."""
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
        is_alone = len(streams) == 1 and streams[0].thread_scope is None
        decode = _decode_end if is_alone else _LastRowsOfStream
        stream_ends = [decode(stream, limit, since) for stream in streams]
        self.instructions = sum(stream_end.instructions for stream_end in stream_ends)
        """Number of decoded instructions."""
        self.is_whole = not any(stream_end.offset for stream_end in stream_ends)
        """Whether the streams were decoded from their beginning."""
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
        self._last_decoded_stream = final.decoded_stream
        self.sync_point = stream_ends[0].sync_point(streams[0].size, limit) if is_alone else None
        """PSB at which packets can start; None if there is none near enough."""

    @property
    def ends_with_transfer(self) -> bool:
        """Whether the last row ends with a branch that was taken, or another transfer."""
        return bool(len(self.end)) and int(self.end[-1]) in _TRANSFERS

    def last_branch_target(self) -> int | None:
        """Return the target of the branch that ends the last row; None if it is unknown.

        Decodes the packets again; raises what decoding raises.
        """
        found = [*self._last_decoded_stream.branches(Selection(tail=1)).rows()]
        self._last_decoded_stream.discard_decoder()
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
    """The last rows of one stream, in bounded memory. `offset`: that of the stream in its thread's
    stream.
    """

    def __init__(self, stream: Stream, limit: int, since: int, offset: int = 0) -> None:
        self._limit = limit
        self.offset = offset
        self.decoded_stream = stream
        self._batches: deque[tuple[Any, ...]] = deque()
        self._batch_instructions = 0
        self._sync_points: deque[SyncPoint] = deque(maxlen=_MAX_SYNC_POINTS)
        self._psb_count = 0
        self.instructions = 0
        self.instructions_in_lead_in: int | None = None
        """Instructions before the PSB after the lead-in; None if there is no such PSB."""
        self.has_errors = False
        self.tail = TraceTail()
        for rows in stream.rows():
            self._add_rows(rows, since)
        stream.discard_decoder()

    def _add_rows(self, rows: Rows, since: int) -> None:
        self.has_errors |= bool((rows.events.kind == EventKind.ERROR).any())
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
            at = self.instructions + int(before[min(row, len(before) - 1)])
            if self._psb_count == _LEAD_IN_PSBS:
                self.instructions_in_lead_in = at
            self._psb_count += 1
            if time >= since:
                self._sync_points.append(SyncPoint(self.offset + offset, at))
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


def _decode_end(stream: Stream, limit: int, since: int) -> _LastRowsOfStream:
    """Decode the end of a stream, and return the last rows of the whole stream.

    A PSB+ has nearly the whole state of a decoder. The rest, such as the clock rate, is known some
    PSBs later. But an error can depend on all packets before it, and without TSC packets the time
    of the code is unknown. The whole stream is decoded then.
    """
    size, whole_size = max(_MIN_DECODED_BYTES, limit // 4), stream.size
    while size < whole_size // 2:
        end = stream.tail(size)
        if end is not stream:
            if not _begins_with_tsc(end):
                break
            found = _LastRowsOfStream(end, limit, since, whole_size - end.size)
            if found.has_errors:
                break
            lead_in = found.instructions_in_lead_in
            if lead_in is not None and found.instructions - lead_in > limit:
                return found
        size *= 4
    return _LastRowsOfStream(stream, limit, since)


def _begins_with_tsc(stream: Stream) -> bool:
    """Return whether the PSB+ at the start of the stream has a TSC."""
    names = (getattr(packet, "name", "") for packet in islice(stream.scan(), _MAX_PSB_PLUS_PACKETS))
    return next((name for name in names if name in ("TSC", "PSBEND")), "") == "TSC"


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
