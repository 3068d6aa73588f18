"""What timing packets told, and between which times something ran by that.

A TSC packet says what time it is, and so does an MTC after one: here these are known points. What
came in a packet ran before the next such packet (section 33.4.2.12), and what a row begins with ran
after the one before. CYCs say more: what comes before one ran before its cycle, what comes after it
not earlier (section 33.3.6.2), and between two known points cycles take equal time (33.8.3.4), if
all of them were counted and no CBR told of another frequency.

Time on request: between which times a row ran, in which cycle, at what frequency (`points.py`
says how that is known).

Instructions a core cycle, where CYCs tell how many cycles there were.

A CYC counts the cycles since the one before it (section 33.4.2.14): what began between two of them
ran in these cycles, as far as the packets can tell. A stretch here is the rows that have one number
of `cycles`; its cycles are those up to the next row that has more.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sized
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

from rtit.trace.tables.batch import Batch
from rtit.trace.tables.rows import Events, Rows
from rtit.trace.tables.selection import LATEST

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from rtit.trace.tables.batch import Batch


if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from rtit import _core

    Told = _core.Flow | _core.PacketScan

_MOST_POINTS = 1 << 20
"""When there are more, every other one of the older half is forgotten: bounds become wider."""

_SLACK = 2
"""Cycles, and ticks: processors were seen to count by two, and times are known to the tick."""
_DRIFT = 1 / 128
"""Of a clock around its frequency, of which no CBR tells: half a percent if its spectrum is spread.
"""
_MOST = 1 << 48
"""Cycles or ticks between two known points, of which a double has the fraction, too."""


_ROW = [
    *((name, "u8") for name in ("number", "offset", "time", "cycles", "span")),
    ("frequency", "f8"),
    *((name, "?") for name in ("known", "counted", "exact", "chained")),
]
"""Of a point: `counted`: a CYC that counted something; `exact`: known and of the cycle that the CYC
right before it tells; `chained`: the known point before it has not been forgotten.
"""
_TOLD = ("offset", "time", "cycles", "frequency", "known", "span")


class Points:
    """What timing packets told, a row each, in order: `number` counts them over the whole stream,
    and rows of a decoder made with `points` have such numbers as their times. Number 0 is the start
    of the stream, where `start_time` is all that is known.
    """

    def __init__(self, flow: Told, start_time: int = 0) -> None:
        import numpy as np

        self._flow = flow
        self._count = 0
        self._cyc_size = 0
        """Bytes of the last point, if it counted; else 0."""
        self.rows: NDArray[np.void] = np.zeros(1, _ROW)
        self.rows["time"] = start_time
        self.rows["frequency"] = np.nan

    def take(self) -> None:
        """Those that have come since."""
        import numpy as np

        told = dict(zip(_TOLD, map(np.asarray, self._flow.points()), strict=True))
        new = np.zeros(len(told["offset"]), _ROW)
        if not len(new):
            return
        for name, column in told.items():
            new[name] = column
        new["number"] = np.arange(self._count + 1, self._count + 1 + len(new))
        self._count += len(new)
        passed = np.diff(new["cycles"], prepend=self.rows["cycles"][-1])
        new["counted"] = passed > 0
        sizes = np.append(self._cyc_size, np.where(new["counted"], _cyc_size(passed), 0))
        self._cyc_size = int(sizes[-1])
        behind = np.diff(new["offset"], prepend=self.rows["offset"][-1]) == sizes[:-1]
        new["exact"] = new["known"] & behind & ~new["counted"]
        new["chained"] = new["known"]
        self.rows = np.append(self.rows, new)

    def forget(self, number: int) -> None:
        """No row is asked for that has a lower one; of such that are, less is known."""
        import numpy as np

        rows = self.rows
        at = int(np.searchsorted(rows["number"], np.uint64(number), "right"))
        known = np.flatnonzero(rows["known"][:at])
        first = int(known[-1]) if len(known) else 0
        keep = np.ones(len(rows), np.bool_)
        keep[1:first] = False
        if len(rows) - first > _MOST_POINTS:
            keep[first + 1 : first + _MOST_POINTS // 2 : 2] = False
        if keep.all():
            return
        known = np.flatnonzero(rows["known"])
        rows["chained"][known[1:][~keep[known[:-1]]]] = False
        self.rows = rows[keep]

    @property
    def settled(self) -> int:
        """Before this offset bounds stay as they are, whatever comes; -1 if nowhere."""
        import numpy as np

        rows = self.rows
        known, counted = np.flatnonzero(rows["known"]), np.flatnonzero(rows["counted"])
        last = len(known) - 1
        if len(counted):
            # of the first known point behind the last CYC the next one may tell more
            first = int(np.searchsorted(known, counted[-1]))
            behind = rows[known[first:]]
            if len(behind) and not behind["exact"][0] and behind["span"][0] == rows["span"][-1]:
                last = first - 1
        return int(rows["offset"][known[last]]) if last >= 0 else -1

    def bounds(
        self, number: NDArray[np.uint64], offset: NDArray[np.uint64], *, own: bool = False
    ) -> tuple[NDArray[np.intp], NDArray[np.uint64], NDArray[np.uint64]]:
        """Of what begins with packets behind points of these numbers, and has run by packets at
        these offsets: the place of the point in `rows`, earliest and latest time. With `own` a
        point at such an offset says itself when.
        """
        import numpy as np

        at = np.searchsorted(self.rows["number"], number, "right") - 1
        lower, upper = self._bounds()
        earliest = lower[at]
        # the first row is no packet, but the start
        behind = np.searchsorted(self.rows["offset"][1:], offset, "left" if own else "right") + 1
        latest = upper[behind]
        # the TSC may have gone back
        return at, earliest, np.maximum(latest, earliest)

    def _bounds(self) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
        """The earliest time of what comes behind each point; the latest of what comes before each,
        and before the end.
        """
        import numpy as np

        rows = self.rows
        places, cycles, counted = np.arange(len(rows)), rows["cycles"], rows["counted"]
        at = np.flatnonzero(rows["known"])
        known = rows[at]
        # how many cycles there had been at a known point: told, or by the next CYC at most
        cycs = np.append(np.flatnonzero(counted), len(rows))
        behind = np.append(rows, np.zeros(1, _ROW))[cycs[np.searchsorted(cycs, at)]]
        exact, in_span = known["exact"], behind["counted"] & (behind["span"] == known["span"])
        high = np.where(exact, known["cycles"], behind["cycles"])
        # each gap between two known points, and before the first and behind the last
        gap = np.searchsorted(at, places, "right")
        start, end = _around(known["time"])
        low_start, low_end = _around(known["cycles"])
        high_start, high_end = _around(high)
        told_start, told_end = _around(exact | in_span)
        span_start, span_end = _around(known["span"])
        chained = np.append(known["chained"], False)
        chained[:1] = False
        ticks = end - start
        linked = chained & (span_start == span_end) & (end >= start) & (ticks < _MOST)

        end[-1] = LATEST
        lower, upper = start[gap], np.where(rows["known"], rows["time"], end[gap])
        passes = high_end - high_start
        good = linked & told_start & told_end & (high_end > high_start) & (passes < _MOST)
        which = np.flatnonzero(good[gap])
        of = gap[which]
        passed = _signed(cycles[which], high_start[of]) - _SLACK
        reached = passed * ticks[of] / passes[of]
        reached = np.floor(reached - _drift(reached, ticks[of])) - _SLACK
        lower[which] += reached.clip(0, ticks[of]).astype(np.uint64)

        passes = low_end - low_start
        good = linked & (low_end > low_start) & (passes < _MOST)
        which = np.flatnonzero(good[gap] & counted)
        of = gap[which]
        passed = _signed(cycles[which], low_start[of]) + _SLACK
        reached = passed * ticks[of] / passes[of]
        reached = np.ceil(reached + _drift(reached, ticks[of])) + _SLACK
        upper[which] = start[of] + reached.clip(0, ticks[of]).astype(np.uint64)
        # what tells of neither leaves that to the next that does
        tells = np.append(np.flatnonzero(rows["known"] | counted), len(rows))
        upper = np.append(upper, np.uint64(LATEST))
        return lower, np.append(upper[tells[np.searchsorted(tells, places)]], upper[-1])


def _around(values: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Of known points: those before each gap, and those behind it; zero where there is none."""
    import numpy as np

    nothing = np.zeros(1, values.dtype)
    return np.append(nothing, values), np.append(values, nothing)


