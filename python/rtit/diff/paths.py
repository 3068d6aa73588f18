"""The path of one thread, as it is compared: in steps.

A path is what it is whatever the addresses that things were loaded at: of each run of instructions
the file and the offset in it, and how many. Where two builds of a file differ, what stays in one
function, or in the dynamic loader, is one step. Memory is bounded: it is decoded in chunks.

Where two paths that have parted meet again: the nearest place from which both go on alike.

Two threads, along their paths: where they part, for the first time and again.

Both are decoded in step, so that memory is bounded.

Instructions around a place, as people read them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from rtit.diff.builds import BY_FILE, BY_FUNCTION, EXACT
from rtit.image import Regions
from rtit.trace import End

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

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


WIDTHS = (1 << 6, 1 << 10, 1 << 14, 1 << 17)
"""So many steps of each are looked at; the next only where they do not meet within the last."""
_FACTOR = np.uint64(0x9E37_79B9_7F4A_7C15)
_END = np.uint64((1 << 64) - 1)


def meeting(left: Any, right: Any, alike: int, ended: tuple[bool, bool]) -> tuple[int, int] | None:
    """How many rows of each to pass over, as few as can be, so that the next `alike` of both are
    equal. `left` and `right` are columns of the same width; `ended`: whether there are no more
    rows, of which all are passed over if need be. None if they do not meet.
    """
    rows = np.concatenate([left, right])
    _, numbers = np.unique(rows, axis=0, return_inverse=True)
    numbers = numbers.reshape(-1).astype(np.uint64)
    grams = [
        _grams(part, alike, end)
        for part, end in zip((numbers[: len(left)], numbers[len(left) :]), ended, strict=True)
    ]
    (ours, at), (theirs, there) = (np.unique(each, return_index=True) for each in grams)
    _, one, other = np.intersect1d(ours, theirs, assume_unique=True, return_indices=True)
    if not len(one):
        return None
    nearest = int(np.argmin(at[one] + there[other]))
    return int(at[one[nearest]]), int(there[other[nearest]])


def _grams(numbers: Any, size: int, ended: bool) -> Any:
    """A hash of each row with those that follow it; behind the end there is always the same."""
    if ended:
        numbers = np.append(numbers, np.full(size, _END))
    count = max(0, len(numbers) - size + 1)
    found = np.zeros(count, np.uint64)
    for place in range(size):
        found = (found + numbers[place : place + count] + np.uint64(1)) * _FACTOR
        found ^= found >> np.uint64(29)
    return found


_MOST_PLACES = 10_000
_MOST_STEPS = 1 << 23
"""So many steps are looked at in all to find where paths meet again."""


@dataclass(frozen=True, slots=True)
class Parting:
    """Where two paths part, each in its own addresses. `before`: the last runs that are equal, the
    latest last; `after`: the runs that follow, none at an end, of which the first `shared`
    instructions are still equal.
    """

    before: tuple[list[Run], list[Run]]
    after: tuple[list[Run], list[Run]]
    shared: int


class Place(NamedTuple):
    """Where paths part, each in its own addresses: the last IP that is equal, in the left one's,
    and the first of each that is not, None at an end. Of the side `behind` it is what follows this
    IP in memory.
    """

    last: int | None
    left: int | None
    right: int | None
    behind: int | None = None


@dataclass(slots=True)
class Later:
    """What follows where paths parted: how many instructions are equal again, how many are in one
    `alone`, and how often they parted (`partings`), also at each place, with the times (TSC) of the
    first. `whole`: this goes up to the end; else they do not meet within some ten thousands of
    steps, or part too often.
    """

    instructions: int = 0
    alone: tuple[int, int] = (0, 0)
    places: dict[Place, int] = field(default_factory=dict)
    times: dict[Place, tuple[int, int]] = field(default_factory=dict)
    whole: bool = True
    partings: int = 0

    def add(self, place: Place, times: tuple[int, int]) -> None:
        """They part once more."""
        self.times.setdefault(place, times)
        self.places[place] = self.places.get(place, 0) + 1
        self.partings += 1


def compare(
    left: Path, right: Path, steps: int, alike: int
) -> tuple[int, Parting | None, Later | None]:
    """How many instructions are equal, where the paths part, if they do, and what follows: they
    meet again where the next `alike` steps are the same.
    """
    equal = 0
    before: tuple[deque[Run], deque[Run]] = deque(maxlen=KEPT), deque(maxlen=KEPT)
    parting = later = None
    looked = 0
    while True:
        count = min(left.ready(), right.ready())
        same = _same(left.key(count), right.key(count))
        if same:
            instructions, runs = left.take(same)
            before[0].extend(runs)
            before[1].extend(right.take(same)[1])
            if later is None:
                equal += instructions
            else:
                later.instructions += instructions
        if same == count and count:
            continue
        after = left.following(steps), right.following(steps)
        if not any(after):
            return equal, parting, later
        shared = _shared(left, right)
        if later is None:
            parting = Parting((list(before[0]), list(before[1])), after, shared)
            equal += shared
            later = Later()
        else:
            later.instructions += shared
        later.add(*_place(before[0], (left.following(2), right.following(2)), shared))
        gap, more = _gap(left, right, alike)
        looked += more
        later.whole = gap is not None
        if gap is not None:
            passed = [path.take(rows)[0] for path, rows in zip((left, right), gap, strict=True)]
            less = shared if all(gap) else 0
            later.instructions -= shared - less
            alone = zip(later.alone, passed, strict=True)
            later.alone = tuple(sum(pair) - less for pair in alone)  # type: ignore[assignment]
            later.whole = looked < _MOST_STEPS and later.partings < _MOST_PLACES
        if not later.whole:
            return equal, parting, later


def _place(
    before: Sequence[Run], after: tuple[list[Run], list[Run]], shared: int
) -> tuple[Place, tuple[int, int]]:
    """The place where they part, and the times of the two there."""
    one, other = (runs[0].time if runs else 0 for runs in after)
    if not shared:
        left, right = (runs[0].start if runs else None for runs in after)
        return Place(before[-1].last if before else None, left, right), (one, other)
    # They begin at one place, and one goes on behind where the other leaves.
    longer = int(after[0][0].instructions < after[1][0].instructions)
    short = after[1 - longer]
    lasts = [runs[0].start + short[0].last - short[0].start for runs in after]
    went: list[int | None] = [short[1].start if len(short) > 1 else None] * 2
    went[longer] = lasts[longer]
    return Place(lasts[0], went[0], went[1], longer), (one, other)


def _gap(left: Path, right: Path, alike: int) -> tuple[tuple[int, int] | None, int]:
    """How many steps of each are left out until they go on alike, None if they do not soon; and how
    many steps were looked at.
    """
    looked = 0
    for width in WIDTHS:
        counts = [path.ahead(width) for path in (left, right)]
        looked += sum(counts)
        rows = [path.rows(count) for path, count in zip((left, right), counts, strict=True)]
        ended = counts[0] < width, counts[1] < width
        gap = meeting(rows[0], rows[1], alike, ended)
        if gap is not None:
            return gap, looked
        if all(ended):
            break
    return None, looked


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


_LONGEST_INSTRUCTION = 15


@dataclass(frozen=True, slots=True)
class Step:
    """An instruction that ran: where, `function+0x12`, `file.c:12` or "", and in Intel's syntax."""

    ip: int
    symbol: str
    source: str
    assembly: str


