"""Two threads, along their paths: the first place where they part.

A path is what it is whatever the addresses that things were loaded at: of each run of instructions
the file and the offset in it, and how many. Memory is bounded: both are decoded in step, in chunks.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from rtit.image import Regions
from rtit.trace import End

if TYPE_CHECKING:
    from rtit.trace import Rows, Stream, Trace

_LONGEST = np.uint64(15)
"""Bytes of an instruction."""
_KEPT = 64
"""Runs that are remembered of what is equal."""


class Run(NamedTuple):
    """Instructions that followed each other in memory: the first one's and the last one's IP, how
    many, when (TSC), and how they ended.
    """

    start: int
    last: int
    instructions: int
    time: int
    end: End


@dataclass(frozen=True, slots=True)
class Parting:
    """Where two paths part, each in its own addresses. `before`: the last runs that are equal, the
    latest last; `after`: the runs that follow, none at an end, of which the first `shared`
    instructions are still equal.
    """

    before: tuple[list[Run], list[Run]]
    after: tuple[list[Run], list[Run]]
    shared: int


class Names:
    """Numbers for what is mapped, the same for both recordings. A file is its build id, or its path
    without one; other memory its name, or, if it has none, where it is.
    """

    def __init__(self) -> None:
        self._numbers: dict[object, int] = {}

    def of(self, regions: Regions) -> Any:
        """By row of the mappings; the last is that of what is nowhere."""
        keys = [each.build_id or each.path for each in regions.mappings]
        found = [self._numbers.setdefault(key, len(self._numbers)) for key in keys]
        return np.array([*found, -1], np.int64)


class Path:
    """The path of a stream in chunks of columns: a row a run, wherever decoding cut it."""

    def __init__(self, trace: Trace, stream: Stream, names: Names) -> None:
        self.stream = stream
        self._regions = Regions(trace.images.mappings(stream.tid))
        self._names = names.of(self._regions)
        self._chunks = self._joined()
        self._chunk: tuple[Any, ...] = tuple(np.zeros(0, np.uint64) for _ in range(7))
        self._at = 0

    def ready(self) -> int:
        """How many rows there are before the next chunk; 0 at the end."""
        while self._at == len(self._chunk[0]):
            following = next(self._chunks, None)
            if following is None:
                return 0
            self._chunk, self._at = following, 0
        return len(self._chunk[0]) - self._at

    def key(self, count: int) -> tuple[Any, ...]:
        """Of the next rows what must be equal: what is mapped, offset, instructions."""
        return tuple(column[self._at : self._at + count] for column in self._chunk[:3])

    def take(self, count: int) -> tuple[int, list[Run]]:
        """Goes on by so many rows: how many instructions they have, and the last rows of them."""
        until = self._at + count
        instructions = int(self._chunk[2][self._at : until].sum())
        runs = self._runs(max(self._at, until - _KEPT), until)
        self._at = until
        return instructions, runs

    def following(self, most: int) -> list[Run]:
        """The next rows, up to so many, taken."""
        found: list[Run] = []
        while len(found) < most and (ready := self.ready()):
            count = min(ready, most - len(found))
            found.extend(self._runs(self._at, self._at + count))
            self._at += count
        return found

    def _runs(self, start: int, end: int) -> list[Run]:
        _region, _offset, instructions, *rest = (
            column[start:end].tolist() for column in self._chunk
        )
        first, last, time, ending = rest
        return [
            Run(*row[:4], End(row[4]))
            for row in zip(first, last, instructions, time, ending, strict=True)
        ]

    def _joined(self) -> Iterator[tuple[Any, ...]]:
        """Rows that were cut for no reason in the program are joined with the next: by the decoder,
        or because the thread had to wait for its processor there.
        """
        kept: tuple[Any, ...] | None = None
        for rows in self.stream.rows():
            columns = self._columns(rows)
            if kept is not None:
                columns = tuple(
                    np.concatenate([old, new]) for old, new in zip(kept, columns, strict=True)
                )
            # What follows the last row may belong to it.
            ends = np.flatnonzero(~_goes_on(columns))
            kept = columns
            if len(ends):
                begin = int(ends[-1]) + 1
                kept = tuple(column[begin:] for column in columns)
                yield _together(tuple(column[:begin] for column in columns), ends)
        if kept is not None and len(kept[0]):
            ends = np.append(np.flatnonzero(~_goes_on(kept)), len(kept[0]) - 1)
            yield _together(kept, ends)

    def _columns(self, rows: Rows) -> tuple[Any, ...]:
        at, offset = self._regions.at(rows.start, rows.time)
        return (
            self._names[at],
            offset,
            rows.instructions.astype(np.uint64),
            rows.start,
            rows.last,
            rows.time,
            rows.end,
        )


def _goes_on(columns: tuple[Any, ...]) -> Any:
    """For each row but the last, whether the next one is its continuation."""
    *_, start, last, _time, end = columns
    behind = start[1:] - last[:-1]
    interrupted = (end[:-1] == End.EVENT) & (behind > 0) & (behind <= _LONGEST)
    return (end[:-1] == End.CUT) | interrupted


def _together(columns: tuple[Any, ...], ends: Any) -> tuple[Any, ...]:
    """Each row with those before it up to the last of `ends`."""
    begins = np.append(0, ends[:-1] + 1)
    named, offset, instructions, start, last, time, end = columns
    return (
        named[begins],
        offset[begins],
        np.add.reduceat(instructions, begins),
        start[begins],
        last[ends],
        time[begins],
        end[ends],
    )


def compare(left: Path, right: Path, steps: int) -> tuple[int, Parting | None]:
    """How many instructions are equal, and where the paths part, if they do."""
    equal = 0
    before: tuple[deque[Run], deque[Run]] = deque(maxlen=_KEPT), deque(maxlen=_KEPT)
    while True:
        count = min(left.ready(), right.ready())
        same = _same(left.key(count), right.key(count))
        if same:
            instructions, runs = left.take(same)
            before[0].extend(runs)
            before[1].extend(right.take(same)[1])
            equal += instructions
        if same == count and count:
            continue
        shared = _shared(left, right)
        after = left.following(steps), right.following(steps)
        if not any(after):
            return equal, None
        return equal + shared, Parting((list(before[0]), list(before[1])), after, shared)


def _same(left: tuple[Any, ...], right: tuple[Any, ...]) -> int:
    """How many rows are equal, from the first on."""
    different = np.zeros(len(left[0]), bool)
    for one, other in zip(left, right, strict=True):
        different |= one != other
    return int(different.argmax()) if different.any() else len(different)


def _shared(left: Path, right: Path) -> int:
    """Instructions that the next runs have in common: they may begin at one place."""
    if not left.ready() or not right.ready():
        return 0
    (ours, theirs) = (tuple(int(column[0]) for column in path.key(1)) for path in (left, right))
    return min(ours[2], theirs[2]) if ours[:2] == theirs[:2] else 0
