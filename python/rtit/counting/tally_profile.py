"""Builds a profile from the counts of processes."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np

from rtit.counting import process_sums
from rtit.counting.tally import MappedFile, Tally
from rtit.image import Files, Mapping, Unusable, has_file
from rtit.profile.builder import ProfileBuilder
from rtit.profile.tables import NO_BINARY, Losses, Profile
from rtit.trace import End

_KIND_OF_EXIT = {
    process_sums.JUMP: End.JUMP,
    process_sums.CALL: End.CALL,
    process_sums.INDIRECT_JUMP: End.INDIRECT_JUMP,
    process_sums.INDIRECT_CALL: End.INDIRECT_CALL,
    process_sums.RETURN: End.RETURN,
    process_sums.FAR: End.FAR,
}


class TallyProfile:
    """Adds up the counts of processes, with at most `max_counters` runs; 0: the default."""

    def __init__(self, max_counters: int = 0) -> None:
        self._files = Files()
        self._builder = ProfileBuilder(self._files, max_counters)
        self._transfers: Counter[End] = Counter()
        self._losses = Losses()
        self._instructions = 0

    def add(self, tally: Tally) -> None:
        """Add the counts of a process while it ran one program."""
        numbers = np.array(
            [self._binary_number(each) for each in tally.mappings] + [NO_BINARY], np.int64
        )
        starts = np.array([each.start for each in tally.mappings] + [0], np.uint64)
        offsets = np.array([each.offset for each in tally.mappings] + [0], np.uint64)
        rows = np.minimum(tally.mapping.astype(np.int64), len(tally.mappings))
        binary = numbers[rows]
        offset = np.where(
            binary == NO_BINARY, tally.start, tally.start - starts[rows] + offsets[rows]
        )
        unfinished = (tally.exit == process_sums.REPEAT).astype(np.uint64)
        self._add(binary, offset, tally.instructions, tally.first_exits)
        self._add(binary, offset, tally.instructions - unfinished, tally.other_exits)
        total = tally.first_exits + tally.other_exits
        for exit_, end in _KIND_OF_EXIT.items():
            self._transfers[end] += int(total[tally.exit == exit_].sum())
        conditional = tally.exit == process_sums.CONDITIONAL
        self._transfers[End.CUT] += int(tally.first_exits[conditional].sum())
        self._transfers[End.CONDITIONAL] += int(tally.other_exits[conditional].sum())

    def profile(self, threads: list[tuple[str, int]]) -> Profile:
        """Return the profile, without edges, with the instructions of each thread."""
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

    def _binary_number(self, mapped: MappedFile) -> int:
        if not has_file(mapped.path):
            return NO_BINARY
        problem = None
        try:
            self._files.code(mapped.path, mapped.offset, mapped.end - mapped.start)
        except Unusable as error:
            problem = error.problem
            if str(problem) not in self._losses.problems:
                self._losses.problems.append(str(problem))
        return self._builder.binary_number(
            Mapping(mapped.start, mapped.end, mapped.offset, mapped.path, None, 0, problem=problem)
        )
