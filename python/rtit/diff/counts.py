"""How often functions and calls ran in two recordings, whatever the order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rtit.profile.addresses import taken
from rtit.profile.functions import counted, functions
from rtit.trace import End

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from rtit.profile.table import Binary, Profile

Function = tuple[str, str]
"""The name, "" for none, and the file's name without its folder."""


@dataclass(frozen=True, slots=True)
class Change:
    """A count in the one and in the other. `what` is a function, the two of a call, or those that
    were called within one another.
    """

    what: tuple[Function, ...]
    left: int
    right: int

    @property
    def alone(self) -> bool:
        """Whether only one has it."""
        return not (self.left and self.right)


@dataclass(frozen=True, slots=True)
class Counts:
    """Instructions by function, and calls from function to function."""

    instructions: Counter[tuple[Function, ...]]
    calls: Counter[tuple[Function, ...]]

    def renamed(self, files: Mapping[str, str]) -> Counts:
        """With other names for some files."""
        tables = [Counter[tuple[Function, ...]](), Counter[tuple[Function, ...]]()]
        for table, old in zip(tables, (self.instructions, self.calls), strict=True):
            for what, count in old.items():
                table[tuple((name, files.get(file, file)) for name, file in what)] += count
        return Counts(*tables)


def counts(found: Profile) -> Counts:
    """Those of a profile."""
    binaries = {each.number: each for each in found.binaries}
    instructions: Counter[tuple[Function, ...]] = Counter()
    calls: Counter[tuple[Function, ...]] = Counter()
    for outer, count in found.outside.items():
        instructions[outer,] += count
    for binary in found.binaries:
        for function, count in counted(binary):
            instructions[function,] += count
        edges = taken(binary.edges.where(binary.edges.source_in == binary.number))
        edges = edges.where((edges.kind == End.CALL) | (edges.kind == End.INDIRECT_CALL))
        sources = functions(binary, edges.source)
        for number in {*edges.target_in.tolist()}:
            own = edges.target_in == number
            targets = _named(binaries.get(number), edges.target[own])
            rows = zip(
                [sources[row] for row in own.nonzero()[0].tolist()],
                targets,
                edges.count[own].tolist(),
                strict=True,
            )
            for source, target, count in rows:
                calls[source, target] += count
    return Counts(instructions, calls)


def changes(
    left: Counter[tuple[Function, ...]], right: Counter[tuple[Function, ...]]
) -> list[Change]:
    """What differs, the largest differences first."""
    found = [
        Change(what, left[what], right[what])
        for what in left.keys() | right.keys()
        if left[what] != right[what]
    ]
    return sorted(found, key=lambda each: (-abs(each.left - each.right), each.what))


def _named(binary: Binary | None, offsets: NDArray[np.uint64]) -> list[Function]:
    return [("", "")] * len(offsets) if binary is None else functions(binary, offsets)
