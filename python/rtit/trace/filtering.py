"""Which rows of a table a selection takes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from rtit.errors import UsageError
from rtit.image import Images
from rtit.perfdata import TimeConversion
from rtit.trace.batch import Batch
from rtit.trace.places import Place, Places
from rtit.trace.selection import LATEST, Selection

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

B = TypeVar("B", bound=Batch)


@dataclass(frozen=True, slots=True)
class Filter:
    """What a selection means for one stream: times (TSC, the first and the last), places (None:
    all), those of each address space by its number, if there are several, and how many rows at
    either end. Rows without a column `space` are chosen by the places of all.
    """

    times: tuple[int, int] = (0, LATEST)
    places: list[Place] | None = None
    by_space: tuple[list[Place], ...] | None = None
    head: int | None = None
    tail: int | None = None

    @classmethod
    def meant(
        cls,
        selection: Selection,
        pids: Sequence[int],
        images: Images | None,
        clock: TimeConversion | None,
    ) -> Filter:
        """By a selection, of a stream with the code of these processes, an address space each.
        Raises UsageError for times in seconds without a clock.
        """
        places = Places(selection, Images() if images is None else images)
        return cls(
            selection.time.ticks(clock) if selection.time is not None else (0, LATEST),
            places.of(*pids),
            places.by_space(pids) if len(pids) > 1 else None,
            selection.head,
            selection.tail,
        )

    @property
    def is_timed(self) -> bool:
        """Whether rows are chosen by their time."""
        return self.times != (0, LATEST)

    @property
    def is_ordered(self) -> bool:
        """Whether it takes rows by when they came."""
        return self.is_timed or self.head is not None or self.tail is not None

    def of(self, batch: B) -> B:
        """What it takes of a batch, whatever comes before or after."""
        keep = self.mask(batch)
        return batch if keep is None or keep.all() else batch.take(keep)

    def check(self, kind: type[Batch]) -> None:
        """Raises UsageError for what rows of this kind cannot be chosen by."""
        if kind.WHERE is None and self.places is not None:
            raise UsageError(f"rows of {kind.__name__} have no address to be chosen by")
        if kind.WHEN is None and self.is_timed:
            raise UsageError(f"rows of {kind.__name__} have no time to be chosen by")

    def apply(self, batches: Iterator[B]) -> Iterator[B]:
        """What it takes of the batches of a stream, without batches that are empty then."""
        found = (each for each in map(self.of, self.until_last(batches)) if len(each))
        if self.head is not None:
            return _first(found, self.head)
        if self.tail is not None:
            return _last(found, self.tail)
        return found

    def until_last(self, batches: Iterator[B]) -> Iterator[B]:
        """Without those behind a whole batch that is too late: nothing that is wanted is there."""
        last = self.times[1]
        for batch in batches:
            yield batch
            if last < LATEST and batch.WHEN is not None and len(batch):
                times = getattr(batch, batch.WHEN)
                if int(times[-1]) > last and int(times.min()) > last:
                    return

    def mask(self, batch: Batch) -> NDArray[np.bool_] | None:
        """Which rows are within the times and at the places; None: all."""
        import numpy as np

        keep: NDArray[np.bool_] | None = None
        # packets have times only if they are chosen by them
        times = getattr(batch, batch.WHEN, None) if batch.WHEN is not None else None
        if self.is_timed and times is not None:
            first, last = map(np.uint64, self.times)
            keep = (times >= first) & (times <= last)
        if self.places is None or batch.WHERE is None:
            return keep
        low, high = (getattr(batch, name) for name in batch.WHERE)
        spaces = batch.more.get("space")
        if self.by_space is None or spaces is None:
            inside = _inside(self.places, low, high, times)
        else:
            inside = np.zeros(len(batch), np.bool_)
            for number in np.unique(spaces).tolist():
                own = spaces == number
                when = times[own] if times is not None else None
                inside[own] = _inside(self.by_space[number], low[own], high[own], when)
        return inside if keep is None else keep & inside


def _inside(
    places: Sequence[Place],
    low: NDArray[Any],
    high: NDArray[Any],
    times: NDArray[Any] | None,
) -> NDArray[np.bool_]:
    """Which rows, by their lowest and their highest address, have something at any of the places;
    without times all of these count.
    """
    import numpy as np

    inside = np.zeros(len(low), np.bool_)
    for start, end, since, until in places:
        here = (low < np.uint64(min(end, LATEST))) & (high >= np.uint64(start))
        if times is not None and (since > 0 or until < LATEST):
            here &= (times >= np.uint64(since)) & (times < np.uint64(until))
        inside |= here
    return inside


def _first(batches: Iterator[B], left: int) -> Iterator[B]:
    while left > 0 and (batch := next(batches, None)) is not None:
        yield batch if len(batch) <= left else batch.take(slice(0, left))
        left -= len(batch)


def _last(batches: Iterator[B], most: int) -> Iterator[B]:
    kept: list[B] = []
    have = 0
    for batch in batches:
        kept.append(batch)
        have += len(batch)
        while kept and have - len(kept[0]) >= most:
            have -= len(kept.pop(0))
    if kept and have > most:
        kept[0] = kept[0].take(slice(have - most, None))
    yield from kept
