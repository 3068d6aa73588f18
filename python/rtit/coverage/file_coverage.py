"""Adds up coverage of recordings by file, and subtracts coverage of others."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

import numpy as np

from rtit._core import Space
from rtit.errors import UsageError
from rtit.image import FileSymbols
from rtit.profile.builder import build_profile
from rtit.profile.tables import NEAR_BRANCHES, ExecutedRanges, find_sorted
from rtit.trace import End
from rtit.trace.tables.counts import BoundedCounter

if TYPE_CHECKING:
    from rtit.profile.tables import Binary, Profile
    from rtit.trace import Stream, Trace

_NO_LIMIT = 1 << 62
"""A number of counters that no file reaches, so that every pair has a count."""
_Offsets = np.ndarray[Any, np.dtype[np.uint64]]


def _empty_offsets() -> _Offsets:
    return np.zeros(0, np.uint64)


@dataclass(slots=True, eq=False)
class FileCoverage:
    """Executed code of a file, by file offset, as sorted columns.

    * Instructions: `offset`, `length` in bytes, `count`.
    * Transfers within the file, and conditional branches that were not taken: `source`, `target`,
      `transfer_count`.
    * Ranges of instructions that ran as one: `range_start`, `range_end`.
    """

    path: str
    build_id: bytes | None
    symbols: FileSymbols
    space: Space
    offset: _Offsets = field(default_factory=_empty_offsets)
    length: np.ndarray[Any, np.dtype[np.uint8]] = field(
        default_factory=lambda: np.zeros(0, np.uint8)
    )
    count: _Offsets = field(default_factory=_empty_offsets)
    source: _Offsets = field(default_factory=_empty_offsets)
    target: _Offsets = field(default_factory=_empty_offsets)
    transfer_count: _Offsets = field(default_factory=_empty_offsets)
    range_start: _Offsets = field(default_factory=_empty_offsets)
    range_end: _Offsets = field(default_factory=_empty_offsets)

    def read_code(self, offset: int, size: int) -> bytes:
        """Return up to `size` bytes of code at a file offset."""
        return self.space.read(0, offset, size)

    def execution_counts(self, offsets: _Offsets) -> _Offsets:
        """Return how often the instruction at each offset ran."""
        at = find_sorted(self.offset, offsets)
        return np.where(at < 0, np.uint64(0), np.append(self.count, np.uint64(0))[at])

    def transfer_counts(self, sources: _Offsets, targets: _Offsets) -> _Offsets:
        """Return how often each transfer was made."""
        at = _first_rows_of_pairs(self.source, self.target, sources, targets)
        return np.where(at < 0, np.uint64(0), np.append(self.transfer_count, np.uint64(0))[at])

    def add(self, binary: Binary) -> None:
        """Add another recording of the file."""
        self._add_instructions(binary)
        within = binary.edges_within_binary
        branches = within.select_rows(np.isin(within.kind, [End.CUT, *NEAR_BRANCHES]))
        self.source, self.target, self.transfer_count = _sum_counts_of_pairs(
            (self.source, self.target, self.transfer_count),
            (branches.source, branches.target, branches.count),
        )
        ranges = ExecutedRanges(binary)
        ends = binary.offset[ranges.last] + binary.length[ranges.last]
        blocks = binary.offset[ranges.first], ends, ranges.count
        self.range_start, self.range_end, _ = _sum_counts_of_pairs(
            (self.range_start, self.range_end, self.range_start), blocks
        )

    def _add_instructions(self, binary: Binary) -> None:
        if not len(self.offset):
            self.offset, self.length, self.count = binary.offset, binary.length, binary.count
            return
        offset = np.union1d(self.offset, binary.offset)
        length, count = np.zeros(len(offset), np.uint8), np.zeros(len(offset), np.uint64)
        for each in (self, binary):
            at = np.searchsorted(offset, each.offset)
            length[at] = each.length
            count[at] += each.count
        self.offset, self.length, self.count = offset, length, count

    def without_code_of(self, base: FileCoverage) -> FileCoverage:
        """Return the instructions, transfers and ranges that did not run in `base`."""
        new = FileCoverage(self.path, self.build_id, self.symbols, self.space)
        is_new = find_sorted(base.offset, self.offset) < 0
        new.offset, new.length = self.offset[is_new], self.length[is_new]
        new.count = self.count[is_new]
        is_new = _first_rows_of_pairs(base.source, base.target, self.source, self.target) < 0
        new.source, new.target = self.source[is_new], self.target[is_new]
        new.transfer_count = self.transfer_count[is_new]
        is_new = find_sorted(new.offset, self.range_start) >= 0
        new.range_start, new.range_end = self.range_start[is_new], self.range_end[is_new]
        return new


@dataclass(slots=True)
class Coverage:
    """Executed code by file, in the order in which files were added."""

    files: list[FileCoverage] = field(default_factory=list)
    losses: list[str] = field(default_factory=list)
    """A sentence for each kind of loss, with the recording."""
    has_gaps: bool = False
    programs: set[str] = field(default_factory=set)
    """Paths of the recorded programs."""

    def add(self, found: Profile, name: str) -> None:
        """Add a recording that is called `name`."""
        known = {(code.path, code.build_id): code for code in self.files}
        if found.main is not None:
            self.programs.add(found.main.path)
        for binary in found.binaries:
            key = binary.path, binary.build_id
            if key not in known:
                known[key] = FileCoverage(*key, binary.symbols, binary.space)
                self.files.append(known[key])
            known[key].add(binary)
        self.losses.extend(f"{name}: {line}" for line in found.losses.describe_losses())
        self.has_gaps |= found.losses.has_gaps

    def select_files(self, names: Sequence[str]) -> list[FileCoverage]:
        """Return the files of these names or paths; "all" means all, no name the programs.

        Raises UsageError if no code ran in a file.
        """
        if "all" in names:
            return self.files
        for name in names:
            if not any(name in (each.path, PurePath(each.path).name) for each in self.files):
                known = ", ".join(PurePath(each.path).name for each in self.files) or "none"
                raise UsageError(f"no code ran in a file named {name}; code ran in: {known}")
        wanted = {*names} or self.programs
        return [each for each in self.files if wanted & {each.path, PurePath(each.path).name}]

    def without_code_of(self, other: Coverage) -> Coverage:
        """Return the instructions, transfers and ranges that did not run in `other`."""
        old = {(code.path, code.build_id): code for code in other.files}
        result = Coverage(losses=[*self.losses, *other.losses], programs=self.programs)
        result.has_gaps = self.has_gaps or other.has_gaps
        for code in self.files:
            base = old.get((code.path, code.build_id))
            result.files.append(code if base is None else code.without_code_of(base))
        return result


def coverage(recordings: Iterable[tuple[Trace, Sequence[Stream]]]) -> Coverage:
    """Decode streams of recordings, and return their coverage. Raises what decoding raises."""
    result = Coverage()
    for trace, streams in recordings:
        result.add(build_profile(trace, streams), trace.path)
    return result


def _sum_counts_of_pairs(
    *rows: tuple[_Offsets, _Offsets, _Offsets],
) -> tuple[_Offsets, _Offsets, _Offsets]:
    """Add up rows of two numbers and a count: one row per pair of numbers."""
    sums = BoundedCounter("u8 u8", _NO_LIMIT)
    for first, second, count in rows:
        if len(count):
            sums.add_rows(first, second, count=count)
    first, second, count = sums.take_sorted_columns()
    return first, second, count


def _first_rows_of_pairs(
    first: _Offsets, second: _Offsets, firsts: _Offsets, seconds: _Offsets
) -> np.ndarray[Any, np.dtype[np.intp]]:
    """Return the first row with each pair; -1 if it is missing. Rows are sorted by both numbers."""
    low, high = (np.searchsorted(first, firsts, side) for side in ("left", "right"))
    ends = high.copy()
    while (open_ := low < high).any():
        middle = (low + high) // 2
        less = open_ & (second[np.minimum(middle, len(second) - 1)] < seconds)
        low[less] = middle[less] + 1
        high[open_ & ~less] = middle[open_ & ~less]
    found = low < ends
    found[found] = second[low[found]] == seconds[found]
    return np.where(found, low, -1)
