"""The AUX buffers of a recording: a summary of each, and the alignment of snapshots.

`summarize_buffer` scans the packets of a stream once and counts synchronization points, losses and
the bytes of each thread. `group_contiguous` and `align_snapshots` order snapshots: each snapshot
has the last bytes of its buffer, so two of them can share bytes, or have a gap between them.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from rtit.errors import RtitError
from rtit.perfdata import AuxChunk
from rtit.sideband.scheduling import UNKNOWN, IntervalList
from rtit.trace.recording.byte_source import AuxDataSource
from rtit.trace.tables.packets import PACKET_KINDS
from rtit.trace.time.guest_time import HostTimeSource

if TYPE_CHECKING:
    from rtit import _core
    from rtit.perfdata import TimeConversion
    from rtit.trace.stream import Stream


_TSC_RANGE = 1 << 56
"""TSC packets have 56 bits."""
_BATCH_PACKETS = 1 << 16
_MAX_LISTED_THREADS = 64
_PSB, _PSBEND, _TSC, _OVF, _CYC = map(PACKET_KINDS.index, ("PSB", "PSBEND", "TSC", "OVF", "CYC"))
_UNKNOWN_THREAD = (UNKNOWN, UNKNOWN)


@dataclass(frozen=True, slots=True)
class ThreadBytes:
    """The bytes of a buffer that were written while thread `tid` of process `pid` had the CPU.

    Thread 0 is the idle thread, -1 is unknown. `pid` and `tid` are None for several `threads`
    together.
    """

    pid: int | None
    tid: int | None
    name: str | None
    size: int
    threads: int = 1

    @property
    def title(self) -> str:
        """The thread in words."""
        if self.tid is None:
            return f"{self.threads:,} other threads"
        if self.tid == 0:
            return "idle"
        if self.tid < 0:
            return "unknown thread"
        return f"thread {self.tid}" + (f" ({self.name})" if self.name else "")


@dataclass(slots=True)
class BufferSummary:
    """One buffer of PT: `pieces` are AUX records, `psbs` synchronization points, `overflows` losses
    that the processor reported, `bad` bytes that are no packet.

    `first` and `last` are the times of the first and last TSC packet, in ns of the perf clock or in
    TSC ticks without one. `threads` has the bytes of each thread, the largest first, and beyond 64
    threads one entry for the rest; their sizes add up to `size`. A thread's bytes start at the
    first packet after the start of its interval, at the PSB of a PSB+, and at a CYC before.
    """

    title: str
    cpu: int
    size: int
    pieces: int
    psbs: int = 0
    overflows: int = 0
    bad: int = 0
    first: int | None = None
    last: int | None = None
    threads: list[ThreadBytes] = field(default_factory=list)


def summarize_buffer(
    stream: Stream, clock: TimeConversion | None, names: Mapping[int, str]
) -> BufferSummary:
    """Scan all packets of a stream, once. `names`: thread names by tid."""
    from rtit._core import PacketScan

    source = stream.source
    source = source.source if isinstance(source, HostTimeSource) else source
    pieces = source.pieces if isinstance(source, AuxDataSource) else []
    summary = BufferSummary(stream.title, stream.cpu, stream.size, len(pieces))
    high_bits = pieces[0].reference // _TSC_RANGE * _TSC_RANGE if pieces else 0
    threads = _ThreadByteCounter.for_stream(stream)
    scan = PacketScan(stream.chunks(), threads.clocks)
    while (batch := scan.next(_BATCH_PACKETS)) is not None:
        # Bytes are searched without NumPy, which need not be loaded for this.
        kinds, payload, bad = bytes(batch["kind"]), memoryview(batch["payload"]), batch["bad"]
        summary.psbs += kinds.count(_PSB)
        summary.overflows += kinds.count(_OVF)
        summary.bad += bad[1] if bad is not None else 0
        rows = kinds.find(_TSC), kinds.rfind(_TSC)
        if rows[0] >= 0:
            first, last = (high_bits | payload[row] for row in rows)
            if clock is not None:
                first, last = clock.to_nanoseconds(first), clock.to_nanoseconds(last)
            summary.first = first if summary.first is None else summary.first
            summary.last = last
        if batch["times"] is not None:
            threads.add_packets(kinds, batch["offset"], batch["times"])
    # The size of a pipe is known only now.
    summary.size = source.size
    largest, count, rest = threads.largest_threads(summary.size)
    summary.threads = [ThreadBytes(*each, names.get(each[1]), size) for each, size in largest]
    if count:
        summary.threads.append(ThreadBytes(None, None, None, rest, count))
    return summary


class _ThreadByteCounter:
    """Adds up the bytes of each scheduling interval; without intervals all bytes are `itself`'s."""

    def __init__(
        self, intervals: IntervalList, itself: tuple[int, int], clocks: dict[str, Any] | None
    ) -> None:
        self.clocks = clocks
        """None: packets need no times."""
        self._intervals = intervals
        self._itself = itself
        self._sizes = array("Q", bytes(8)) * (len(intervals) + 1)
        """By interval ordinal; 0 is the time before the first interval."""
        self._ordinal, self._start = 0, 0
        """The interval of the last packet, and the offset at which its bytes start."""
        self._psb_plus: int | None = None
        """Offset of the PSB+ that the last batch ended in."""
        self._cyc: int | None = None
        """Offset of a CYC at the end of the last batch."""
        self._has_time = False

    @classmethod
    def for_stream(cls, stream: Stream) -> _ThreadByteCounter:
        settings, itself = stream.settings, (stream.pid, stream.tid)
        if isinstance(settings, RtitError):  # For example: nothing separates several threads.
            return cls(IntervalList(), itself if stream.cpu < 0 else _UNKNOWN_THREAD, None)
        if stream.thread_scope is None:
            return cls(IntervalList(), itself, None)
        intervals = stream.thread_scope.schedule.intervals
        return cls(intervals, _UNKNOWN_THREAD, settings.native())

    def add_packets(
        self, kinds: bytes, offsets: _core.Column, times: Sequence[_core.Column]
    ) -> None:
        """Add the next packets with their times."""
        import numpy as np

        starts = np.asarray(self._intervals.start)
        ordinals = np.searchsorted(starts, np.asarray(times[0]), side="right")
        if not self._has_time:  # Before the first TSC the time is that of the AUX record.
            first = kinds.find(_TSC)
            ordinals[: len(kinds) if first < 0 else first] = 0
            self._has_time = first >= 0
        changes = np.flatnonzero(np.diff(ordinals, prepend=self._ordinal))
        kind, offset = np.frombuffer(kinds, np.uint8), np.asarray(offsets)
        psb_rows = np.flatnonzero(np.isin(kind, (_PSB, _PSBEND, _OVF)))

        def offset_with_preceding_cyc(row: int) -> int:
            """Return the offset of the packet, or of a CYC directly before it."""
            if kind[row] == _CYC:
                return int(offset[row])
            if not row:
                return int(offset[row]) if self._cyc is None else self._cyc
            return int(offset[row - (kind[row - 1] == _CYC)])

        def start_of_open_psb_plus(count: int) -> int | None:
            """Return the start of the PSB+ that is open after this many of `psb_rows`."""
            if not count:
                return self._psb_plus
            row = psb_rows[count - 1]
            return offset_with_preceding_cyc(int(row)) if kind[row] == _PSB else None

        counts = np.searchsorted(psb_rows, changes, side="right")
        for row, count in zip(changes, counts, strict=True):
            start = start_of_open_psb_plus(count)
            self._add_interval_size(offset_with_preceding_cyc(int(row)) if start is None else start)
            self._ordinal = int(ordinals[row])
        self._psb_plus = start_of_open_psb_plus(len(psb_rows))
        if kinds:
            self._cyc = int(offset[-1]) if kind[-1] == _CYC else None

    def largest_threads(self, end: int) -> tuple[list[tuple[tuple[int, int], int]], int, int]:
        """The (pid, tid) and bytes of the largest threads, of `end` bytes in all; the number of
        other threads, and their bytes.
        """
        self._add_interval_size(end)
        if not self._intervals:
            return [(self._itself, end)] if end else [], 0, 0
        import numpy as np

        sizes = np.asarray(self._sizes)
        ordinals = np.flatnonzero(sizes)
        ids = np.full((len(ordinals), 2), self._itself, np.int32)
        has_interval = ordinals > 0
        for column, values in enumerate((self._intervals.pid, self._intervals.tid)):
            ids[has_interval, column] = np.asarray(values)[ordinals[has_interval] - 1]
        ids[ids[:, 1] == UNKNOWN] = _UNKNOWN_THREAD
        pairs, index = np.unique(ids.view(np.int64).ravel(), return_inverse=True)
        totals = np.zeros(len(pairs), np.int64)
        np.add.at(totals, index.ravel(), sizes[ordinals].astype(np.int64))
        threads = pairs.view(np.int32).reshape(-1, 2)
        order = np.lexsort((threads[:, 1], threads[:, 0], -totals))
        first, rest = order[:_MAX_LISTED_THREADS], order[_MAX_LISTED_THREADS:]
        rows = [
            ((pid, tid), int(totals[at])) for at in first for pid, tid in [threads[at].tolist()]
        ]
        return rows, len(rest), int(totals[rest].sum())

    def _add_interval_size(self, end: int) -> None:
        self._sizes[self._ordinal] += end - self._start
        self._start = end


