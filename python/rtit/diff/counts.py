"""How often functions and calls ran in two recordings, whatever the order.

What ran in two recordings, by who was called by whom: the same functions in the same calls are
one node, wherever and whenever it was.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from rtit.profile.calls import followed
from rtit.profile.source_lines import counted, functions
from rtit.profile.tables import taken
from rtit.trace import End

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from rtit.profile.calls import Place
    from rtit.profile.tables import Binary, Profile
    from rtit.trace import Stream, Trace


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


class Tree:
    """Nodes by number, a function in the node that called it; the root is 0. Callers have smaller
    numbers. A function that calls itself meanwhile makes no new node.
    """

    def __init__(self) -> None:
        self._nodes: list[tuple[int, Function]] = [(-1, ("", ""))]
        self._numbers: dict[tuple[int, Function], int] = {}

    def counts(
        self, trace: Trace, streams: Sequence[Stream], found: Profile, files: Mapping[str, str]
    ) -> Counter[int]:
        """Instructions of each node itself. `files` are called otherwise in the other recording.
        Raises what decoding raises.
        """
        own: Counter[int] = Counter()
        named: dict[Place, Function] = {}
        for stream in streams:
            ends, columns = followed(trace, stream, found)
            known: dict[Place, Place] = {}
            # one object for each, however often it is called
            targets = [known.setdefault(target, target) for _, target in ends]
            self._name(named, known.keys() - named.keys(), found, files)
            nodes: list[int] = []
            rows = zip(columns["parent"], columns["call"], columns["own"], strict=True)
            for parent, call, count in rows:
                above = nodes[parent] if parent < len(nodes) else 0
                nodes.append(self._number(above, named[targets[call]]))
                own[nodes[-1]] += count
            stream.forget()
        return own

    def changes(self, left: Mapping[int, int], right: Mapping[int, int]) -> list[Change]:
        """The nodes that only one has, each with all below it, and of the others those that have
        another count themselves; the largest differences first. What is the path to the node, the
        outermost function first.
        """
        whole = [self._summed(each) for each in (left, right)]
        found = []
        for number, (parent, _) in enumerate(self._nodes[1:], 1):
            sums = [each[number] for each in whole]
            if not all(sums):
                if any(sums) and (not parent or all(each[parent] for each in whole)):
                    found.append(Change(self._path(number), *sums))
            elif left.get(number, 0) != right.get(number, 0):
                found.append(Change(self._path(number), left.get(number, 0), right.get(number, 0)))
        return sorted(found, key=lambda each: (-abs(each.left - each.right), each.what))

    def _number(self, above: int, function: Function) -> int:
        key = above, function
        if key not in self._numbers:
            self._numbers[key] = len(self._nodes)
            self._nodes.append(key)
        return self._numbers[key]

    def _summed(self, own: Mapping[int, int]) -> list[int]:
        sums = [own.get(number, 0) for number in range(len(self._nodes))]
        for number in range(len(sums) - 1, 0, -1):
            sums[self._nodes[number][0]] += sums[number]
        return sums

    def _path(self, number: int) -> tuple[Function, ...]:
        found = []
        while number:
            number, function = self._nodes[number]
            found.append(function)
        return tuple(reversed(found))

    @staticmethod
    def _name(
        named: dict[Place, Function], places: set[Place], found: Profile, files: Mapping[str, str]
    ) -> None:
        binaries = {each.number: each for each in found.binaries}
        for number in {each.binary for each in places}:
            own = [each for each in places if each.binary == number]
            binary = binaries.get(number)
            if binary is None:
                named |= dict.fromkeys(own, ("", ""))
                continue
            offsets = np.array([each.offset for each in own], np.uint64)
            names = [(name, files.get(file, file)) for name, file in functions(binary, offsets)]
            named |= dict(zip(own, names, strict=True))
