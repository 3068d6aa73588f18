"""Which mapping an address is in, for columns of addresses."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from rtit.image.mappings import FOREVER, Mapping

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

NOWHERE = -1
"""Stands for a mapping where there is none."""


def reused(mappings: Iterable[Mapping]) -> bool:
    """Whether an address stands for two things, at different times."""
    furthest: Mapping | None = None
    for each in sorted(mappings, key=lambda each: each.start):
        if furthest is not None and each.start < furthest.end and not each.same_source(furthest):
            return True
        if furthest is None or each.end > furthest.end:
            furthest = each
    return False


class Regions:
    """The mappings of a process over its life, by address and time."""

    def __init__(self, mappings: Iterable[Mapping]) -> None:
        import numpy as np

        self.mappings = sorted(mappings, key=lambda each: each.start)
        self._borders = np.zeros(1, np.uint64)
        if reused(self.mappings):
            times = {0}.union(*((each.since, each.until) for each in self.mappings))
            self._borders = np.array(sorted(times), np.uint64)
        self._tables: dict[int, Any] = {}

    def at(
        self, ips: NDArray[np.uint64], times: NDArray[np.uint64]
    ) -> tuple[NDArray[np.int64], NDArray[np.uint64]]:
        """For addresses at times (TSC, in order): rows of `mappings` or NOWHERE, and offsets in
        what is mapped, or the addresses.
        """
        import numpy as np

        if len(self._borders) == 1:
            return self._in_epoch(0, ips)
        epochs = np.searchsorted(self._borders, times, "right") - 1
        rows, offsets = np.full(len(ips), NOWHERE), ips.copy()
        for epoch in np.unique(epochs).tolist():
            own = epochs == epoch
            rows[own], offsets[own] = self._in_epoch(epoch, ips[own])
        return rows, offsets

    def _in_epoch(self, epoch: int, ips: Any) -> tuple[Any, Any]:
        import numpy as np

        if epoch not in self._tables:
            self._tables[epoch] = self._table(epoch)
        rows, starts, ends, shifts = self._tables[epoch]
        if not len(rows):
            return np.full(len(ips), NOWHERE), ips
        at = np.maximum(np.searchsorted(starts, ips, "right") - 1, 0)
        inside = (ips >= starts[at]) & (ips < ends[at])
        return np.where(inside, rows[at], NOWHERE), np.where(inside, ips + shifts[at], ips)

    def _table(self, epoch: int) -> tuple[Any, ...]:
        import numpy as np

        time = int(self._borders[epoch])
        rows = [
            row
            for row, each in enumerate(self.mappings)
            if len(self._borders) == 1 or each.since <= time < each.until
        ]
        live = [self.mappings[row] for row in rows]
        return (
            np.array(rows, np.int64),
            np.array([each.start for each in live], np.uint64),
            np.array([each.end for each in live], np.uint64),
            np.array([each.offset - each.start & FOREVER for each in live], np.uint64),
        )