class Side:
    """One of the two recordings, at places where they part."""

    def __init__(self, trace: Trace, stream: Stream) -> None:
        self._trace = trace
        self._stream = stream

    def around(
        self, parting: Parting, side: int, steps: int
    ) -> tuple[tuple[Step, ...], tuple[Step, ...]]:
        """The last instructions that are equal, and the first that are not."""
        before = [place for run in parting.before[side][-steps:] for place in self._places(run)]
        after = [place for run in parting.after[side] for place in self._places(run)]
        before.extend(after[: parting.shared])
        after = after[parting.shared :]
        return (
            tuple(self.step(*place) for place in before[-steps:]),
            tuple(self.step(*place) for place in after[:steps]),
        )

    def _places(self, run: Run) -> Iterator[tuple[int, int]]:
        """The IP of each instruction of a run, with the time."""
        from rtit._core import decode_instruction

        ip = run.start
        for _ in range(run.instructions):
            yield ip, run.time
            if ip == run.last:
                return
            try:
                length, *_ = decode_instruction(self._code(ip, run.time), ip)
            except ValueError:
                return
            ip += length

    def behind(self, ip: int, time: int) -> int:
        """The IP of the next instruction in memory; the same if its bytes are not known."""
        from rtit._core import decode_instruction

        try:
            length, *_ = decode_instruction(self._code(ip, time), ip)
        except ValueError:
            return ip
        return ip + length

    def step(self, ip: int, time: int) -> Step:
        """The instruction at an IP, as of a time (TSC)."""
        from rtit._core import disassemble

        tid, symbols = self._stream.tid, self._trace.symbols
        place = symbols.source_line(tid, time, ip)
        return Step(
            ip,
            str(symbols.lookup(tid, time, ip)),
            f"{PurePath(place[0]).name}:{place[1]}" if place is not None else "",
            disassemble(self._code(ip, time), ip),
        )

    def _code(self, ip: int, time: int) -> bytes:
        return self._stream.image.native.read(time, ip, _LONGEST_INSTRUCTION)


def assembly_of(steps: Sequence[Step]) -> list[str]:
    """A line each."""
    return [f"{each.symbol:32} {each.assembly:40} {each.source}".rstrip() for each in steps]
