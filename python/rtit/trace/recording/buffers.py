"""Buffers of PT: what one look at their packets tells, and how much of each is whose.

Snapshots of a buffer: each has its last bytes, and two of them may share some, or miss some.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from rtit.errors import RtitError
from rtit.perfdata import AuxChunk
from rtit.sideband.scheduling import NOBODY, TurnList
from rtit.trace.recording.byte_source import AuxBytes
from rtit.trace.tables.packets import KINDS, clocks_of
from rtit.trace.time.guest_time import HostTime

if TYPE_CHECKING:
    from rtit import _core
    from rtit.perfdata import TimeConversion
    from rtit.trace.stream import Stream
    from rtit.trace.tables.packets import Clocks


_SPAN = 1 << 56
_PACKETS = 1 << 16
_MOST = 64
"""Threads of a buffer that are listed by themselves."""
_PSB, _PSBEND, _TSC, _OVF, _CYC = map(KINDS.index, ("PSB", "PSBEND", "TSC", "OVF", "CYC"))
_Who = tuple[int, int]
_UNKNOWN: _Who = (NOBODY, NOBODY)


@dataclass(frozen=True, slots=True)
class ThreadBytes:
    """`size` bytes of a buffer were written in the turns of thread `tid` of process `pid`: 0 while
    the CPU was idle, -1 where it is not known whose turn it was; both are None for `threads`
    threads together.
    """

    pid: int | None
    tid: int | None
    name: str | None
    size: int
    threads: int = 1

    @property
    def title(self) -> str:
        """How to call it."""
        if self.tid is None:
            return f"{self.threads:,} other threads"
        if self.tid == 0:
            return "nobody (idle)"
        if self.tid < 0:
            return "not known whose"
        return f"thread {self.tid}" + (f" ({self.name})" if self.name else "")


@dataclass(slots=True)
class Buffer:
    """One buffer of PT: `pieces` are AUX records' data, `psbs` places to begin at, `overflows`
    losses that the processor told, `bad` bytes that are no packet. `first` and `last` are the times
    (ns of the perf clock, or TSC where that is not known) of its first and last TSC packet.
    `threads`: how many bytes each thread has, the largest first, and all beyond 64 as one: their
    sizes add up to `size`. A thread's begin with the first packet whose time is not before its
    turn, those of a PSB+ with the PSB, and with the CYC before.
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


def buffer_of(stream: Stream, clock: TimeConversion | None, names: Mapping[int, str]) -> Buffer:
    """Look at all packets of a stream, once. `names` are those of threads."""
    from rtit._core import PacketScan

    source = stream.source
    source = source.source if isinstance(source, HostTime) else source
    pieces = source.pieces if isinstance(source, AuxBytes) else []
    found = Buffer(stream.title, stream.cpu, stream.size, len(pieces))
    high = pieces[0].reference // _SPAN * _SPAN if pieces else 0
    owners = _Owners.of(stream)
    scan = PacketScan(stream.parts(), owners.clocks)
    while (batch := scan.next(_PACKETS)) is not None:
        # what is looked for in bytes is not worth loading NumPy
        kinds, payload, bad = bytes(batch[0]), memoryview(batch[3]), batch[5]
        found.psbs += kinds.count(_PSB)
        found.overflows += kinds.count(_OVF)
        found.bad += bad[1] if bad is not None else 0
        places = kinds.find(_TSC), kinds.rfind(_TSC)
        if places[0] >= 0:
            first, last = (high | payload[place] for place in places)
            if clock is not None:
                first, last = clock.to_nanoseconds(first), clock.to_nanoseconds(last)
            found.first = first if found.first is None else found.first
            found.last = last
        if batch[6] is not None:
            owners.see(kinds, batch[2], batch[6])
    # of a pipe only what has come is known
    found.size = source.size
    largest, count, more = owners.largest(found.size)
    found.threads = [ThreadBytes(*who, names.get(who[1]), size) for who, size in largest]
    if count:
        found.threads.append(ThreadBytes(None, None, None, more, count))
    return found