def group_contiguous(pieces: list[AuxChunk]) -> list[list[AuxChunk]]:
    """Return the snapshots of one buffer in groups without missing bytes."""
    groups: list[list[AuxChunk]] = []
    end = 0
    for piece in pieces:
        if not groups or piece.aux_offset > end:
            groups.append([])
            end = 0
        groups[-1].append(piece)
        end = max(end, piece.aux_offset + piece.size)
    return groups


def align_snapshots(pieces: list[AuxChunk]) -> list[AuxChunk]:
    """Snapshots without a known stream offset, in order of time, with an `aux_offset` that is right
    within each group of `group_contiguous`.

    Two snapshots overlap by their common bytes if these contain a PSB with its TSC, which makes
    them unique. Bytes before the first PSB cannot be decoded without the snapshot before.
    """
    found: list[AuxChunk] = []
    end = 0
    for piece in sorted(pieces, key=lambda each: each.reference):
        if found:
            last = found[-1]
            shared = count_overlapping_bytes(last.data[:], piece.data[:])
            start = last.aux_offset + last.size - shared if shared else end + 1
            found.append(replace(piece, aux_offset=start))
        else:
            found.append(piece)
        end = max(end, found[-1].aux_offset + piece.size)
    return found


def count_overlapping_bytes(before: memoryview, after: memoryview) -> int:
    """The largest number of bytes at the end of `before` that are the first bytes of `after`; 0 if
    they contain no PSB with its TSC.
    """
    from rtit.packets import encode

    psb = encode("PSB")
    unique_size = len(psb) + len(encode("TSC", tsc=0))
    old, new = bytes(before), bytes(after)
    first = new.find(psb)
    at = old.find(psb, max(first, 0))
    while first >= 0 and at >= 0:
        start = at - first
        if at + unique_size <= len(old) and new.startswith(old[start:]):
            return len(old) - start
        at = old.find(psb, at + 1)
    return 0
