"""What was mapped where and when, in one process."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rtit.image.files import Problem

# Names that the kernel and perf give to memory without a file behind it.
_NO_FILE = ("//anon", "[", "anon_inode:", "/memfd:", "/dev/zero", "/SYSV", "/dev/shm/SYSV")
_JITTED = "[jit-"
"""The beginning of the names under which functions of jitdump files are listed."""
FOREVER = (1 << 64) - 1
KERNEL_START = 1 << 63
"""The first address of the kernel's half."""


def has_file(path: str) -> bool:
    """False for the names of anonymous memory and of the kernel's own pages such as [vdso]."""
    return bool(path) and (not path.startswith(_NO_FILE) or is_in_guest(path))


def guest_path(machine: int, path: str) -> str:
    """What a file of the virtual machine that is process `machine` is called: its paths are not
    the host's.
    """
    return f"[guest {machine}]{path}"


def is_in_guest(path: str) -> bool:
    """Whether `guest_path` made it, of a path that is one."""
    start, end, rest = path.partition("]")
    return bool(end) and rest.startswith("/") and start.startswith("[guest ")


@dataclass(frozen=True, slots=True)
class Mapping:
    """Executable memory from `start` up to `end`, from time `since` up to `until` (TSC).

    `offset` is the file offset of `start` in bytes; `problem` says why its bytes are not known.
    """

    start: int
    end: int
    offset: int
    path: str
    build_id: bytes | None
    since: int
    until: int = FOREVER
    problem: Problem | None = None

    def has_same_source(self, other: Mapping) -> bool:
        """True if both show the same bytes of the same thing at an address that they share."""
        if (self.path, self.build_id) != (other.path, other.build_id):
            return False
        has_offsets = has_file(self.path) or self.path.startswith(_JITTED)
        return not has_offsets or self.start - self.offset == other.start - other.offset


class MappedRanges:
    """Addresses that were named: ranges in order that have nothing in common."""

    __slots__ = ("_ranges",)

    def __init__(self, ranges: list[tuple[int, int]] | None = None) -> None:
        self._ranges = ranges or []

    def add(self, start: int, end: int) -> bool:
        """Name a range; True if part of it had been named before."""
        first = bisect_right(self._ranges, start, key=lambda each: each[1])
        last = bisect_right(self._ranges, end - 1, key=lambda each: each[0])
        old = self._ranges[first:last]
        low = min(start, old[0][0]) if old else start
        high = max(end, old[-1][1]) if old else end
        self._ranges[first:last] = [(low, high)]
        return bool(old)


class Mappings:
    """The mappings of one process. Times do not go back.

    Early visibility is as for `Space`: a mapping where there was none before, since the start or
    the last exec, counts from there on.
    """

    __slots__ = ("_life", "_now", "_touched", "ended")

    def __init__(self, start: int = 0) -> None:
        self.ended: list[Mapping] = []
        self._now: list[Mapping] = []  # sorted, disjoint
        self._life = start
        # mapped at some time in this life; None: what is now. Of a process that is forked and maps
        # nothing there is none: there may be a hundred thousand.
        self._touched: MappedRanges | None = None

    def __iter__(self) -> Iterator[Mapping]:
        yield from self.ended
        yield from self._now

    @property
    def count(self) -> int:
        """How many there are now."""
        return len(self._now)

    @property
    def program_start(self) -> int:
        """Since when the program runs that these are of: the start of the process, or an exec."""
        return self._life

    def overlapping(self, start: int, end: int) -> list[Mapping]:
        """The current mappings that overlap a range."""
        first, last = self._between(start, end)
        return self._now[first:last]

    def _between(self, start: int, end: int) -> tuple[int, int]:
        first = bisect_right(self._now, start, key=lambda each: each.end)
        return first, bisect_right(self._now, end - 1, first, key=lambda each: each.start)

    def add(self, new: Mapping) -> None:
        """A mapping appears and replaces what it overlaps."""
        touched = self._life_touched()
        self.remove(new.start, new.end, new.since)
        if not touched.add(new.start, new.end):
            new = replace(new, since=self._life)
        index = bisect_right(self._now, new.start, key=lambda each: each.start)
        self._now.insert(index, new)

    def remove(self, start: int, end: int, time: int) -> None:
        """What is mapped in a range ends at `time`."""
        first, last = self._between(start, end)
        old = self._now[first:last]
        if not old:
            return
        self._life_touched()
        rest = []
        for each in old:
            if each.start < start:
                rest.append(_cut(each, each.start, start))
            if each.since < time:
                inner = _cut(each, max(start, each.start), min(end, each.end))
                self.ended.append(replace(inner, until=time))
            if each.end > end:
                rest.append(_cut(each, end, each.end))
        self._now[first:last] = rest

    def name_anonymous(self, path: str) -> None:
        """What has no file and no other name is called so, with addresses for offsets."""

        def named(each: Mapping) -> Mapping:
            bare = each.path in ("", "//anon")
            return replace(each, path=path, offset=each.start) if bare else each

        self.ended = [named(each) for each in self.ended]
        self._now = [named(each) for each in self._now]

    def clear(self, time: int) -> None:
        """All mappings end (exec)."""
        self.remove(0, FOREVER + 1, time)
        self._touched = None
        self._life = time

    def fork(self, time: int) -> Mappings:
        """The mappings of a process forked at `time`."""
        child = Mappings(time)
        child.adopt(self, time)
        return child

    def adopt(self, parent: Mappings, time: int) -> None:
        """Become what `parent` is at `time`; what was mapped until then ends."""
        now = parent._now
        self.clear(time)
        # All at once: of many processes each may inherit many.
        self._now = [
            Mapping(m.start, m.end, m.offset, m.path, m.build_id, time, FOREVER, m.problem)
            for m in now
        ]
        self._touched = None

    def _life_touched(self) -> MappedRanges:
        if self._touched is None:
            self._touched = MappedRanges([(each.start, each.end) for each in self._now])
        return self._touched


def _cut(mapping: Mapping, start: int, end: int) -> Mapping:
    return replace(mapping, start=start, end=end, offset=mapping.offset + start - mapping.start)
