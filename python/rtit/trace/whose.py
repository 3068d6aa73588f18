"""Who ran: the thread of each row of a logical processor's stream.

The decoder tells of turns by time, where the program arrives from somewhere else. Where the kernel
is in the trace a switch shows more exactly: from the first instruction of __switch_to on it is the
next thread that runs, as perf has it, too.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from rtit.sideband.turn_list import NOBODY
from rtit.trace.batch import Batch
from rtit.trace.results import Branches, Instructions
from rtit.trace.rows import Rows
from rtit.trace.shares import IN_GUEST

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from rtit.trace.shares import Shares

B = TypeVar("B", bound=Batch)


def who_ran(batches: Iterable[Batch]) -> list[tuple[int, int]]:
    """(pid, tid) of all whose rows these are, in the order in which they come."""
    found: dict[tuple[int, int], None] = {}
    for batch in batches:
        tids = batch.more["tid"]
        begins = [*range(min(1, len(batch))), *((tids[1:] != tids[:-1]).nonzero()[0] + 1)]
        pairs = (batch.more[name][begins].tolist() for name in ("pid", "tid"))
        found |= dict.fromkeys(zip(*pairs, strict=True))
    return list(found)


class Whose:
    """Gives batches of a decoder, in order, the columns `tid` and `pid`, and of who ran in virtual
    machines, where that is known, `guest_tid` and `guest_pid`: -1 of rows that are not in one of
    the spaces `guests`. `timed`: their times are TSC values.
    """

    def __init__(self, shares: Shares, guests: Sequence[int] = (), *, timed: bool = True) -> None:
        self._turns = shares.turns
        self._guests = list(guests) if shares.has_guests else None
        self._switch = shares.switch
        self._timed = timed
        self._now = 0
        self._follows = False
        self._until = 0

    def tell(self, batch: B, number: int) -> B:
        """With the columns: rows of the turn that the native decoder calls so, and of the next from
        where the kernel has switched.
        """
        import numpy as np

        self._now = max(self._now, number)
        count = len(batch)
        turns = np.full(count, self._now, np.int64)
        for place in self._switches(batch):
            if place >= count:
                self._follows = True
            elif self._is_due(batch, place, number):
                self._now = self._next
                turns[place:] = self._now
        found = batch.with_columns(
            tid=self._of(self._turns.tid, turns), pid=self._of(self._turns.pid, turns)
        )
        if self._guests is None:
            return found
        inside = np.zeros(count, bool)
        if "space" in batch.more:
            inside = np.isin(batch.more["space"], self._guests)
        columns = {}
        for name in IN_GUEST:
            own = self._of(getattr(self._turns, name), turns)
            # also of whom no guest is known
            columns[name] = np.where(inside & (own >= 0), own, np.int32(NOBODY))
        return found.with_columns(**columns)

    @staticmethod
    def _of(column: array[int], turns: NDArray[np.int64]) -> NDArray[np.int32]:
        """What a column has of turns; of number 0, which was before all, nothing is known."""
        import numpy as np

        known = np.asarray(column)
        return np.where(turns > 0, known[np.maximum(turns, 1) - 1], np.int32(NOBODY))

    @property
    def _next(self) -> int:
        """The next turn of another thread."""
        tids = self._turns.tid
        if not self._now:
            return 1
        if self._until <= self._now:
            self._until = self._now
            while self._until < len(tids) and tids[self._until] == tids[self._now - 1]:
                self._until += 1
        return self._until + 1

    def _switches(self, batch: Batch) -> list[int]:
        """Rows that are the next thread's; one behind the last: the first of the next batch."""
        import numpy as np

        if self._switch is None or not len(batch):
            return []
        carried = [0] if self._follows else []
        self._follows = False
        where = np.uint64(self._switch)
        if isinstance(batch, Rows):
            found = np.flatnonzero(batch.start == where)
        elif isinstance(batch, Instructions):
            found = np.flatnonzero(batch.ip == where)
        elif isinstance(batch, Branches):
            found = np.flatnonzero(batch.target == where) + 1
        else:
            return []
        return carried + [int(each) for each in found]

    def _is_due(self, batch: Any, place: int, number: int) -> bool:
        """Whether the next turn may begin at a row: its time is a lower bound, the next one's is
        not before it.
        """
        following = self._next
        if following > len(self._turns):
            return False
        if not self._timed:
            return self._now <= number
        times = batch.time
        later = times[place:][times[place:] > times[place]]
        until = int(later[0]) if len(later) else int(times[place]) + _LAG
        return self._turns.since[following - 1] <= until


_LAG = 1 << 18
"""Ticks that the time of the last rows of a batch may be behind."""
