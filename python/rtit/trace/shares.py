"""Who shares a logical processor: threads by turns, and their code."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

from rtit.errors import UnsupportedError
from rtit.image import Image, Images
from rtit.perfdata import PerfData
from rtit.perfdata.attr import AttrFlag, config_value
from rtit.sideband import Turn

if TYPE_CHECKING:
    from rtit import _core

SWITCH = "__switch_to"
"""The function of the kernel in which one thread becomes another."""


@dataclass(frozen=True, slots=True, eq=False)
class Shares:
    """The turns on a logical processor, in order of time, and the code of whose they are. With
    `tid` this thread's alone are wanted; `can_part`: nothing but user code was traced, so that
    others need not be followed; `switch`: where the kernel switches threads, an address, if its
    code was traced and it is known. Before the first turn nobody is known to be there.
    """

    turns: Sequence[Turn]
    images: Images
    can_part: bool
    tid: int | None = None
    switch: int | None = None

    COLUMNS: ClassVar[tuple[str, ...]] = ("tid", "pid")

    @property
    def tids(self) -> set[int]:
        """Those who had a turn."""
        return {turn.tid for turn in self.turns}

    @property
    def taken(self) -> int | None:
        """The thread whose rows are to be taken out of all, if others are followed, too."""
        return None if self.can_part else self.tid

    def of(self, tid: int) -> Shares:
        """With this thread alone wanted."""
        return replace(self, tid=tid)

    def _is_followed(self, turn: Turn) -> bool:
        return self.tid is None or turn.tid == self.tid or not self.can_part

    def native(self) -> list[tuple[int, _core.Space | None, bool]]:
        """For the native decoder: since when (TSC), the code (None: not followed), and whether it
        is no matter of doubt when it begins: nobody is there, or the kernel shows where it
        switches.
        """
        nothing = Image().native
        found: list[tuple[int, _core.Space | None, bool]] = []
        for turn in self.turns:
            idle = self.switch is not None or (turn.tid == 0 and self.can_part)
            if not self._is_followed(turn):
                found.append((turn.since, None, idle))
                continue
            image = self.images.known(turn.pid)
            found.append((turn.since, image.native if image is not None else nothing, idle))
        return found

    def others(self, first: Image) -> list[tuple[int, Image]]:
        """Processes and code of `native`, each once, without the one whose code is `first`."""
        found: dict[Image, int] = {}
        nothing = Image()
        for turn in self.turns:
            if self._is_followed(turn):
                found.setdefault(self.images.known(turn.pid) or nothing, turn.pid)
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
    if len({turn.tid for turn in (ran if user_only or not can_tell else turns)}) < 2:
        return None
    if not can_tell:
        raise UnsupportedError(
            f"{data.path}: several threads share a CPU, and without "
            f"{'the clock' if timed else 'TSC packets'} nothing tells whose code ran when"
        )
    switch = None if user_only else images.kernel_address(SWITCH)
    return Shares(turns, images, user_only, switch=switch)