class _Owners:
    """Adds up whose bytes those of a stream are: by turns, or all `itself`'s where there are
    none.
    """

    def __init__(self, turns: TurnList, itself: _Who, clocks: Clocks | None) -> None:
        self.clocks = clocks
        self._turns = turns
        self._itself = itself
        self._sizes = array("Q", bytes(8)) * (len(turns) + 1)
        self._number, self._from = 0, 0
        self._group: int | None = None
        self._cyc: int | None = None
        self._timed = False

    @classmethod
    def of(cls, stream: Stream) -> _Owners:
        settings, itself = stream.settings, (stream.pid, stream.tid)
        if isinstance(settings, RtitError):  # also that nothing tells several apart
            return cls(TurnList(), itself if stream.cpu < 0 else _UNKNOWN, None)
        if stream.shares is None:
            return cls(TurnList(), itself, None)
        return cls(stream.shares.turns, _UNKNOWN, clocks_of(settings))

    def see(self, kinds: bytes, offsets: _core.Column, times: Sequence[_core.Column]) -> None:
        """Take the next packets, with their times."""
        import numpy as np

        since = np.asarray(self._turns.since)
        numbers = np.searchsorted(since, np.asarray(times[0]), side="right")
        if not self._timed:  # what is there before the first TSC is when a piece was written
            first = kinds.find(_TSC)
            numbers[: len(kinds) if first < 0 else first] = 0
            self._timed = first >= 0
        places = np.flatnonzero(np.diff(numbers, prepend=self._number))
        kind, offset = np.frombuffer(kinds, np.uint8), np.asarray(offsets)
        marks = np.flatnonzero(np.isin(kind, (_PSB, _PSBEND, _OVF)))

        def begin(place: int) -> int:
            """With the CYC that is told right before."""
            if kind[place] == _CYC:
                return int(offset[place])
            if not place:
                return int(offset[place]) if self._cyc is None else self._cyc
            return int(offset[place - (kind[place - 1] == _CYC)])

        def group(marks_before: int) -> int | None:
            """Where the PSB+ begins that goes on behind so many marks."""
            if not marks_before:
                return self._group
            mark = marks[marks_before - 1]
            return begin(int(mark)) if kind[mark] == _PSB else None

        for place, before in zip(places, np.searchsorted(marks, places, side="right"), strict=True):
            start = group(before)
            self._close(begin(int(place)) if start is None else start)
            self._number = int(numbers[place])
        self._group = group(len(marks))
        if kinds:
            self._cyc = int(offset[-1]) if kind[-1] == _CYC else None

    def largest(self, end: int) -> tuple[list[tuple[_Who, int]], int, int]:
        """Of `end` bytes in all who has most, the largest first; how many more threads have some,
        and how much.
        """
        self._close(end)
        if not self._turns:
            return [(self._itself, end)] if end else [], 0, 0
        import numpy as np

        sizes = np.asarray(self._sizes)
        had = np.flatnonzero(sizes)
        who = np.full((len(had), 2), self._itself, np.int32)
        ran = had > 0
        for column, of in enumerate((self._turns.pid, self._turns.tid)):
            who[ran, column] = np.asarray(of)[had[ran] - 1]
        who[who[:, 1] == NOBODY] = _UNKNOWN
        pairs, place = np.unique(who.view(np.int64).ravel(), return_inverse=True)
        found = np.zeros(len(pairs), np.int64)
        np.add.at(found, place.ravel(), sizes[had].astype(np.int64))
        threads = pairs.view(np.int32).reshape(-1, 2)
        order = np.lexsort((threads[:, 1], threads[:, 0], -found))
        first, rest = order[:_MOST], order[_MOST:]
        rows = [((pid, tid), int(found[at])) for at in first for pid, tid in [threads[at].tolist()]]
        return rows, len(rest), int(found[rest].sum())

    def _close(self, end: int) -> None:
        self._sizes[self._number] += end - self._from
        self._from = end


def connected(pieces: list[AuxChunk]) -> list[list[AuxChunk]]:
    """Snapshots of one buffer in groups between which bytes are missing."""
    groups: list[list[AuxChunk]] = []
    end = 0
    for piece in pieces:
        if not groups or piece.aux_offset > end:
            groups.append([])
            end = 0
        groups[-1].append(piece)
        end = max(end, piece.aux_offset + piece.size)
    return groups


def placed(pieces: list[AuxChunk]) -> list[AuxChunk]:
    """Pieces of which nothing tells where in the stream of their buffer they lie, in the order in
    which they were taken: with an `aux_offset` that is right within each of the `connected` groups.

    Two overlap as far as they are the same there and a PSB is in it: the TSC behind one is nowhere
    else. What is before the first PSB of a piece cannot be read without the one before it.
    """
    found: list[AuxChunk] = []
    end = 0
    for piece in sorted(pieces, key=lambda each: each.reference):
        if found:
            last = found[-1]
            shared = overlap(last.data, piece.data)
            start = last.aux_offset + last.size - shared if shared else end + 1
            found.append(replace(piece, aux_offset=start))
        else:
            found.append(piece)
        end = max(end, found[-1].aux_offset + piece.size)
    return found


def overlap(before: memoryview, after: memoryview) -> int:
    """How many bytes at the end of `before` are the first ones of `after`: as many as can be, 0 if
    there is no PSB with its TSC in them.
    """
    from rtit.packets import encode

    psb = encode("PSB")
    telling = len(psb) + len(encode("TSC", tsc=0))
    old, new = bytes(before), bytes(after)
    first = new.find(psb)
    at = old.find(psb, max(first, 0))
    while first >= 0 and at >= 0:
        start = at - first
        if at + telling <= len(old) and new.startswith(old[start:]):
            return len(old) - start
        at = old.find(psb, at + 1)
    return 0
