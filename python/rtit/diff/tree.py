"""What ran in two recordings, by who was called by whom: the same functions in the same calls are
one node, wherever and whenever it was.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import numpy as np

from rtit.diff.counts import Change, Function
from rtit.profile.calls import followed
from rtit.profile.functions import functions

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rtit.profile.calls import Place
    from rtit.profile.table import Profile
    from rtit.trace import Stream, Trace


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
