"""Who shares a logical processor: threads by turns, and their code."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rtit.errors import UnsupportedError
from rtit.image import Image, Images, guest_pid, process_in_guest
from rtit.perfdata import PerfData
from rtit.perfdata.attr import AttrFlag, config_value
from rtit.sideband import Turn
from rtit.values import dataclass, replace

if TYPE_CHECKING:
    from rtit import _core

    NativeTurn = tuple[int, _core.Space | None, bool, _core.Space | None, _core.Space | None]

IN_GUEST = ("guest_tid", "guest_pid")
SWITCH = "__switch_to"
"""The function of the kernel in which one thread becomes another."""


@dataclass(frozen=True, slots=True, eq=False)
class Shares:
    """The turns on a logical processor, in order of time, and the code of whose they are. With
    `tid` this thread's alone are wanted; `can_part`: nothing but user code was traced, so that
    others need not be followed, and are if `follows_all`; `switch`: where the kernel switches
    threads, an address, if its code was traced and it is known. Before the first turn nobody is
    known to be there.
    """

    turns: Sequence[Turn]
    images: Images
    can_part: bool
    tid: int | None = None
    switch: int | None = None
    follows_all: bool = False

    @property
    def has_guests(self) -> bool:
        """Whether it is known who ran in virtual machines."""
        return any(turn.guest is not None for turn in self.turns)

    @property
    def columns(self) -> tuple[str, ...]:
        """Those that say who ran."""
        return ("tid", "pid", *(IN_GUEST if self.has_guests else ()))

    @property
    def tids(self) -> set[int]:
        """Those who had a turn."""
        return {turn.tid for turn in self.turns}

    @property
    def taken(self) -> int | None:
        """The thread whose rows are to be taken out of all, if others are followed, too."""
        return self.tid if self.follows_all or not self.can_part else None

    def of(self, tid: int) -> Shares:
        """With this thread alone wanted."""
        return replace(self, tid=tid)

    def _is_followed(self, turn: Turn) -> bool:
        return self.tid in (turn.tid, self.taken)

    def native(self) -> list[NativeTurn]:
        """For the native decoder: since when (TSC), the code (None: not followed), and whether it
        is no matter of doubt when it begins: nobody is there, or the kernel shows where it
        switches. Last the code of a guest that it runs, of its process and its kernel.
        """
        nothing = Image().native
        found: list[NativeTurn] = []
        for turn in self.turns:
            idle = self.switch is not None or (turn.tid == 0 and self.can_part)
            if not self._is_followed(turn):
                found.append((turn.since, None, idle, None, None))
                continue
            image = self.images.known(turn.pid)
            own = image.native if image is not None else nothing
            process, kernel = (
                image.native if image is not None else None for _, image in self._guest(turn)
            )
            found.append((turn.since, own, idle, process, kernel))
        return found

    def _guest(self, turn: Turn) -> list[tuple[int, Image | None]]:
        """Of the guest of a turn the process and the kernel, with their code if it is known."""
        if turn.guest is None:
            return [(0, None), (0, None)]
        pids = process_in_guest(turn.pid, turn.guest.pid), guest_pid(turn.pid)
        return [(pid, self.images.known(pid)) for pid in pids]

    def others(self, first: Image) -> list[tuple[int, Image]]:
        """Processes and code of `native`, each once, without the one whose code is `first`."""
        found: dict[Image, int] = {}
        nothing = Image()
        for turn in self.turns:
            if not self._is_followed(turn):
                continue
            found.setdefault(self.images.known(turn.pid) or nothing, turn.pid)
            for pid, image in self._guest(turn):
                if image is not None:
                    found.setdefault(image, pid)
        found.pop(first, None)
        return [(pid, image) for image, pid in found.items()]

    def turn(self, number: int) -> Turn | None:
        """The turn that the native decoder calls so; None for what was before the first."""
        return self.turns[number - 1] if number > 0 else None


def shared(turns: Sequence[Turn], images: Images, data: PerfData) -> Shares | None:
    """Of a CPU's stream; None if one thread alone can have run there. Raises UnsupportedError where
    they cannot be told apart.
    """
    event = data.intel_pt
    user_only = event is not None and bool(event.attr.flags & AttrFlag.EXCLUDE_KERNEL)
    timed = event is not None and config_value(event.attr.config, "tsc")
    can_tell = timed and data.time_conversion is not None
    # in the kernel anybody can have run, also one of whom nothing else is known
    ran = [turn for turn in turns if images.known(turn.pid) is not None]
    several = len({turn.tid for turn in (ran if user_only or not can_tell else turns)}) > 1
    if not several and not any(turn.guest is not None for turn in turns):
        return None
    if not can_tell:
        raise UnsupportedError(
            f"{data.path}: several threads share a CPU, and without "
            f"{'the clock' if timed else 'TSC packets'} nothing tells whose code ran when"
        )
    switch = None if user_only else images.kernel_address(SWITCH)
    return Shares(turns, images, user_only, switch=switch)