def _signed(values: NDArray[np.uint64], others: NDArray[np.uint64]) -> NDArray[np.float64]:
    """Differences that fit."""
    import numpy as np

    return (values - others).astype(np.int64).astype(np.float64)


def _drift(reached: NDArray[np.float64], ticks: NDArray[np.uint64]) -> NDArray[np.float64]:
    """How far from a straight line time may be, so many ticks behind the first of two known points,
    which are `ticks` apart.
    """
    import numpy as np

    return np.minimum(reached, ticks - reached).clip(0) * _DRIFT


def _cyc_size(cycles: NDArray[np.uint64]) -> NDArray[np.int64]:
    """Bytes of a CYC: 5 bits are in the first, 7 in each other (Table 33-33)."""
    import numpy as np

    size = np.ones(len(cycles), np.int64)
    for bits in range(5, 64, 7):
        size += cycles >> np.uint64(bits) > 0
    return size


B = TypeVar("B", bound=Batch)
COLUMNS = ("earliest", "latest", "cycles", "frequency")
"""What is added to a batch, in `batch.MORE`."""

_MAX_PENDING_ROWS = 16
"""Batches that wait for the next known time. If it is farther away, it is not known."""


class Clocked(NamedTuple, Generic[B]):
    """A batch with times, and the number of each row's span, in which every cycle was counted."""

    batch: B
    span: NDArray[np.uint64]


