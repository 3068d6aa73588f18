"""Add up the counts of processes by binary."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np

from rtit.counting.process_counts import MappedFile, ProcessCounts
from rtit.counting.program_totals import (
    CALL,
    CONDITIONAL,
    FAR,
    INDIRECT_CALL,
    INDIRECT_JUMP,
    JUMP,
    REPEAT,
    RETURN,
)
from rtit.image import Files, Mapping, UnusableFile, has_file
from rtit.profile.builder import ProfileBuilder
from rtit.profile.losses import Losses
from rtit.profile.tables import NO_BINARY, Profile
from rtit.trace import End

_END_KINDS = {
    JUMP: End.JUMP,
    CALL: End.CALL,
    INDIRECT_JUMP: End.INDIRECT_JUMP,
    INDIRECT_CALL: End.INDIRECT_CALL,
    RETURN: End.RETURN,
    FAR: End.FAR,
}


class CountAccumulator:
    """Adds up the counts of processes. `places`: maximum number of addresses, 0 for the default
    maximum.
    """

    def __init__(self, places: int = 0) -> None:
        self._files = Files()
        self._builder = ProfileBuilder(self._files, places)
        self._transfers: Counter[End] = Counter()
        self._losses = Losses()
        self._instructions = 0

    def add(self, found: ProcessCounts) -> None:
        """Add one process, or one program of it."""
        numbers = np.array([self._number(each) for each in found.mappings] + [NO_BINARY], np.int64)
        starts = np.array([each.start for each in found.mappings] + [0], np.uint64)
        offsets = np.array([each.offset for each in found.mappings] + [0], np.uint64)
        rows = np.minimum(found.mapping.astype(np.int64), len(found.mappings))
        binary = numbers[rows]
        offset = np.where(
            binary == NO_BINARY, found.start, found.start - starts[rows] + offsets[rows]
        )
        unfinished = (found.exit == REPEAT).astype(np.uint64)
        self._add(binary, offset, found.instructions, found.first)
        self._add(binary, offset, found.instructions - unfinished, found.other)
        whole = found.first + found.other
        for left, end in _END_KINDS.items():
            self._transfers[end] += int(whole[found.exit == left].sum())
        conditional = found.exit == CONDITIONAL
        self._transfers[End.CUT] += int(found.first[conditional].sum())
        self._transfers[End.CONDITIONAL] += int(found.other[conditional].sum())

    def profile(self, threads: list[tuple[str, int]]) -> Profile:
        """Return all counts, with the instructions of each thread. The profile has no edges."""
        binaries, _ = self._builder.binaries(self._losses)
        return Profile(
            [each for each in binaries if each.instructions],
            None,
            self._instructions,
            self._losses,
            threads,
            {end: self._transfers[end] for end in End},
        )

    def _add(self, binary: Any, offset: Any, instructions: Any, count: Any) -> None:
        self._instructions += int((instructions.astype(np.uint64) * count).sum())
        ran = (count > 0) & (instructions > 0)
        self._builder.add_runs(binary[ran], offset[ran], instructions[ran], count[ran])

    def _number(self, mapped: MappedFile) -> int:
        if not has_file(mapped.path):
            return NO_BINARY
        problem = None
        try:
            self._files.read_code(mapped.path, mapped.offset, mapped.end - mapped.start)
        except UnusableFile as error:
            problem = error.problem
            if str(problem) not in self._losses.problems:
                self._losses.problems.append(str(problem))
        return self._builder.binary_number(
            Mapping(mapped.start, mapped.end, mapped.offset, mapped.path, None, 0, problem=problem)
        )
