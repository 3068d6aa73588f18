"""Time on request: between which known times a row ran, in which cycle, at what frequency.

A TSC packet says what time it is, and so does an MTC after one. What came in a packet ran before
the next such packet (section 33.4.2.12), and what a row begins with ran after the one before: these
are its bounds. CYCs between them give the estimate.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from rtit.trace.batch import Batch
from rtit.trace.rows import Events, Rows
from rtit.trace.selection import LATEST

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from rtit import _core

B = TypeVar("B", bound=Batch)
COLUMNS = ("earliest", "latest", "cycles", "frequency")
"""What is added to a batch, in `batch.MORE`."""

_MOST_WAITING = 16
"""Batches that wait for the next known time. If it is farther away, it is not known."""
_MOST_POINTS = 1 << 20
"""When there are more, every other one of the older half is forgotten: bounds become wider."""


class Points:
    """What timing packets told, a row each, in order: `number` counts them over the whole stream,
    and rows of a decoder made with `points` have such numbers as their times. Number 0 is the start
    of the stream, where `start_time` is all that is known.
    """

    def __init__(self, flow: _core.Flow, start_time: int = 0) -> None:
        import numpy as np

        self._flow = flow
        self._count = 0
        self.number = np.zeros(1, np.uint64)
        self.offset = np.zeros(1, np.uint64)
        self.time = np.full(1, start_time, np.uint64)
        self.cycles = np.zeros(1, np.uint64)
        self.frequency = np.full(1, np.nan)
        self.known = np.zeros(1, np.bool_)

    def take(self) -> None:
        """Those that have come since."""
        import numpy as np

        offset, time, cycles, frequency, known = map(np.asarray, self._flow.points())
        first = self._count + 1
        self._count += len(offset)
        self.number = np.append(self.number, np.arange(first, self._count + 1, dtype=np.uint64))
        self.offset = np.append(self.offset, offset)
        self.time = np.append(self.time, time)
        self.cycles = np.append(self.cycles, cycles)
        self.frequency = np.append(self.frequency, frequency)
        self.known = np.append(self.known, known.astype(np.bool_))

    def forget(self, number: int) -> None:
        """No row is asked for that has a lower one; of such that are, less is known."""
        import numpy as np

        at = int(np.searchsorted(self.number, np.uint64(number), "right"))
        known = np.flatnonzero(self.known[:at])
        first = int(known[-1]) if len(known) else 0
        keep = np.ones(len(self.number), np.bool_)
        keep[1:first] = False
        if len(self.number) - first > _MOST_POINTS:
            keep[first + 1 : first + _MOST_POINTS // 2 : 2] = False
        if not keep.all():
            self.number, self.offset, self.time = (
                column[keep] for column in (self.number, self.offset, self.time)
            )
            self.cycles, self.frequency = self.cycles[keep], self.frequency[keep]
            self.known = self.known[keep]

    @property
    def last_known(self) -> int:
        """The offset of the last packet that said what time it is; -1 if none did."""
        places = self.known.nonzero()[0]
        return int(self.offset[places[-1]]) if len(places) else -1

    def clocked(self, batch: B, offset: NDArray[np.uint64]) -> B:
        """The batch with times instead of numbers, and more of them. `offset`: the last packet of
        each row.
        """
        import numpy as np

        at = np.searchsorted(self.number, batch.time, "right") - 1
        places = np.arange(len(self.number))
        before = np.maximum.accumulate(np.where(self.known, places, 0))[at]
        earliest = np.where(self.known[before], self.time[before], np.uint64(0))
        times = np.append(self.time[self.known], np.uint64(LATEST))
        latest = times[np.searchsorted(self.offset[self.known], offset, "right")]
        # the TSC may have gone back
        latest = np.maximum(latest, earliest)
        more = {
            "earliest": earliest,
            "latest": latest,
            "cycles": self.cycles[at],
            "frequency": self.frequency[at],
        }
        time = np.clip(self.time[at], earliest, latest)
        return replace(batch, time=time, more={**batch.more, **more})  # type: ignore[type-var]


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

    def clocked(self, points: Points) -> Any:
        done = points.clocked(self.batch, self.offset)
        if isinstance(done, Rows):
            events = points.clocked(done.events, done.events.offset)
            return replace(done, events=events)
        return done

    def _offsets(self) -> list[NDArray[np.uint64]]:
        return [self.offset, *(each.offset for each in _events(self.batch))]


def _events(batch: Batch) -> list[Events]:
    return [batch.events] if isinstance(batch, Rows) else []


def clocked(
    flow: _core.Flow, start_time: int, batches: Iterator[tuple[B, NDArray[np.uint64]]]
) -> Iterator[B]:
    """Batches of a decoder made with `points`, with the offsets of each row's last packet; each
    waits for a known time behind it.
    """
    points = Points(flow, start_time)
    waiting: deque[_Waiting] = deque()
    floor = 0
    for batch, offset in batches:
        points.take()
        if len(batch) or any(map(len, _events(batch))):
            waiting.append(_Waiting(batch, offset))
        until = points.last_known
        while waiting and (len(waiting) > _MOST_WAITING or waiting[0].is_before(until)):
            done = waiting.popleft()
            floor = done.last(floor)
            yield done.clocked(points)
        points.forget(min(floor, waiting[0].first()) if waiting else floor)
    points.take()
    for each in waiting:
        yield each.clocked(points)
