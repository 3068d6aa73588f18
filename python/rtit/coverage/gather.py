"""Counts of many recordings, put together, or without what another has covered."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from rtit._core import Space
from rtit.image import FileSymbols
from rtit.profile.builder import profile
from rtit.profile.tables import NEAR, Stretches, places
from rtit.trace import End
from rtit.trace.tables.counts import Sums

if TYPE_CHECKING:
    from rtit.profile.tables import Binary, Profile
    from rtit.trace import Stream, Trace

_ALL = 1 << 62
"""More than there are places in a file: each is kept."""
# a class that has a method of this name means that by it
_Bytes = bytes
_Words = np.ndarray[Any, np.dtype[np.uint64]]


def _none() -> _Words:
    return np.zeros(0, np.uint64)


@dataclass(slots=True, eq=False)
class Code:
    """What ran of one file, by file offset, as columns in order. Instructions have `offset`,
    `length` in bytes and `count`; transfers within the file, not-taken conditional branches as
    well, `source`, `target` and how `often`; stretches that ran as one `begin` and `end`.
    """

    path: str
    build_id: _Bytes | None
    symbols: FileSymbols
    space: Space
    offset: _Words = field(default_factory=_none)
    length: np.ndarray[Any, np.dtype[np.uint8]] = field(
        default_factory=lambda: np.zeros(0, np.uint8)
    )
    count: _Words = field(default_factory=_none)
    source: _Words = field(default_factory=_none)
    target: _Words = field(default_factory=_none)
    often: _Words = field(default_factory=_none)
    begin: _Words = field(default_factory=_none)
    end: _Words = field(default_factory=_none)

    def bytes(self, offset: int, size: int) -> _Bytes:
        """The code at a file offset, less than `size` if there is no more."""
        return self.space.read(0, offset, size)

    def ran(self, offsets: _Words) -> _Words:
        """How often the instructions at these offsets did, 0 where none did."""
        at = places(self.offset, offsets)
        return np.where(at < 0, np.uint64(0), np.append(self.count, np.uint64(0))[at])

    def went(self, sources: _Words, targets: _Words) -> _Words:
        """How often each of these transfers was made."""
        at = _pairs(self.source, self.target, sources, targets)
        return np.where(at < 0, np.uint64(0), np.append(self.often, np.uint64(0))[at])

    def add(self, binary: Binary) -> None:
        """What ran of the same file once more."""
        self._add_instructions(binary)
        within = binary.within
        kept = within.where(np.isin(within.kind, [End.CUT, *NEAR]))
        self.source, self.target, self.often = _summed(
            (self.source, self.target, self.often), (kept.source, kept.target, kept.count)
        )
        stretches = Stretches(binary)
        ends = binary.offset[stretches.last] + binary.length[stretches.last]
        blocks = binary.offset[stretches.first], ends, stretches.count
        self.begin, self.end, _ = _summed((self.begin, self.end, self.begin), blocks)

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

    def without(self, base: Code) -> Code:
        """What is new: instructions, transfers and blocks of which nothing ran in the other."""
        new = Code(self.path, self.build_id, self.symbols, self.space)
        fresh = places(base.offset, self.offset) < 0
        new.offset, new.length = self.offset[fresh], self.length[fresh]
        new.count = self.count[fresh]
        fresh = _pairs(base.source, base.target, self.source, self.target) < 0
        new.source, new.target = self.source[fresh], self.target[fresh]
        new.often = self.often[fresh]
        fresh = places(new.offset, self.begin) >= 0
        new.begin, new.end = self.begin[fresh], self.end[fresh]
        return new


@dataclass(slots=True)
class Coverage:
    """All files of which code ran, in the order in which they were met; `losses`, of each recording
    that has any, in words.
    """

    codes: list[Code] = field(default_factory=list)
    losses: list[str] = field(default_factory=list)
    has_gaps: bool = False
    programs: set[str] = field(default_factory=set)
    """The paths of the programs that were recorded, of all that ran."""

    def add(self, found: Profile, name: str) -> None:
        """A recording more, called `name`."""
        known = {(code.path, code.build_id): code for code in self.codes}
        if found.main is not None:
            self.programs.add(found.main.path)
        for binary in found.binaries:
            key = binary.path, binary.build_id
            if key not in known:
                known[key] = Code(*key, binary.symbols, binary.space)
                self.codes.append(known[key])
            known[key].add(binary)
        self.losses.extend(f"{name}: {line}" for line in found.losses.lines())
        self.has_gaps |= found.losses.has_gaps

    def without(self, other: Coverage) -> Coverage:
        """What is new: instructions, transfers and blocks of which nothing ran in the other."""
        old = {(code.path, code.build_id): code for code in other.codes}
        result = Coverage(losses=[*self.losses, *other.losses], programs=self.programs)
        result.has_gaps = self.has_gaps or other.has_gaps
        for code in self.codes:
            base = old.get((code.path, code.build_id))
            result.codes.append(code if base is None else code.without(base))
        return result


def coverage(recordings: Iterable[tuple[Trace, Sequence[Stream]]]) -> Coverage:
    """Decode these streams of these recordings. Raises what decoding raises."""
    result = Coverage()
    for trace, streams in recordings:
        result.add(profile(trace, streams), trace.path)
    return result


def _summed(*rows: tuple[_Words, _Words, _Words]) -> tuple[_Words, _Words, _Words]:
    """Rows of two numbers and a count; those of the same numbers are one."""
    sums = Sums("u8 u8", _ALL)
    for first, second, count in rows:
        if len(count):
            sums.add(first, second, count=count)
    first, second, count = sums.columns()
    return first, second, count


def _pairs(
    first: _Words, second: _Words, wanted: _Words, with_these: _Words
) -> np.ndarray[Any, np.dtype[np.intp]]:
    """The same of pairs, sorted by both."""
    low, high = (np.searchsorted(first, wanted, side) for side in ("left", "right"))
    ends = high.copy()
    while (open_ := low < high).any():
        middle = (low + high) // 2
        less = open_ & (second[np.minimum(middle, len(second) - 1)] < with_these)
        low[less] = middle[less] + 1
        high[open_ & ~less] = middle[open_ & ~less]
    found = low < ends
    found[found] = second[low[found]] == with_these[found]
    return np.where(found, low, -1)
