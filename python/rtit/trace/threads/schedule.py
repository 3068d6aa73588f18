"""Who shares a logical processor: threads by turns, and their code.

Who ran: the thread of each row of a logical processor's stream.

The decoder tells of turns by time, where the program arrives from somewhere else. Where the kernel
is in the trace a switch shows more exactly: from the first instruction of __switch_to on it is the
next thread that runs, as perf has it, too.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeVar

from rtit.errors import UnsupportedError
from rtit.image import Image, Images, guest_kernel_pid, guest_process_pid
from rtit.perfdata import PerfData
from rtit.perfdata.attr import AttrFlag, config_value
from rtit.sideband import Turn, TurnList
from rtit.sideband.scheduling import NOBODY, InGuest
from rtit.trace.tables.batch import Batch
from rtit.trace.tables.rows import Branches, Instructions, Rows

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


if TYPE_CHECKING:
    from typing import Self, TypeAlias

    import numpy as np
    from numpy.typing import NDArray
    from typing_extensions import Buffer

    from rtit import _core

    IntervalCode: TypeAlias = tuple[
        _core.Space | None, bool, _core.Space | None, _core.Space | None
    ]

IN_GUEST = ("guest_tid", "guest_pid")
SWITCH = "__switch_to"
"""The function of the kernel in which one thread becomes another."""
_ELSEWHERE: IntervalCode = (None, False, None, None)
_IDLE: IntervalCode = (None, True, None, None)
"""Who is not followed."""


class _Known:
    """The code that each turn of a logical processor runs, if all are followed: `whose` by number,
    `which` has the number of each turn, `idle` those with which there is no doubt. There are as
    many threads as there are turns, and all need it.
    """

    last: dict[int, int] | None = None
    """Since when each thread had its last turn."""

    def __init__(self) -> None:
        self.which = array("I")
        self.whose: list[IntervalCode] = []
        self.idle: NDArray[np.bool_]

    def of(self, shares: Shares) -> Self:
        """Made when it is first asked for."""
        if not self.whose:
            import numpy as np

            nothing, which = Image().native, array("I")
            numbers: dict[IntervalCode, int] = {}
            for pid, tid, guest in shares.turns.who():
                image = shares.images.find_image(pid)
                idle = shares.switch is not None or (tid == 0 and shares.can_part)
                process, kernel = (
                    each.native if each is not None else None
                    for _, each in shares.in_guest(pid, guest)
                )
                who = (image.native if image is not None else nothing, idle, process, kernel)
                which.append(numbers.setdefault(who, len(numbers)))
            self.idle = np.array([idle for _, idle, _, _ in numbers], bool)
            self.which, self.whose = which, list(numbers)
        return self


@dataclass(frozen=True, slots=True, eq=False)
class Shares:
    """The turns on a logical processor, in order of time, and the code of whose they are. With
    `who` those of these (pid, tid) alone are wanted; `can_part`: nothing but user code was traced,
    so that others need not be followed, and are if `follows_all`; `switch`: where the kernel
    switches threads, an address, if its code was traced and it is known. Before the first turn
    nobody is known to be there.
    """

    turns: TurnList
    images: Images
    can_part: bool
    who: tuple[tuple[int, int], ...] | None = None
    switch: int | None = None
    follows_all: bool = False
    known: _Known = field(default_factory=_Known)

    @property
    def has_guests(self) -> bool:
        """Whether it is known who ran in virtual machines."""
        return self.turns.has_guests

    @property
    def columns(self) -> tuple[str, ...]:
        """Those that say who ran."""
        return ("tid", "pid", *(IN_GUEST if self.has_guests else ()))

    @property
    def threads(self) -> int:
        """How many are wanted, of those that had a turn."""
        import numpy as np

        return len(np.unique(np.asarray(self.turns.tid)) if self.who is None else self.who)

    @property
    def tids(self) -> frozenset[int] | None:
        """The threads that are wanted; None: all."""
        return frozenset(tid for _, tid in self.who) if self.who is not None else None

    @property
    def taken(self) -> frozenset[int] | None:
        """The threads whose rows are to be taken out of all, if others are followed, too."""
        return None if self._passes_over else self.tids

    @property
    def _passes_over(self) -> bool:
        """Whether what others did is not followed."""
        return self.who is not None and self.can_part and not self.follows_all

    def of(self, *who: tuple[int, int]) -> Shares:
        """With these (pid, tid) alone wanted."""
        return replace(self, who=who)

    def last_turn(self, tid: int) -> int:
        """Since when (TSC) a thread had the processor for the last time; 0 if it never had."""
        if self.known.last is None:
            self.known.last = dict(zip(self.turns.tid, self.turns.since, strict=True))
        return self.known.last.get(tid, 0)

    def native(self) -> tuple[Buffer, Buffer, list[IntervalCode]]:
        """For the native decoder: since when (TSC), whose, a number of the list; there the code
        (None: not followed), and whether it is no matter of doubt when it begins: nobody is there,
        or the kernel shows where it switches. Last the code of a guest that it runs, of its process
        and its kernel.
        """
        import numpy as np

        known = self.known.of(self)
        if not self._passes_over:
            return self.turns.since, known.which, known.whose
        which = np.asarray(known.which)
        own, numbers, _ = self._own(known)
        # behind those of other threads
        places = np.zeros(len(known.whose), np.uint32)
        places[numbers] = np.arange(2, 2 + len(numbers))
        idle = known.idle[which].astype(np.uint32)
        whose = [_ELSEWHERE, _IDLE, *(known.whose[number] for number in numbers)]
        return self.turns.since, np.where(own, places[which], idle).data, whose

    def others(self, first: Image) -> list[tuple[int, Image]]:
        """Processes and code of `native`, each once, without the one whose code is `first`."""
        found: dict[Image, int] = {}
        nothing = Image()
        _, _, turns = self._own(self.known.of(self))
        for turn in turns:
            pid = self.turns.pid[turn]
            found.setdefault(self.images.find_image(pid) or nothing, pid)
            for inside, image in self.in_guest(pid, self.turns.guest(turn)):
                if image is not None:
                    found.setdefault(image, inside)
        found.pop(first, None)
        return [(pid, image) for image, pid in found.items()]

    def _own(self, known: _Known) -> tuple[NDArray[np.bool_], list[int], list[int]]:
        """Which turns are followed, whose these are in their order, and the first of each."""
        import numpy as np

        which, own = np.asarray(known.which), np.ones(len(known.which), bool)
        if self._passes_over:
            own = np.isin(np.asarray(self.turns.tid), [*(self.tids or ())])
        turns = np.flatnonzero(own)
        numbers, first = np.unique(which[turns], return_index=True)
        order = np.argsort(first)
        return own, numbers[order].tolist(), turns[first[order]].tolist()

    def in_guest(self, pid: int, guest: InGuest | None) -> list[tuple[int, Image | None]]:
        """Of the guest of a turn the process and the kernel, with their code if it is known."""
        if guest is None:
            return [(0, None), (0, None)]
        pids = guest_process_pid(pid, guest.pid), guest_kernel_pid(pid)
        return [(pid, self.images.find_image(pid)) for pid in pids]

    def turn(self, number: int) -> Turn | None:
        """The turn that the native decoder calls so; None for what was before the first."""
        return self.turns[number - 1] if number > 0 else None


def shared(turns: TurnList, images: Images, data: PerfData) -> Shares | None:
    """Of a CPU's stream; None if one thread alone can have run there. Raises UnsupportedError where
    they cannot be told apart.
    """
    event = data.intel_pt
    user_only = event is not None and bool(event.attr.flags & AttrFlag.EXCLUDE_KERNEL)
    timed = event is not None and config_value(event.attr.config, "tsc")
    can_tell = timed and data.time_conversion is not None
    # in the kernel anybody can have run, also one of whom nothing else is known
    all_count = bool(can_tell and not user_only)
    if not turns.has_guests and not _are_several(turns, images, all_count=all_count):
        return None
    if not can_tell:
        lacking = "file has no clock" if timed else "trace has no TSC packets (recorded with tsc=0)"
        raise UnsupportedError(
            f"{data.path}: cannot attribute code to threads: several threads share a CPU, and the "
            f"{lacking}",
            hint="" if timed else "record without tsc=0",
        )
    switch = None if user_only else images.kernel_address(SWITCH)
    return Shares(turns, images, user_only, switch=switch)


def _are_several(turns: TurnList, images: Images, *, all_count: bool) -> bool:
    """Whether there are turns of two threads: of all, or of those whose code is known."""
    first: int | None = None
    for pid, tid, _ in turns.who():
        if all_count or images.find_image(pid) is not None:
            if first not in (None, tid):
                return True
            first = tid
    return False


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
