"""Time on request: between which times a row ran, in which cycle, at what frequency (`points.py`
says how that is known).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sized
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

from rtit.trace.batch import Batch
from rtit.trace.points import Points
from rtit.trace.rows import Events, Rows

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from rtit.trace.points import Told

B = TypeVar("B", bound=Batch)
COLUMNS = ("earliest", "latest", "cycles", "frequency")
"""What is added to a batch, in `batch.MORE`."""

_MOST_WAITING = 16
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
        while waiting and (len(waiting) > _MOST_WAITING or waiting[0].is_before(until)):
            done = waiting.popleft()
            floor = done.last(floor)
            yield done.clocked(points, own=own)
        points.forget(min(floor, waiting[0].first()) if waiting else floor)
    points.take()
    for each in waiting:
        yield each.clocked(points, own=own)
