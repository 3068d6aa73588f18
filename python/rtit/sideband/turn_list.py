"""Turns of a CPU, as columns: there are millions of them."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import NamedTuple, overload

NOBODY = -1
"""Of a thread or process that is not known."""
_NONE = -2
"""In the columns of guests: there is none."""


class InGuest(NamedTuple):
    """Thread `tid` of process `pid` in a virtual machine."""

    pid: int
    tid: int


@dataclass(frozen=True, slots=True)
class Turn:
    """From `since` (TSC ticks) on thread `tid` of process `pid` has the CPU: 0 nobody (idle), -1
    not known. If it is a CPU of a virtual machine, and the file says so, `guest` has that one.
    """

    since: int
    pid: int
    tid: int
    guest: InGuest | None = None


class TurnList(Sequence[Turn]):
    """Turns in order of time. `since` (64 bits), `pid` and `tid` (32) have one number of each;
    `guest_pid` and `guest_tid` are empty if none has a guest.
    """

    __slots__ = ("guest_pid", "guest_tid", "pid", "since", "tid")

    def __init__(self, turns: Iterable[Turn] = ()) -> None:
        self.since = array("Q")
        self.pid, self.tid = array("i"), array("i")
        self.guest_pid, self.guest_tid = array("i"), array("i")
        for turn in turns:
            self.put(turn.since, turn.pid, turn.tid, turn.guest)

    @property
    def has_guests(self) -> bool:
        """Whether one has a guest."""
        return bool(self.guest_pid)

    def put(self, since: int, pid: int, tid: int, guest: InGuest | None = None) -> None:
        """One more, not before the last."""
        if guest is not None and not self.has_guests:
            self.guest_pid = array("i", [_NONE]) * len(self)
            self.guest_tid = array("i", self.guest_pid)
        self.since.append(since)
        self.pid.append(pid)
        self.tid.append(tid)
        if self.has_guests or guest is not None:
            in_guest = guest or (_NONE, _NONE)
            self.guest_pid.append(in_guest[0])
            self.guest_tid.append(in_guest[1])

    def guest(self, number: int) -> InGuest | None:
        """The guest of turn `number`, if it has one."""
        if not self.has_guests or self.guest_pid[number] == _NONE:
            return None
        return InGuest(self.guest_pid[number], self.guest_tid[number])

    def who(self) -> Iterator[tuple[int, int, InGuest | None]]:
        """Of each turn the process, the thread, the guest."""
        guests = map(self.guest, range(len(self))) if self.has_guests else repeat(None)
        return zip(self.pid, self.tid, guests, strict=False)

    def __len__(self) -> int:
        return len(self.since)

    @overload
    def __getitem__(self, index: int) -> Turn: ...
    @overload
    def __getitem__(self, index: slice) -> list[Turn]: ...
    def __getitem__(self, index: int | slice) -> Turn | list[Turn]:
        if isinstance(index, slice):
            return [self[number] for number in range(*index.indices(len(self)))]
        return Turn(self.since[index], self.pid[index], self.tid[index], self.guest(index))

    def __eq__(self, other: object) -> bool:
        return list(self) == other if isinstance(other, Sequence) else NotImplemented

    __hash__ = None  # type: ignore[assignment]