class _Waiting(NamedTuple):
    batch: Batch
    offset: NDArray[np.uint64]
    """The last packet of each row."""

    def is_before(self, offset: int) -> bool:
        """Whether all of it came before a packet there."""
        return all(int(each.max()) < offset for each in self._offsets() if len(each))

    def first(self) -> int:
        """The lowest number that a row has."""
        batches = (self.batch, *_events(self.batch))
        return min(int(each.time.min()) for each in batches if len(each))

    def last(self, otherwise: int) -> int:
        """The number of the last row: the next has no lower one, though an event may come before a
        row that has begun.
        """
        return int(self.batch.time[-1]) if len(self.batch) else otherwise

    def clocked(self, points: Points, *, own: bool) -> Clocked[Any]:
        done, span = _timed(self.batch, points, self.offset, own=own)
        if isinstance(done, Rows):
            events, _ = _timed(done.events, points, done.events.offset)
            done = done.replaced(events=events)
        return Clocked(done, span)

    def _offsets(self) -> list[NDArray[np.uint64]]:
        return [self.offset, *(each.offset for each in _events(self.batch))]


def _timed(
    batch: B, points: Points, offset: NDArray[np.uint64], *, own: bool = False
) -> Clocked[B]:
    """The batch with times instead of numbers, and more of them. `offset`: the last packet of each
    row.
    """
    import numpy as np

    at, earliest, latest = points.bounds(batch.time, offset, own=own)
    more = {
        "earliest": earliest,
        "latest": latest,
        "cycles": points.rows["cycles"][at],
        "frequency": points.rows["frequency"][at],
    }
    time = points.rows["time"][at]
    span = points.rows["span"][at]
    time = np.clip(time, earliest, latest)
    if own:
        return Clocked(batch.replaced(more={"time": time, **more}), span)
    more = {**batch.more, **more}
    return Clocked(batch.replaced(time=time, more=more), span)


def _events(batch: Batch) -> list[Events]:
    return [batch.events] if isinstance(batch, Rows) else []


