"""Executable mappings of one process over time.

`Mapping` is a range of addresses that shows a range of a file from one time to another. `Mappings`
keeps those of a process: a new mapping cuts what it overlaps, an exec ends all, and a fork copies
those of the parent.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rtit.image.problems import Problem

# Names that the kernel and perf give to memory without a file.
_NO_FILE = ("//anon", "[", "anon_inode:", "/memfd:", "/dev/zero", "/SYSV", "/dev/shm/SYSV")
_ANONYMOUS = ("//anon", "/memfd:", "/dev/zero", "/SYSV", "/dev/shm/SYSV", "[heap]", "[stack")
_JIT_PREFIX = "[jit-"
"""Start of the paths of mappings of jitdump files."""
FOREVER = (1 << 64) - 1
KERNEL_START = 1 << 63
"""The first address of the kernel's half of the address space."""


def has_file(path: str) -> bool:
    """Return False for names of anonymous memory and of kernel pages such as [vdso]."""
    return bool(path) and (not path.startswith(_NO_FILE) or is_in_guest(path))


def guest_path(machine: int, path: str) -> str:
    """Return a path for a file of a virtual machine, which differs from all paths of the host."""
    return f"[guest {machine}]{path}"


def is_in_guest(path: str) -> bool:
    """Return whether the path is one of `guest_path` for an absolute path."""
    start, end, rest = path.partition("]")
    return bool(end) and rest.startswith("/") and start.startswith("[guest ")


@dataclass(frozen=True, slots=True)
class Mapping:
    """Executable memory from `start` to before `end`, from time `since` to before `until` (TSC).

    `offset` is the file offset of `start` in bytes; `problem` says why its bytes are unknown.
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
        """Return whether both show the same bytes at an address that they share."""
        if (self.path, self.build_id) != (other.path, other.build_id):
            return False
        has_offsets = has_file(self.path) or self.path.startswith(_JIT_PREFIX)
        return not has_offsets or self.start - self.offset == other.start - other.offset


class MappedRanges:
    """A set of addresses, as sorted ranges that do not overlap."""

    __slots__ = ("_ranges",)

    def __init__(self, ranges: list[tuple[int, int]] | None = None) -> None:
        self._ranges = ranges or []

    def add_range(self, start: int, end: int) -> bool:
        """Add a range. Returns True if part of it was in the set before."""
        first = bisect_right(self._ranges, start, key=lambda each: each[1])
        last = bisect_right(self._ranges, end - 1, key=lambda each: each[0])
        old = self._ranges[first:last]
        low = min(start, old[0][0]) if old else start
        high = max(end, old[-1][1]) if old else end
        self._ranges[first:last] = [(low, high)]
        return bool(old)


class Mappings:
    """The mappings of one process. Events come in order of time.

    A mapping at addresses that had none since the start of the program counts from that start on,
    as code in `_core.Space` does: the record of a mapping can be later than its first execution.
    """

    __slots__ = ("_current", "_mapped", "_program_start", "ended")

    def __init__(self, start: int = 0) -> None:
        self.ended: list[Mapping] = []
        self._current: list[Mapping] = []  # sorted, disjoint
        self._program_start = start
        # Addresses that had a mapping since the program started. None: those of `_current`. A
        # forked process that maps nothing needs none, and there may be a hundred thousand of them.
        self._mapped: MappedRanges | None = None

    def __iter__(self) -> Iterator[Mapping]:
        yield from self.ended
        yield from self._current

    @property
    def current_mapping_count(self) -> int:
        """The number of current mappings."""
        return len(self._current)

    @property
    def program_start(self) -> int:
        """The start time of the current program: that of the process or of the last exec."""
        return self._program_start

    def mappings_overlapping(self, start: int, end: int) -> list[Mapping]:
        """Return the current mappings that overlap a range."""
        first, last = self._indices_of_overlapping(start, end)
        return self._current[first:last]

    def _indices_of_overlapping(self, start: int, end: int) -> tuple[int, int]:
        first = bisect_right(self._current, start, key=lambda each: each.end)
        return first, bisect_right(self._current, end - 1, first, key=lambda each: each.start)

    def add(self, new: Mapping) -> None:
        """Add a mapping, which replaces what it overlaps."""
        mapped = self._mapped_ranges()
        self.remove(new.start, new.end, new.since)
        if not mapped.add_range(new.start, new.end):
            new = replace(new, since=self._program_start)
        index = bisect_right(self._current, new.start, key=lambda each: each.start)
        self._current.insert(index, new)

    def remove(self, start: int, end: int, time: int) -> None:
        """End all mappings in a range at `time`."""
        first, last = self._indices_of_overlapping(start, end)
        old = self._current[first:last]
        if not old:
            return
        self._mapped_ranges()
        rest = []
        for each in old:
            if each.start < start:
                rest.append(_cut_mapping(each, each.start, start))
            if each.since < time:
                inner = _cut_mapping(each, max(start, each.start), min(end, each.end))
                self.ended.append(replace(inner, until=time))
            if each.end > end:
                rest.append(_cut_mapping(each, end, each.end))
        self._current[first:last] = rest

    def name_anonymous_mappings(self, path: str) -> None:
        """Name the mappings of anonymous memory; their offsets become addresses."""

        def with_name(each: Mapping) -> Mapping:
            if each.path and not each.path.startswith(_ANONYMOUS):
                return each
            return replace(each, path=path, offset=each.start)

        self.ended = [with_name(each) for each in self.ended]
        self._current = [with_name(each) for each in self._current]

    def clear(self, time: int) -> None:
        """End all mappings (exec)."""
        self.remove(0, FOREVER + 1, time)
        self._mapped = None
        self._program_start = time

    def fork(self, time: int) -> Mappings:
        """Return the mappings of a process that is forked at `time`."""
        child = Mappings(time)
        child.replace_by_copy_of(self, time)
        return child

    def replace_by_copy_of(self, parent: Mappings, time: int) -> None:
        """Replace the mappings by those of `parent` at `time`."""
        inherited = parent._current
        self.clear(time)
        # All at once: each of many processes can inherit many.
        self._current = [
            Mapping(m.start, m.end, m.offset, m.path, m.build_id, time, FOREVER, m.problem)
            for m in inherited
        ]
        self._mapped = None

    def _mapped_ranges(self) -> MappedRanges:
        if self._mapped is None:
            self._mapped = MappedRanges([(each.start, each.end) for each in self._current])
        return self._mapped


def _cut_mapping(mapping: Mapping, start: int, end: int) -> Mapping:
    return replace(mapping, start=start, end=end, offset=mapping.offset + start - mapping.start)
