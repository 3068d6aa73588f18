"""The least and the most iterations of loops, from the executed path in order.

Each thread has a stack of unfinished entries for each loop, because a loop can call its function
again. If an exception or `longjmp` leaves a loop, its entry stays open until the end of the thread.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from enum import Enum, auto
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from rtit.image import MappingLookup
from rtit.image.image import NO_MAPPING
from rtit.profile.tables import find_sorted, iterate_rows
from rtit.trace import End

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from rtit.annotation.loops import FoundLoop
    from rtit.image import Images
    from rtit.trace import Stream

_JUMPS = frozenset((End.CONDITIONAL, End.JUMP, End.INDIRECT_JUMP))
_CALLS = frozenset((End.CALL, End.INDIRECT_CALL))
_UNKNOWN = (1 << 64) - 1
"""Stands for an offset outside of the function."""


class _Step(Enum):
    ENTER = auto()
    REPEAT = auto()
    LEAVE = auto()


class _Block(NamedTuple):
    """A block of the function, by file offset, with the last instruction and end of the block
    before, and the start of the block after it.
    """

    previous: int
    previous_end: int
    start: int
    last: int
    end: int
    following: int


def iteration_bounds(
    images: Images,
    streams: Sequence[Stream],
    path: str,
    offsets: Sequence[int],
    loops: Sequence[FoundLoop],
) -> dict[int, tuple[int, int]]:
    """Return the least and the most iterations of each loop that was entered, by header.

    `path` is the file with the function, `offsets` are its instructions. Each stream must have one
    thread. Decodes the streams in order.
    """
    bounds: dict[int, tuple[int, int]] = {}
    code = np.array(sorted(offsets), np.uint64)
    for stream in streams:
        counter = _IterationCounter(code.tolist(), loops)
        for block, repetitions in _blocks_of_function(images, stream, path, code):
            counter.add_block(block, repetitions)
        stream.discard_decoder()
        for header, (least, most) in counter.finish():
            old = bounds.get(header, (least, most))
            bounds[header] = min(old[0], least), max(old[1], most)
    return bounds


class _IterationCounter:
    """Counts the iterations of each entry of loops in one thread."""

    def __init__(self, offsets: Sequence[int], loops: Sequence[FoundLoop]) -> None:
        self._offsets = offsets
        self._before = {after: before for before, after in pairwise(offsets)}
        self._loops = loops
        self._open: list[list[int]] = [[] for _ in loops]
        self._bounds: list[tuple[int, int] | None] = [None] * len(loops)
        self._steps: dict[_Block, list[tuple[int, _Step]]] = {}

    def add_block(self, block: _Block, repetitions: int) -> None:
        """Add a block that ran several times in succession."""
        steps = self._steps.get(block)
        if steps is None:
            steps = self._steps[block] = list(self._steps_of_block(block))
        if len(steps) == 1 and steps[0][1] == _Step.REPEAT:
            self._apply_step(*steps[0], repetitions)
            return
        for _ in range(repetitions if steps else 0):
            for loop, step in steps:
                self._apply_step(loop, step, 1)

    def finish(self) -> Iterator[tuple[int, tuple[int, int]]]:
        """Iterate over headers and bounds, after the last block of the thread."""
        for number, loop in enumerate(self._loops):
            while self._open[number]:
                self._apply_step(number, _Step.LEAVE, 1)
            if (bounds := self._bounds[number]) is not None:
                yield loop.header, bounds

    def _apply_step(self, loop: int, step: _Step, repetitions: int) -> None:
        entries = self._open[loop]
        if step == _Step.LEAVE:
            if entries:
                count = entries.pop()
                least, most = self._bounds[loop] or (count, count)
                self._bounds[loop] = min(least, count), max(most, count)
        elif step == _Step.ENTER or not entries:
            entries.append(repetitions)
        else:
            entries[-1] += repetitions

    def _steps_of_block(self, block: _Block) -> Iterator[tuple[int, _Step]]:
        first = bisect_left(self._offsets, block.start)
        path = self._offsets[first : bisect_right(self._offsets, block.last)]
        for number, loop in enumerate(self._loops):
            is_inside = self._was_inside(block, loop)
            for offset in path:
                if offset == loop.header:
                    yield number, _Step.ENTER if is_inside is False else _Step.REPEAT
                elif is_inside and offset not in loop.body and offset != block.start:
                    yield number, _Step.LEAVE
                is_inside = offset in loop.body
            if is_inside and block.end in _JUMPS and block.following not in loop.body:
                yield number, _Step.LEAVE

    def _was_inside(self, block: _Block, loop: FoundLoop) -> bool | None:
        """Return whether the instruction before a block is in a loop; None if it is unknown."""
        if block.previous_end in _CALLS:
            return False
        if block.previous_end == End.RETURN:
            # the call is before the block
            return self._before.get(block.start) in loop.body
        if block.previous_end in _JUMPS or block.previous_end == End.CUT:
            return block.previous in loop.body
        return None


def _blocks_of_function(
    images: Images, stream: Stream, path: str, code: NDArray[np.uint64]
) -> Iterator[tuple[_Block, int]]:
    """Iterate over the blocks of a function, with the number of equal blocks in succession."""
    mappings = [each for each in images.mappings(stream.tid) if each.path == path]
    lookup = MappingLookup(mappings, by_time=True)

    def to_offsets(ips: NDArray[np.uint64], times: NDArray[np.uint64]) -> NDArray[np.uint64]:
        found, offsets = lookup.find_mappings(ips, times)
        return np.where(found == NO_MAPPING, np.uint64(_UNKNOWN), offsets)

    nothing = np.array([[_UNKNOWN], [_UNKNOWN], [End.LOST]], np.uint64)
    carried = nothing
    for rows in stream.blocks():
        starts, lasts = (to_offsets(each, rows.time) for each in (rows.start, rows.last))
        carried = np.hstack([carried, [starts, lasts, rows.end.astype(np.uint64)]])
        yield from _blocks_with_neighbours(carried, code)
        carried = carried[:, -2:]
    yield from _blocks_with_neighbours(np.hstack([carried, nothing]), code)


def _blocks_with_neighbours(
    columns: NDArray[np.uint64], code: NDArray[np.uint64]
) -> Iterator[tuple[_Block, int]]:
    """Iterate over the blocks of a function in the columns start, last, end, without the first and
    the last block, which are only neighbours.
    """
    starts, lasts, ends = columns
    rows = 1 + np.flatnonzero(
        (find_sorted(code, starts[1:-1]) >= 0) | (find_sorted(code, lasts[1:-1]) >= 0)
    )
    if not len(rows):
        return
    blocks = np.stack(
        [lasts[rows - 1], ends[rows - 1], starts[rows], lasts[rows], ends[rows], starts[rows + 1]]
    )
    is_new = np.ones(len(rows), np.bool_)
    is_new[1:] = (blocks[:, 1:] != blocks[:, :-1]).any(axis=0)
    firsts = np.flatnonzero(is_new)
    repetitions = np.diff(np.append(firsts, len(rows)))
    for row in iterate_rows([*blocks[:, firsts], repetitions]):
        yield _Block(*row[:-1]), row[-1]
