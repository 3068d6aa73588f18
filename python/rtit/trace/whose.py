"""Who ran: the thread of each row of a logical processor's stream.

The decoder tells of turns by time, where the program arrives from somewhere else. Where the kernel
is in the trace a switch shows more exactly: from the first instruction of __switch_to on it is the
next thread that runs, as perf has it, too.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from rtit.sideband import Turn
from rtit.sideband.turns import NOBODY, InGuest
from rtit.trace.batch import Batch
from rtit.trace.results import Branches, Instructions
from rtit.trace.rows import Rows

if TYPE_CHECKING:
    from rtit.trace.shares import Shares

B = TypeVar("B", bound=Batch)
_UNKNOWN = Turn(0, NOBODY, NOBODY)
_NO_GUEST = InGuest(NOBODY, NOBODY)


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
        tids = np.array([turn.tid for turn in self._known(turns)], np.int32)
        pids = np.array([turn.pid for turn in self._known(turns)], np.int32)
        first = int(turns[0]) if count else 0
        found = batch.with_columns(tid=tids[turns - first], pid=pids[turns - first])
        if self._guests is None:
            return found
        guests = [turn.guest or _NO_GUEST for turn in self._known(turns)]
        inside = np.zeros(count, bool)
        if "space" in batch.more:
            inside = np.isin(batch.more["space"], self._guests)
        columns = {}
        for name, column in (("guest_tid", 1), ("guest_pid", 0)):
            own = np.array([each[column] for each in guests], np.int32)
            columns[name] = np.where(inside, own[turns - first], np.int32(NOBODY))
        return found.with_columns(**columns)

    @property
    def _next(self) -> int:
        """The next turn of another thread."""
        now = self._turns[self._now - 1].tid if self._now else None
        found = self._now
        while found < len(self._turns) and self._turns[found].tid == now:
            found += 1
        return found + 1

    def _known(self, turns: Any) -> list[Turn]:
        """The turns from the first to the last of some numbers; 0 is what was before all."""
        if not len(turns):
            return []
        numbers = range(int(turns[0]), int(turns[-1]) + 1)
        return [self._turns[number - 1] if number else _UNKNOWN for number in numbers]

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
        return self._turns[following - 1].since <= until


_LAG = 1 << 18
"""Ticks that the time of the last rows of a batch may be behind."""
