"""Who shares a logical processor: threads by turns, and their code."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from rtit.errors import UnsupportedError
from rtit.image import Image, Images, guest_pid, process_in_guest
from rtit.perfdata import PerfData
from rtit.perfdata.attr import AttrFlag, config_value
from rtit.sideband import Turn, TurnList
from rtit.sideband.turn_list import InGuest

if TYPE_CHECKING:
    from typing import Self, TypeAlias

    import numpy as np
    from numpy.typing import NDArray
    from typing_extensions import Buffer

    from rtit import _core

    Whose: TypeAlias = tuple[_core.Space | None, bool, _core.Space | None, _core.Space | None]

IN_GUEST = ("guest_tid", "guest_pid")
SWITCH = "__switch_to"
"""The function of the kernel in which one thread becomes another."""
_ELSEWHERE: Whose = (None, False, None, None)
_IDLE: Whose = (None, True, None, None)
"""Who is not followed."""


class _Known:
    """Whose code each turn of a logical processor runs, if all are followed: `whose` by numbers,
    `which` has the number of each turn, `idle` those with which there is no doubt. There are as
    many threads as there are turns, and all need it.
    """

    last: dict[int, int] | None = None
    """Since when each thread had its last turn."""

    def __init__(self) -> None:
        self.which = array("I")
        self.whose: list[Whose] = []
        self.idle: NDArray[np.bool_]

    def of(self, shares: Shares) -> Self:
        """Made when it is first asked for."""
        if not self.whose:
            import numpy as np

            nothing, which = Image().native, array("I")
            numbers: dict[Whose, int] = {}
            for pid, tid, guest in shares.turns.who():
                image = shares.images.known(pid)
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

    def native(self) -> tuple[Buffer, Buffer, list[Whose]]:
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
            found.setdefault(self.images.known(pid) or nothing, pid)
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
        pids = process_in_guest(pid, guest.pid), guest_pid(pid)
        return [(pid, self.images.known(pid)) for pid in pids]

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
        if all_count or images.known(pid) is not None:
            if first not in (None, tid):
                return True
            first = tid
    return False
