"""When an instruction ran as perf prints it (docs/decisions/0030): perf's time, which is no bound.

Between timing packets perf's time stands still, as ours does, but for two things. What waits for a
packet (a conditional branch, an indirect one, a RET) has the time that was told right before that
packet, where ours is that of the start of its run, and a PSB+ tells its time at once. Where user
code begins, after tracing was off or from the kernel, perf adds two cycles for each instruction
since the last timing packet; that stands until a packet tells a later time, or user code begins
again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, cast

from rtit.image import UPPER
from rtit.trace import tables
from rtit.trace.categories import End, EventKind
from rtit.trace.packets import KINDS, clocks_of, packets
from rtit.trace.whose import Whose

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from rtit import _core
    from rtit.errors import RtitError
    from rtit.trace.results import Instructions
    from rtit.trace.rows import Rows
    from rtit.trace.settings import Settings
    from rtit.trace.shares import Shares

    U64 = NDArray[np.uint64]

COLUMNS = ("perf_time",)
_TOLD = ("TSC", "MTC", "CYC", "CBR", "PSBEND")
_CYCLES = 2
"""That perf takes an instruction to last."""
_WRAP = (1 << 64) - 1


class Decoded(Protocol):
    """What is needed of a `Stream`, which is a dataclass."""

    settings: Settings | RtitError
    shares: Shares | None

    def native(self, *, points: bool = False, in_order: bool = False) -> _core.Flow:
        """A decoder."""

    def parts(self) -> Iterator[memoryview]:
        """All bytes."""

    def rows(self) -> Iterator[Rows]:
        """What ran, with events."""


def perf_times(stream: Decoded) -> Iterator[U64]:
    """TSC ticks for each instruction that is decoded of `stream`, in batches: of one thread of
    several, if the others are followed, for those of all. `Trace.clock` makes perf's nanoseconds of
    them. Decodes the stream three times. Raises what decoding does.
    """
    shares = stream.shares
    if shares is None or shares.tid is None:
        return (times for times, _ in _times(stream))
    # perf's time is that of the CPU, whoever runs
    times = _times(_copy(stream, shares=replace(shares, tid=None)))
    if shares.taken is not None:
        return (each for each, _ in times)
    return (each[tids == shares.tid] for each, tids in times)


def with_perf_times(stream: Decoded, found: Iterator[Instructions]) -> Iterator[Instructions]:
    """All instructions that are decoded of a stream, `found`, with the column `perf_time`. Where
    threads share a CPU damage may make the two decodings differ: what is left then has its `time`.
    """
    import numpy as np

    times, left = perf_times(stream), np.zeros(0, np.uint64)
    for batch in found:
        while len(left) < len(batch):
            left = np.concatenate([left, next(times, batch.time[len(left) :])])
        yield batch.with_columns(perf_time=left[: len(batch)])
        left = left[len(batch) :]


def _times(stream: Decoded) -> Iterator[tuple[U64, NDArray[np.int32]]]:
    import numpy as np

    stream = _copy(stream)
    flow = stream.native(points=True, in_order=True)
    known, marks = _Known(stream, stream.settings), _Marks(stream)  # type: ignore[arg-type]
    whose = Whose(stream.shares, timed=False) if stream.shares is not None else None
    ran = now = 0
    for batch, offset in tables.instructions(flow):
        # of what timing packets told `known` has all; nothing goes on while too much of it waits
        flow.points()
        if not len(batch):
            continue
        known.read(offset, ran)
        times, done = np.zeros(len(batch), np.uint64), 0
        for mark in marks.until(int(offset[-1]), known):
            where = np.uint64(mark.offset)
            behind = int(np.searchsorted(offset, where, "right"))
            at, count = behind, behind
            if mark.ip is not None:
                start = int(np.searchsorted(offset, where, "left"))
                found = np.flatnonzero(batch.ip[start:behind] == np.uint64(mark.ip))
                if not len(found) and behind == len(batch):
                    # the packet told of more than is in this batch
                    marks.again(mark)
                    continue
                at = start + int(found[0]) if len(found) else behind
                count = at + len(found[:1])
            at = max(at, done)
            times[done:at] = now
            done = at
            if mark.begins:
                now = known.begin(mark.offset, ran + count)
            else:
                now = max(now, mark.time or known.time(mark.offset))
        times[done:] = now
        ran += len(batch)
        tids = whose.tell(batch, flow.turn).more["tid"] if whose is not None else None
        yield times, tids if tids is not None else np.zeros(0, np.int32)


def _copy(stream: Decoded, **changes: Any) -> Decoded:
    """The same, with accounts of its own."""
    return cast("Decoded", replace(cast("Any", stream), **changes, _flow=None, _own=None))


class _Ahead:
    """Columns in the order of offsets, the first of them, taken up to one."""

    def __init__(self, batches: Iterator[tuple[NDArray[Any], ...]], count: int) -> None:
        import numpy as np

        self._batches = batches
        self._left: tuple[NDArray[Any], ...] = (np.zeros(0, np.uint64),) * count
        self._ended = False

    def until(self, offset: int) -> tuple[NDArray[Any], ...]:
        """All up to this offset that was not taken before."""
        import numpy as np

        found = [self._left]
        while not self._ended and not (len(found[-1][0]) and found[-1][0][-1] > offset):
            batch = next(self._batches, None)
            self._ended = batch is None
            if batch is not None:
                found.append(batch)
        self._left = tuple(map(np.concatenate, zip(*found, strict=True)))
        at = int(np.searchsorted(self._left[0], np.uint64(offset), "right"))
        taken = tuple(each[:at] for each in self._left)
        self._left = tuple(each[at:] for each in self._left)
        return taken


class _Known:
    """What timing packets told, and how many instructions had run then: `offset` and more, those of
    the last batch and the last one before.
    """

    def __init__(self, stream: Decoded, settings: Settings) -> None:
        import numpy as np

        self._nominal = settings.max_nonturbo_ratio
        kinds = [KINDS.index(name) for name in _TOLD]

        def told() -> Iterator[tuple[NDArray[Any], ...]]:
            for part in packets(stream.parts(), clocks_of(settings)):
                which = np.isin(part.kind, kinds)
                cbr, psbend = (part.kind == kind for kind in kinds[-2:])
                # of those that follow each other the last tells all: nothing may run for long
                times = which & ~cbr & ~psbend
                which[:-1] &= ~(times[:-1] & times[1:])
                columns = (part.offset, part.more["time"], np.where(cbr, part.payload, 0), psbend)
                yield tuple(each[which] for each in columns)

        self._ahead = _Ahead(told(), 4)
        self.synced: list[tuple[int, int]] = []
        """Ends of PSB+ in the last batch, and the times that they told."""
        start = (0, settings.start_time, 0, 0)
        self._told = [np.array([each], np.uint64) for each in start]

    @property
    def offset(self) -> U64:
        """Places of the packets; the first may be the start of the stream."""
        return self._told[0]

    def read(self, offset: U64, ran: int) -> None:
        """All up to the last packet of a batch of instructions; `ran` of them came before."""
        import numpy as np

        *told, psbend = self._ahead.until(int(offset[-1]))
        ends = psbend > 0
        self.synced = list(zip(*(each[ends].tolist() for each in told[:2]), strict=True))
        offsets, times, ratios = (each[~ends] for each in told)
        before = [each[-1:] for each in self._told]
        count = ran + np.searchsorted(offset, offsets, "right")
        # a CBR tells no time: instructions are counted on
        told_at = np.where(ratios > 0, 0, count).astype(np.uint64)
        counts: U64 = np.maximum.accumulate(np.concatenate([before[3], told_at]))
        ratios = np.concatenate([before[2], ratios])
        last = np.maximum.accumulate(np.where(ratios > 0, np.arange(len(ratios)), 0))
        self._told = [
            np.concatenate([before[0], offsets]),
            np.concatenate([before[1], times]),
            ratios[last],
            counts,
        ]

    def time(self, offset: int) -> int:
        """What was told right before a packet."""
        return int(self._told[1][self._before(offset)])

    def begin(self, offset: int, ran: int) -> int:
        """What perf takes for the time where user code begins, and so many have run."""
        _, time, ratio, since = (int(each[self._before(offset)]) for each in self._told)
        ticks = _CYCLES * (ran - since)
        ticks = ticks * self._nominal // ratio if self._nominal and ratio else ticks
        return time + ticks & _WRAP

    def _before(self, offset: int) -> int:
        import numpy as np

        return max(int(np.searchsorted(self.offset, np.uint64(offset), "left")) - 1, 0)


class _Mark(NamedTuple):
    """From an instruction of the packet at `offset` on another time holds: from the first at `ip`,
    or from the one behind the packet. `begins`: that is where user code begins. `time`: the packet
    tells it; 0: that is what was told right before.
    """

    offset: int
    ip: int | None
    begins: bool
    time: int = 0


class _Marks:
    """Where times change, in order."""

    def __init__(self, stream: Decoded) -> None:
        self._again: deque[_Mark] = deque()
        self._last = 0
        self._branches = _Ahead(_branches(_copy(stream)), 3)
        self._events = _Ahead(_events(_copy(stream)), 3)

    def again(self, mark: _Mark) -> None:
        """It comes first the next time."""
        self._again.append(mark)

    def until(self, offset: int, known: _Known) -> Iterator[_Mark]:
        """Up to a packet; `known` has been read up to there."""
        import numpy as np

        found = list(self._again)
        self._again.clear()
        places, source, enters = self._branches.until(offset)
        # a packet's first branch, if time was told since the packet before
        told = np.searchsorted(known.offset, places, "left")
        before = np.searchsorted(known.offset, np.uint64(self._last), "left")
        which = (np.diff(told, prepend=before) != 0) | (enters > 0)
        columns = (each[which].tolist() for each in (places, source, enters))
        found += [_Mark(at, ip, bool(begins)) for at, ip, begins in zip(*columns, strict=True)]
        if len(places):
            self._last = int(places[-1])
        rows = zip(*(each.tolist() for each in self._events.until(offset)), strict=True)
        found += [_Mark(at, ip if has_ip else None, not has_ip) for at, ip, has_ip in rows]
        found += [_Mark(at, None, begins=False, time=time) for at, time in known.synced]
        left = deque(sorted(found, key=lambda mark: mark.offset))
        while left:
            mark = left.popleft()
            yield mark
            if self._again:
                self._again.extend(left)
                return


def _branches(stream: Decoded) -> Iterator[tuple[NDArray[Any], ...]]:
    """Those that took a packet, the first of each: its offset, where they were, and whether they
    left the kernel.
    """
    import numpy as np

    flow, last = stream.native(points=True, in_order=True), -1
    for batch, offset in tables.branches(flow):
        flow.points()
        waits = (batch.kind != End.JUMP) & (batch.kind != End.CALL)
        place, source = offset[waits], batch.source[waits]
        enters = (source >= UPPER) & (batch.target[waits] < UPPER)
        first = np.diff(place.astype(np.int64), prepend=last) != 0
        last = int(place[-1]) if len(place) else last
        which = first | enters
        yield place[which], source[which], enters[which]


def _events(stream: Decoded) -> Iterator[tuple[NDArray[Any], ...]]:
    """Offsets, an address, and whether that is known: of a last branch before tracing went off. If
    it is not, code begins there.
    """
    for rows in stream.rows():
        events = rows.events
        off = (events.kind == EventKind.DISABLED) & (events.ip > 0)
        begins = (events.kind == EventKind.ENABLED) | (events.kind == EventKind.RESUMED)
        which = off | begins
        yield events.offset[which], events.ip[which], off[which]
