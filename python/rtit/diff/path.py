"""The path of one thread, as it is compared: in steps.

A path is what it is whatever the addresses that things were loaded at: of each run of instructions
the file and the offset in it, and how many. Where two builds of a file differ, what stays in one
function, or in the dynamic loader, is one step. Memory is bounded: it is decoded in chunks.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from rtit.diff.builds import BY_FILE, BY_FUNCTION, EXACT
from rtit.image import Regions
from rtit.trace import End

if TYPE_CHECKING:
    from rtit.diff.builds import Builds
    from rtit.trace import Rows, Stream, Trace

_LONGEST = np.uint64(15)
"""Bytes of an instruction."""
KEPT = 64
"""Runs that are remembered of what is equal."""
_LEAVES = (End.CALL, End.INDIRECT_CALL, End.RETURN, End.SYSCALL)
"""A run that ends so does not stay in its function."""


class Run(NamedTuple):
    """Instructions that followed each other in memory: the first one's and the last one's IP, how
    many, when (TSC), and how they ended.
    """

    start: int
    last: int
    instructions: int
    time: int
    end: End


class Path:
    """The path of a stream in chunks of steps, wherever decoding cut it."""

    def __init__(self, trace: Trace, stream: Stream, builds: Builds, side: int) -> None:
        self.stream = stream
        self._regions = Regions(trace.images.mappings(stream.tid))
        self._names, self._sides = builds.tables(side, self._regions.mappings)
        self._chunks = self._joined()
        self._chunk = _Steps.none()
        self._at = 0

    def ready(self) -> int:
        """How many steps there are before the next chunk; 0 at the end."""
        while self._at == len(self._chunk.named):
            following = next(self._chunks, None)
            if following is None:
                return 0
            self._chunk, self._at = following, 0
        return len(self._chunk.named) - self._at

    def key(self, count: int) -> tuple[Any, ...]:
        """Of the next steps what must be equal: what is mapped, the place in it, instructions."""
        chunk, rows = self._chunk, slice(self._at, self._at + count)
        return chunk.named[rows], chunk.place[rows], chunk.length[rows]

    def rows(self, count: int) -> Any:
        """The same as rows of one array."""
        return np.stack([column.astype(np.uint64) for column in self.key(count)], axis=1)

    def take(self, count: int) -> tuple[int, list[Run]]:
        """Goes on by so many steps: how many instructions they have, and the last runs of them."""
        until = self._at + count
        instructions = int(self._chunk.instructions[self._at : until].sum())
        runs = _runs(self._chunk.last, max(self._at, until - KEPT), until)
        self._at = until
        return instructions, runs

    def following(self, most: int) -> list[Run]:
        """The first runs of the next steps, up to so many, which stay the next."""
        return _runs(self._chunk.first, self._at, self._at + self.ahead(most))

    def ahead(self, most: int) -> int:
        """Has up to so many of the next steps at hand; how many these are."""
        ready, more = len(self._chunk.named) - self._at, []
        while ready < most and (following := next(self._chunks, None)) is not None:
            more.append(following)
            ready += len(following.named)
        if more:
            self._chunk, self._at = self._chunk.behind(self._at, more), 0
        return min(most, ready)

    def _joined(self) -> Iterator[_Steps]:
        """Rows that were cut for no reason in the program are joined with the next: by the decoder,
        or because the thread had to wait for its processor there; and so are those that are one
        step.
        """
        kept: _Rows | None = None
        for rows in self.stream.rows():
            columns = self._columns(rows)
            if kept is not None:
                pairs = zip(kept, columns, strict=True)
                columns = _Rows(*(np.concatenate(pair) for pair in pairs))
            # What follows the last row may belong to it.
            ends = np.flatnonzero(~_goes_on(columns))
            kept = columns
            if len(ends):
                begin = int(ends[-1]) + 1
                kept = columns.part(slice(begin, None))
                yield _together(columns.part(slice(begin)), ends)
            kept = _shortened(kept)
        if kept is not None and len(kept.named):
            ends = np.append(np.flatnonzero(~_goes_on(kept)), len(kept.named) - 1)
            yield _together(kept, ends)

    def _columns(self, rows: Rows) -> _Rows:
        at, place = self._regions.at(rows.start, rows.time)
        instructions = rows.instructions.astype(np.uint64)
        loose = np.zeros(len(at), np.uint8)
        if self._sides:
            place = place.copy()
        for row, side in self._sides.items():
            own = at == row
            if not own.any():
                continue
            if side is None:
                place[own], loose[own] = 0, BY_FILE
            else:
                place[own], exact = side.places(place[own])
                loose[own] = np.where(exact, EXACT, BY_FUNCTION)
        return _Rows(
            self._names[at], place, loose, instructions,
            rows.start, rows.last, rows.time, rows.end,
        )  # fmt: skip


class _Rows(NamedTuple):
    """Runs as they were decoded: columns."""

    named: Any
    place: Any
    loose: Any
    instructions: Any
    start: Any
    last: Any
    time: Any
    end: Any

    def part(self, rows: slice) -> _Rows:
        return _Rows(*(column[rows] for column in self))


_Ends = tuple[Any, Any, Any, Any, Any]
"""Columns of `Run`s."""


class _Steps(NamedTuple):
    """What is compared: `named`, `place` and `length`. `instructions`: how many there are; `first`
    and `last`: the runs at the two ends of each, which are one where steps are exact.
    """

    named: Any
    place: Any
    length: Any
    instructions: Any
    first: _Ends
    last: _Ends

    def behind(self, at: int, following: list[_Steps]) -> _Steps:
        """From `at` on, with those that follow."""

        def joined(one: Any, *others: Any) -> Any:
            if isinstance(one, tuple):
                return tuple(joined(*each) for each in zip(one, *others, strict=True))
            return np.concatenate([one[at:], *others])

        return _Steps(*(joined(*each) for each in zip(self, *following, strict=True)))

    @staticmethod
    def none() -> _Steps:
        no = np.zeros(0, np.uint64)
        return _Steps(no, no, no, no, (no,) * 5, (no,) * 5)


def _runs(columns: _Ends, start: int, end: int) -> list[Run]:
    rows = zip(*(column[start:end].tolist() for column in columns), strict=True)
    return [Run(first, last, count, time, End(end)) for first, last, count, time, end in rows]


def _goes_on(rows: _Rows) -> Any:
    """For each row but the last, whether the next one is its continuation."""
    behind = rows.start[1:] - rows.last[:-1]
    end, loose = rows.end[:-1], rows.loose
    interrupted = (end == End.EVENT) & (behind > 0) & (behind <= _LONGEST)
    goes_on = (end == End.CUT) | interrupted
    if loose.any():
        same = (rows.named[1:] == rows.named[:-1]) & (rows.place[1:] == rows.place[:-1])
        stays = (loose[:-1] == BY_FILE) | ~np.isin(end, _LEAVES)
        apart = (loose[1:] != EXACT) | (loose[:-1] != EXACT)
        goes_on = np.where(apart, same & stays & (loose[1:] == loose[:-1]), goes_on)
    return goes_on


def _shortened(rows: _Rows) -> _Rows:
    """The rows of a step that goes on; if it is not exact, with one for all between its first and
    its last, for a loop that calls nothing may be most of a program.
    """
    if len(rows.named) <= 3 or rows.loose[0] == EXACT:
        return rows
    short = _Rows(*(column[[0, 1, -1]] for column in rows))
    short.instructions[1] = rows.instructions[1:-1].sum()
    return short


def _together(rows: _Rows, ends: Any) -> _Steps:
    """Each row with those before it up to the last of `ends`."""
    begins = np.append(0, ends[:-1] + 1)
    instructions = np.add.reduceat(rows.instructions, begins)
    named, place = rows.named[begins], rows.place[begins]
    if not rows.loose.any():
        runs = rows.start[begins], rows.last[ends], instructions, rows.time[begins], rows.end[ends]
        return _Steps(named, place, instructions, instructions, runs, runs)
    exact = rows.loose[begins] == EXACT
    first = (
        rows.start[begins],
        np.where(exact, rows.last[ends], rows.last[begins]),
        np.where(exact, instructions, rows.instructions[begins]),
        rows.time[begins],
        np.where(exact, rows.end[ends], rows.end[begins]),
    )
    last = (
        np.where(exact, rows.start[begins], rows.start[ends]),
        rows.last[ends],
        np.where(exact, instructions, rows.instructions[ends]),
        np.where(exact, rows.time[begins], rows.time[ends]),
        rows.end[ends],
    )
    length = np.where(exact, instructions, 0)
    return _Steps(named, place, length, instructions, first, last)
