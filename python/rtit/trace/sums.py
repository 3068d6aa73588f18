"""Counts by what is counted, however many rows there are, up to an end."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from numpy.typing import NDArray

_LEAST = 1 << 19
_BYTES = 1 << 10
"""Of PT, for each place beyond those."""
_WAITING = 1 << 17
"""Rows that wait to be added up, beside half of those that are kept."""
_PART = 64
"""Rows as which the columns of a few count: of thousands of streams each may have run little."""


def places_of(size: int) -> int:
    """Of how many places, runs and edges each, a recording of so many bytes of PT has counts; 0: it
    is not known how many bytes.
    """
    from rtit import _core

    return min(_LEAST + size // _BYTES, _core.MOST_PLACES) if size else _core.MOST_PLACES


class Sums:
    """How often each combination of numbers came, of the first `most` in their order, as many as
    native code keeps by default; `others`: how often the rest came, of the rows that were added up,
    `others_of` by what they have in the column `kind`, where there is one.

    Whatever is beyond `most` in a part is so in the whole: neither parts nor order show.
    """

    def __init__(
        self, dtypes: str, most: int = 0, *, kind: int | None = None, waiting: int = _WAITING
    ) -> None:
        self.others_of: Counter[int] = Counter()
        self._kind = kind
        self._dtypes = dtypes.split()
        self._most = most or places_of(0)
        self._waits = waiting
        # the first is in order, each key once, if nothing else has come
        self._parts: list[list[NDArray[Any]]] = []
        self._known = self._waiting = 0

    def add(self, *columns: NDArray[Any], count: NDArray[Any] | None = None) -> None:
        """Rows more, a column each, which came `count` times each, or once; all are kept as they
        are until they are added up.
        """
        import numpy as np

        count = np.ones(len(columns[0]), np.uint64) if count is None else count
        self._parts.append([*columns, count])
        self._waiting += len(count) + _PART
        if self._waiting > self._known // 2 + self._waits:
            self._join()

    def columns(self) -> list[NDArray[Any]]:
        """In order, the counts last; they are let go of."""
        import numpy as np

        if self._waiting:
            self._join()
        kept, self._parts, self._known = self._parts, [], 0
        return kept[0] if kept else [np.zeros(0, each) for each in (*self._dtypes, "u8")]

    def _join(self) -> None:
        import numpy as np

        parts, self._parts = self._parts, []
        # a column after the other: there may be much of them
        *keys, counts = [
            _joined([part.pop(0) for part in parts]) for _ in range(len(self._dtypes) + 1)
        ]
        order = np.lexsort(keys[::-1])
        new = np.zeros(len(order), np.bool_)
        new[:1] = True
        for at in range(len(keys)):
            keys[at] = key = keys[at][order]
            new[1:] |= key[1:] != key[:-1]
        counts = counts[order]
        del order
        if not new.all():
            first = np.flatnonzero(new)
            counts = np.add.reduceat(counts, first)
            for at in range(len(keys)):
                keys[at] = keys[at][first]
        kept = [*keys, counts]
        if len(counts) > self._most:
            self._tell(keys, counts)
            # no views: what is beyond would stay in memory
            kept = [column[: self._most].copy() for column in kept]
        self._parts, self._known, self._waiting = [kept], len(kept[-1]), 0

    @property
    def others(self) -> int:
        """All of `others_of`."""
        return self.others_of.total()

    def _tell(self, keys: list[NDArray[Any]], counts: NDArray[Any]) -> None:
        import numpy as np

        beyond = counts[self._most :]
        if self._kind is None:
            self.others_of[0] += int(beyond.sum())
            return
        kinds = keys[self._kind][self._most :]
        for kind in np.unique(kinds).tolist():
            self.others_of[kind] += int(beyond[kinds == kind].sum())


def _joined(parts: list[NDArray[Any]]) -> NDArray[Any]:
    import numpy as np

    return np.concatenate(parts) if len(parts) > 1 else parts[0]
