"""Inlined functions as nodes of a call tree.

The tree of `ProcessCalls.tree` has physical functions, and the runs of instructions of each
node. By the address of an instruction, DWARF has the inlined calls around it. A node gets a child
for each inlined call in which it has instructions, or from which a function was called; the child
takes these instructions and these calls. Only code of the function of a node is divided: not code
that counts for it, such as a PLT stub.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from rtit.image import KERNEL_START, function_of_cold_part, has_file
from rtit.image.inlined_calls import FunctionIndex, InlinedCalls
from rtit.text_escaping import escape_control_characters
from rtit.trace.tables.call_tree import CallKind, CallTree, RootKind
from rtit.trace.tables.context_runs import (
    ContextRuns,
    add_up_by_context,
    instructions_of_runs,
    runs_of_binary,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from rtit import _core
    from rtit._core import Space
    from rtit.image import Files, FileSymbols, Images, Mapping

    I64 = NDArray[np.int64]

_NONE = (1 << 32) - 1


def add_inlined_frames(
    tree: CallTree, columns: _core.CallTreeColumns, images: Images, tid: int
) -> CallTree:
    """Return the tree of a thread with inlined calls.

    `columns` are those of `tree`, with runs. The sum of instructions stays the same.
    """
    mappings = sorted(images.mappings(tid), key=lambda each: each.start)
    by_file: dict[tuple[str, bytes | None], list[Mapping]] = {}
    for each in mappings:
        if has_file(each.path) and each.start < KERNEL_START:
            by_file.setdefault((each.path, each.build_id), []).append(each)
    numbers = {file: number for number, file in enumerate(by_file)}
    files = [numbers.get((each.path, each.build_id), -1) for each in mappings]
    file_of_region = np.array([*files, -1], np.int32)

    def file_and_offset(name: str) -> tuple[NDArray[np.int32], NDArray[np.uint64]]:
        found: dict[str, Any] = {**columns}
        regions = np.minimum(np.asarray(found[f"{name}_region"]), len(mappings))
        return file_of_region[regions], np.asarray(found[f"{name}_offset"])

    node, instructions, count = (
        np.asarray(column)
        for column in (columns["run_node"], columns["run_instructions"], columns["run_count"])
    )
    runs = ContextRuns(node.astype(np.int64), *file_and_offset("run"), instructions, count)
    calls = _InlinedCallsOfNodes(tree, runs, file_and_offset("entry"), file_and_offset("site"))
    for (path, build_id), number in numbers.items():
        symbols = images.files.symbols(path, build_id)
        if symbols is not None:
            code = _code_by_offset(images.files, by_file[path, build_id])
            calls.add_file(number, symbols, code)
    return calls.tree_with_calls()


def _code_by_offset(files: Files, mappings: Sequence[Mapping]) -> Space:
    from rtit._core import Space

    space = Space()
    for each in mappings:
        if each.problem is None:
            size = each.end - each.start
            code = files.read_code(each.path, each.offset, size, each.build_id)
            space.map(0, each.offset, code)
    return space


class _InlinedCallsOfNodes:
    """The inlined calls in the code of each node. The calls of all files have numbers."""

    def __init__(
        self,
        tree: CallTree,
        runs: ContextRuns,
        entries: tuple[NDArray[np.int32], NDArray[np.uint64]],
        sites: tuple[NDArray[np.int32], NDArray[np.uint64]],
    ) -> None:
        """`entries` and `sites`: file and offset of the entry and the call of each node."""
        self._tree, self._runs, self._entries, self._sites = tree, runs, entries, sites
        self._instruction_sums = [np.empty((3, 0), np.int64)]
        """Node, inlined call, and instructions."""
        self._call_of_site = np.full(len(tree), -1)
        """The inlined call from which each node was called; -1 for none."""
        self._parents = np.empty(0, np.int64)
        """The inlined call that each inlined call is in; -1 for none."""
        self._functions = {name: number for number, name in enumerate(tree.functions)}
        self._source_files = {"": 0}
        self._names: list[tuple[int, int]] = []
        """Function and source file of each inlined call."""

    def add_file(self, number: int, symbols: FileSymbols, code: Space) -> None:
        """Add the inlined calls of a file."""
        from rtit._core import count_instructions

        rows = self._runs.binary == number
        starts, sizes = self._runs.offset[rows], self._runs.instructions[rows]
        bits = symbols.elf.bits
        ran, _ = count_instructions(code, starts, sizes, self._runs.count[rows], bits)
        offset, length = np.asarray(ran["ip"]), np.asarray(ran["size"])
        callees = np.flatnonzero((self._sites[0] == number) & (self._tree.parent >= 0))
        sites = self._sites[1][callees]
        inlined = InlinedCalls(symbols, np.append(offset, sites))
        if not len(inlined.parents):
            return
        call_at, call_at_site = np.split(inlined.innermost.astype(np.int64), [len(offset)])
        functions = _FunctionsOfCode(symbols)
        is_entry = self._entries[0] == number
        owner = np.full(len(self._tree), -1)
        owner[is_entry] = functions.find_functions(self._entries[1][is_entry])
        base = len(self._parents)

        owner_at_site = functions.find_functions(sites)
        is_own = owner_at_site == owner[self._tree.parent[callees]]
        is_inlined = is_own & (owner_at_site >= 0) & (call_at_site >= 0)
        self._call_of_site[callees[is_inlined]] = base + call_at_site[is_inlined]
        owner_at = functions.find_functions(offset)
        for runs in runs_of_binary(self._runs, number):
            run, row = instructions_of_runs(runs, offset, length)
            node = runs.context[run]
            kept = (call_at[row] >= 0) & (owner_at[row] == owner[node]) & (owner_at[row] >= 0)
            call = base + call_at[row[kept]]
            self._instruction_sums.append(
                add_up_by_context(node[kept], call, runs.count[run[kept]])
            )

        above = inlined.parents.astype(np.int64)
        self._parents = np.append(self._parents, np.where(above == _NONE, -1, base + above))
        self._names += (self._name_and_file(inlined, call) for call in range(len(above)))

    def _name_and_file(self, inlined: InlinedCalls, call: int) -> tuple[int, int]:
        from rtit._core import demangle

        symbol, file = inlined.name_and_file(call)
        name = escape_control_characters(demangle(symbol))
        return (
            self._functions.setdefault(name, len(self._functions)),
            self._source_files.setdefault(file, len(self._source_files)),
        )

    def tree_with_calls(self) -> CallTree:
        """Return the tree with a node for each inlined call of a node."""
        tree = self._tree
        node, call, count = np.concatenate(self._instruction_sums, axis=1)
        moved = np.zeros(len(tree), np.int64)
        np.add.at(moved, node, count)
        # undone calls have runs, but no instructions of their own
        kept = (moved <= tree.self_instructions.astype(np.int64))[node]
        node, call, count = node[kept], call[kept], count[kept]

        # A key is a node and 0, or an inlined call in it, plus 1. Callers have smaller keys.
        called = self._call_of_site >= 0
        from_sites = _key(tree.parent[called].astype(np.int64), self._call_of_site[called])
        with_code = _key(node, call)
        keys = _sort_keys(with_code, from_sites, _key(np.arange(len(tree)), -1))
        while len(more := _sort_keys(keys, self._outer_keys(keys))) > len(keys):
            keys = more
        node, call = keys >> 32, (keys & _NONE) - 1
        is_inlined = call >= 0

        above = tree.parent.astype(np.int64)[node]
        caller = np.where(is_inlined, self._outer_keys(keys), _key(above, self._call_of_site[node]))
        has_caller = is_inlined | (above >= 0)
        parent = np.where(has_caller, np.searchsorted(keys, caller), -1)
        own = np.where(is_inlined, 0, tree.self_instructions[node].astype(np.int64))
        np.add.at(own, np.searchsorted(keys, with_code), count)
        np.subtract.at(own, np.searchsorted(keys, _key(with_code >> 32, -1)), count)
        function, file = np.array([*self._names, (0, 0)], np.uint32)[call].T
        columns = {name: getattr(tree, name)[node] for name, _, _ in CallTree.FIELDS}
        columns |= {
            "parent": parent.astype(np.int32),
            "function": np.where(is_inlined, function, columns["function"]),
            "kind": np.where(is_inlined, CallKind.INLINED, columns["kind"]).astype(np.uint8),
            "root": np.where(is_inlined, RootKind.NOT_A_ROOT, columns["root"]).astype(np.uint8),
            "self_instructions": own.astype(np.uint64),
            "file": np.where(is_inlined, file, 0).astype(np.uint32),
        }
        for name in ("call_site", "entry", "calls", "recursive"):
            columns[name] = np.where(is_inlined, 0, columns[name]).astype(columns[name].dtype)
        found = CallTree(*columns.values()).replace(
            functions=list(self._functions),
            modules=tree.modules,
            files=list(self._source_files),
            statistics=tree.statistics,
        )
        return _with_totals(found)

    def _outer_keys(self, keys: I64) -> I64:
        """Return the keys of the calls around inlined calls; those of nodes unchanged."""
        node, call = keys >> 32, (keys & _NONE) - 1
        parents = np.append(self._parents, -1)
        return _key(node, parents[call])


def _key(node: Any, call: Any) -> I64:
    key: I64 = node << 32 | (call + 1)
    return key


def _sort_keys(*keys: I64) -> I64:
    """Return the distinct keys, sorted. `np.unique` hashes, which is slow for such numbers."""
    found = np.sort(np.concatenate(keys))
    return found[np.append(True, found[1:] != found[:-1])] if len(found) else found


def _with_totals(tree: CallTree) -> CallTree:
    """Return the tree with the totals of inlined calls, and with recursive calls marked."""
    from rtit._core import recursive_calls

    is_inlined = tree.kind == CallKind.INLINED
    counts = (tree.parent >= 0) & (tree.kind != CallKind.SIGNAL)
    amount = np.where(is_inlined, tree.self_instructions, tree.total_instructions)
    total = np.where(is_inlined, np.uint64(0), tree.total_instructions)
    # Each amount belongs to the row itself, if it is inlined, and to the inlined calls around it.
    rows = np.arange(len(tree))
    at = np.where(is_inlined, rows, np.where(counts, tree.parent, -1))
    while len(rows := rows[is_inlined[at] & (at >= 0)]):
        at = at[is_inlined[at] & (at >= 0)]
        np.add.at(total, at, amount[rows])
        at = tree.parent[at]
    _, function = np.unique(tree.function_keys(), return_inverse=True)
    parents = tree.parent.astype(np.uint32)
    recursive = np.asarray(recursive_calls(parents, function.astype(np.uint32), tree.kind))
    return tree.replace(total_instructions=total, recursive=recursive)


class _FunctionsOfCode:
    """Finds functions. A part that the compiler moved away (`.cold`) belongs to its function."""

    def __init__(self, symbols: FileSymbols) -> None:
        self._symbols, self._index = symbols, FunctionIndex(symbols)

    def find_functions(self, offsets: NDArray[np.uint64]) -> I64:
        """Return the function at each offset, as `FunctionIndex` does."""
        found = self._index.find_functions(offsets)
        for owner in np.unique(found[found >= 0]).tolist():
            whole = function_of_cold_part(self._symbols.name(owner))
            named = [] if whole is None else self._symbols.find_by_name(whole)
            if named:
                found[found == owner] = np.searchsorted(self._symbols.offsets, named[0].offset)
        return found
