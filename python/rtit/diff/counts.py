"""Compares how often functions and calls ran in two recordings, regardless of order.

`count_functions` counts instructions by function and calls by pair of functions. `CallTree` counts
instructions by calling context: both recordings share one tree, in which a chain of calls by the
same functions is the same node.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from rtit.profile.calls import follow_calls
from rtit.profile.functions import function_names, instructions_by_function
from rtit.profile.tables import taken_branches
from rtit.trace import End

if TYPE_CHECKING:
    from rtit.profile.calls import CodeLocation
    from rtit.profile.tables import Profile
    from rtit.trace import Stream, Trace

Function = tuple[str, str]
"""Name of the function ("" for none), and name of the file without its folder."""


@dataclass(frozen=True, slots=True)
class CountChange:
    """A count in the first and in the second recording.

    `what` is a function, caller and callee, or a calling context, the outermost function first.
    """

    what: tuple[Function, ...]
    left: int
    right: int

    @property
    def is_one_sided(self) -> bool:
        """Whether only one recording has the function, call or context."""
        return not (self.left and self.right)


@dataclass(frozen=True, slots=True)
class FunctionCounts:
    """Instructions by function, and calls by caller and callee."""

    instructions: Counter[tuple[Function, ...]]
    calls: Counter[tuple[Function, ...]]

    def rename_files(self, files: Mapping[str, str]) -> FunctionCounts:
        """Return the counts with other names for some files."""
        tables = [Counter[tuple[Function, ...]](), Counter[tuple[Function, ...]]()]
        for table, old in zip(tables, (self.instructions, self.calls), strict=True):
            for what, count in old.items():
                table[tuple((name, files.get(file, file)) for name, file in what)] += count
        return FunctionCounts(*tables)


def count_functions(profile: Profile) -> FunctionCounts:
    """Return the instructions and calls of a profile by function."""
    binaries = {each.number: each for each in profile.binaries}
    instructions: Counter[tuple[Function, ...]] = Counter()
    calls: Counter[tuple[Function, ...]] = Counter()
    for outer, count in profile.unmapped_code.items():
        instructions[outer,] += count
    for binary in profile.binaries:
        for function, count in instructions_by_function(binary):
            instructions[function,] += count
        edges = taken_branches(
            binary.edges.select_rows(binary.edges.source_binary == binary.number)
        )
        edges = edges.select_rows((edges.kind == End.CALL) | (edges.kind == End.INDIRECT_CALL))
        sources = function_names(binary, edges.source)
        for number in {*edges.target_binary.tolist()}:
            mask = edges.target_binary == number
            offsets, binary_called = edges.target[mask], binaries.get(number)
            targets = [("", "")] * len(offsets)
            if binary_called is not None:
                targets = function_names(binary_called, offsets)
            callers = [sources[row] for row in mask.nonzero()[0].tolist()]
            rows = zip(callers, targets, edges.count[mask].tolist(), strict=True)
            for source, target, count in rows:
                calls[source, target] += count
    return FunctionCounts(instructions, calls)


def list_changes(
    left: Counter[tuple[Function, ...]], right: Counter[tuple[Function, ...]]
) -> list[CountChange]:
    """Return the counts that differ, the largest differences first."""
    changes = [
        CountChange(what, left[what], right[what])
        for what in left.keys() | right.keys()
        if left[what] != right[what]
    ]
    return sorted(changes, key=lambda each: (-abs(each.left - each.right), each.what))


class CallTree:
    """Calling contexts of both recordings, by number.

    Node 0 is the root; a caller has a smaller number than its callees. A recursive call stays in
    the node of the function's first call.
    """

    def __init__(self) -> None:
        self._nodes: list[tuple[int, Function]] = [(-1, ("", ""))]
        self._numbers: dict[tuple[int, Function], int] = {}

    def count_instructions(
        self, trace: Trace, streams: Sequence[Stream], profile: Profile, files: Mapping[str, str]
    ) -> Counter[int]:
        """Return the instructions of each node without its callees.

        `files` maps file names to those of the other recording. Raises what decoding raises.
        """
        counts: Counter[int] = Counter()
        named: dict[CodeLocation, Function] = {}
        for stream in streams:
            ends, columns = follow_calls(trace, stream, profile)
            known: dict[CodeLocation, CodeLocation] = {}
            # equal locations share one object
            targets = [known.setdefault(target, target) for _, target in ends]
            self._name_locations(named, known.keys() - named.keys(), profile, files)
            nodes: list[int] = []
            rows = zip(columns["parent"], columns["call"], columns["own"], strict=True)
            for parent, call, count in rows:
                parent_node = nodes[parent] if parent < len(nodes) else 0
                nodes.append(self.node_number(parent_node, named[targets[call]]))
                counts[nodes[-1]] += count
            stream.discard_decoder()
        return counts

    def list_changes(self, left: Mapping[int, int], right: Mapping[int, int]) -> list[CountChange]:
        """Return the contexts that differ, the largest differences first.

        A context that only one recording has counts with all its callees; any other without them.
        """
        changes = [
            CountChange(self.call_path(number), *counts)
            for number, counts in self.changed_nodes(left, right)
        ]
        return sorted(changes, key=lambda each: (-abs(each.left - each.right), each.what))

    def changed_nodes(
        self, left: Mapping[int, int], right: Mapping[int, int]
    ) -> Iterator[tuple[int, tuple[int, int]]]:
        """Iterate over the nodes of `list_changes` and their counts, unsorted."""
        subtree_sums = [self._subtree_sums(each) for each in (left, right)]
        for number, (parent, _) in enumerate(self._nodes[1:], 1):
            one, other = (each[number] for each in subtree_sums)
            if not (one and other):
                is_part_of_parent = parent and not all(each[parent] for each in subtree_sums)
                if (one or other) and not is_part_of_parent:
                    yield number, (one, other)
            elif left.get(number, 0) != right.get(number, 0):
                yield number, (left.get(number, 0), right.get(number, 0))

    def node_number(self, parent_node: int, function: Function) -> int:
        """Return the node of a function below another node, a new one if there is none."""
        key = parent_node, function
        if key not in self._numbers:
            self._numbers[key] = len(self._nodes)
            self._nodes.append(key)
        return self._numbers[key]

    def find_caller(self, number: int, function: Function) -> int:
        """Return the innermost node of a function on the path to a node; 0 if there is none."""
        while number and self._nodes[number][1] != function:
            number = self._nodes[number][0]
        return number

    def call_path(self, number: int) -> tuple[Function, ...]:
        """Return the functions from the root to a node."""
        functions = []
        while number:
            number, function = self._nodes[number]
            functions.append(function)
        return tuple(reversed(functions))

    def _subtree_sums(self, counts: Mapping[int, int]) -> list[int]:
        sums = [counts.get(number, 0) for number in range(len(self._nodes))]
        for number in range(len(sums) - 1, 0, -1):
            sums[self._nodes[number][0]] += sums[number]
        return sums

    @staticmethod
    def _name_locations(
        named: dict[CodeLocation, Function],
        unnamed: set[CodeLocation],
        profile: Profile,
        files: Mapping[str, str],
    ) -> None:
        binaries = {each.number: each for each in profile.binaries}
        for number in {each.binary for each in unnamed}:
            locations = [each for each in unnamed if each.binary == number]
            binary = binaries.get(number)
            if binary is None:
                named |= dict.fromkeys(locations, ("", ""))
                continue
            offsets = np.array([each.offset for each in locations], np.uint64)
            names = [
                (name, files.get(file, file)) for name, file in function_names(binary, offsets)
            ]
            named |= dict(zip(locations, names, strict=True))