def clocked(
    flow: Told,
    start_time: int,
    batches: Iterator[tuple[B, Sized]],
    *,
    own: bool = False,
) -> Iterator[Clocked[B]]:
    """Batches of a decoder made with `points`, with the offsets of each row's last packet; each
    waits for a known time behind it. `own`: rows are packets, which may say themselves what time
    it is.
    """
    import numpy as np

    points = Points(flow, start_time)
    waiting: deque[_Waiting] = deque()
    floor = 0
    for batch, offset in batches:
        points.take()
        if len(batch) or any(map(len, _events(batch))):
            waiting.append(_Waiting(batch, np.asarray(offset)))
        until = points.settled
        while waiting and (len(waiting) > _MAX_PENDING_ROWS or waiting[0].is_before(until)):
            done = waiting.popleft()
            floor = done.last(floor)
            yield done.clocked(points, own=own)
        points.forget(min(floor, waiting[0].first()) if waiting else floor)
    points.take()
    for each in waiting:
        yield each.clocked(points, own=own)


COLUMN = "ipc"

_MAX_PENDING_IPC = 16
"""Batches that wait for the end of their last stretch. If it is farther away, it is not known."""


def with_ipc(found: Iterator[Clocked[B]]) -> Iterator[B]:
    """Batches of instructions, or of blocks of them, with the column `ipc` (see `batch.MORE`)."""
    open_ = _Open()
    waiting: deque[tuple[B, NDArray[np.float64]]] = deque()
    for batch, span in found:
        waiting.append((batch, open_.take(batch, span)))
        while len(waiting) > min(len(open_.pieces), _MAX_PENDING_IPC):
            if len(waiting) == len(open_.pieces):
                del open_.pieces[0]
            yield _with(*waiting.popleft())
    for each in waiting:
        yield _with(*each)


def _with(batch: B, ipc: NDArray[np.float64]) -> B:
    return batch.with_columns(**{COLUMN: ipc})


class _Open:
    """The stretch that goes on. `pieces`: where its rows are in the columns of the last batches,
    those that nobody has taken yet, one for each batch.
    """

    def __init__(self) -> None:
        self.pieces: list[NDArray[np.float64]] = []
        self._cycles = self._span = -1
        self._instructions = 0

    def take(self, batch: Batch, span: NDArray[np.uint64]) -> NDArray[np.float64]:
        """The column of a batch, filled as far as it is known; the rest when it is."""
        import numpy as np

        ipc = np.full(len(batch), np.nan)
        if not len(batch):
            self.pieces += [ipc] if self.pieces else []
            return ipc
        cycles = batch.cycles
        changes = (cycles[1:] != cycles[:-1]) | (span[1:] != span[:-1])
        starts = np.append(0, np.flatnonzero(changes) + 1)
        counts = np.add.reduceat(_instructions(batch), starts)
        cycles, span = cycles[starts], span[starts]
        goes_on = (self._cycles, self._span) == (int(cycles[0]), int(span[0]))
        if goes_on:
            counts[0] += self._instructions
            self.pieces.append(ipc[: starts[1] if len(starts) > 1 else len(ipc)])
        else:
            self._close(self._instructions, self._cycles, int(cycles[0]), self._span == span[0])
            self.pieces = []
        if len(starts) > 1:
            told = (span[1:] == span[:-1]) & (cycles[1:] > cycles[:-1]) & (cycles[:-1] > 0)
            passed = np.where(told, cycles[1:] - cycles[:-1], 1)
            ipcs = np.where(told, counts[:-1] / passed, np.nan)
            ipc[: starts[-1]] = np.repeat(ipcs, np.diff(starts))
            for piece in self.pieces:
                piece[:] = ipcs[0]
            self.pieces = []
        if not self.pieces:
            self.pieces = [ipc[starts[-1] :]]
        self._cycles, self._span = int(cycles[-1]), int(span[-1])
        self._instructions = int(counts[-1])
        return ipc

    def _close(self, instructions: int, cycles: int, until: int, counted: Any) -> None:
        if counted and until > cycles > 0:
            for piece in self.pieces:
                piece[:] = instructions / (until - cycles)


def _instructions(batch: Batch) -> NDArray[np.uint64]:
    import numpy as np

    if isinstance(batch, Rows):
        return batch.instructions.astype(np.uint64)
    return np.ones(len(batch), np.uint64)
