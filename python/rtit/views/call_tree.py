"""The call tree as people read it: calls of a function from different lines of its caller, and of
all selected threads, together.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Iterator, Mapping
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

from rtit.errors import UsageError
from rtit.image import KERNEL_START
from rtit.text_escaping import escape_control_characters, format_json, similar_names_hint
from rtit.trace.tables.call_tree import CallKind, CallTree, RootKind

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence, Set

    import numpy as np
    from numpy.typing import NDArray

    from rtit.trace import Trace
    from rtit.trace.tables.batch import FunctionBatch
    from rtit.trace.tables.selection import SelectedRange

_MODULE = 0xFFFF_FFFF
"""Part of a function key that is the module."""
_ROOT_NOTES = {
    RootKind.NEW_STACK: "new stack",
    RootKind.CALLER: "its caller is not in the trace",
    RootKind.AFTER_LOSS: "after lost packets",
    RootKind.UNKNOWN: "on an unknown stack",
}
_JSON_NODES = 1 << 14
"""Nodes that are written at a time."""
_INTERRUPT_NOTE = "interrupt"
_CALL_NOTES = {
    CallKind.SIGNAL: "signal",
    CallKind.INJECTED: "injected",
    CallKind.UNTRACED: "called by untraced code",
    CallKind.INLINED: "inlined",
}


class FunctionNode:
    """Calls of a function with the same callers.

    `total` includes the instructions of callees, but not those of signal handlers. `is_inlined`:
    the calls were inlined, and are not counted in `calls`. `file`: source of an inlined function.
    """

    __slots__ = ("calls", "children", "file", "is_inlined", "name", "own", "total")

    def __init__(self, name: str) -> None:
        self.name = name
        self.file, self.is_inlined = "", False
        self.calls = self.own = self.total = 0
        self.children: dict[str, FunctionNode] = {}

    def child(self, name: str) -> FunctionNode:
        """Return the callee of this name, a new one if there is none."""
        found = self.children.get(name)
        if found is None:
            found = self.children[name] = FunctionNode(name)
        return found

    def add(self, calls: int, own: int, total: int) -> None:
        """Add calls and their instructions."""
        self.calls += calls
        self.own += own
        self.total += total


def tree_rows(root: FunctionNode) -> list[tuple[Any, ...]]:
    """Return the nodes of a tree as rows, for `add_tree_rows`: callers first."""
    rows: list[tuple[Any, ...]] = []
    pending = [(root, -1)]
    while pending:
        node, caller = pending.pop()
        row = len(rows)
        counts = node.calls, node.own, node.total
        rows.append((caller, node.name, node.file, node.is_inlined, *counts))
        pending += [(each, row) for each in node.children.values()]
    return rows


def add_tree_rows(root: FunctionNode, rows: Iterable[tuple[Any, ...]]) -> None:
    """Add a tree to another, function by function."""
    nodes: list[FunctionNode] = []
    for caller, name, file, is_inlined, *counts in rows:
        node = root if caller < 0 else nodes[caller].child(name)
        node.file, node.is_inlined = file or node.file, node.is_inlined or is_inlined
        node.add(*counts)
        nodes.append(node)


def shorten_labels(root: FunctionNode, names: Mapping[str, str]) -> None:
    """Leave the file out of the labels of a tree where only one file has a function of that name.

    `names`: the name of the function by its label with the file, as `functions_by_label` returns.
    """
    counts = Counter(names.values())
    notes = [
        "",
        *(f" [{note}]" for note in (*_ROOT_NOTES.values(), *_CALL_NOTES.values(), _INTERRUPT_NOTE)),
    ]
    short = {
        label + note: name + note
        for label, name in names.items()
        if counts[name] == 1
        for note in notes
    }
    pending = [root]
    while pending:
        node = pending.pop()
        node.name = short.get(node.name, node.name)
        pending += node.children.values()
        node.children = {short.get(name, name): each for name, each in node.children.items()}


def functions_by_label(tree: CallTree) -> dict[str, str]:
    """Return the names of the functions of a tree by their labels with the file."""
    labels = function_labels(tree, with_file=True)
    return {label: tree.functions[key >> 32] for key, label in labels.items()}


def function_labels(tree: CallTree, *, with_file: bool = False) -> dict[int, str]:
    """Return the name of each function, by `CallTree.function_keys`.

    If functions of this name are in several files, or `with_file`, the name of the file follows in
    parentheses.
    """
    import numpy as np

    keys = np.unique(tree.function_keys()).tolist()
    counts = Counter(key >> 32 for key in keys)
    labels = {}
    for key in keys:
        label = tree.functions[key >> 32]
        if with_file or counts[key >> 32] > 1:
            label += f" ({PurePath(tree.modules[key & _MODULE]).name or 'unknown'})"
        labels[key] = label
    return labels


def is_function(batch: FunctionBatch, name: str) -> NDArray[np.bool_]:
    """Return a mask of the rows of a function. NAME@FILE names one of several files."""
    import numpy as np

    def rows_with(column: NDArray[Any], numbers: Iterable[int]) -> NDArray[np.bool_]:
        return np.isin(column, np.asarray([*numbers], np.uint32))

    def numbers_of(name: str) -> list[int]:
        return [number for number, each in enumerate(batch.functions) if each == name]

    columns = batch.columns()
    found = rows_with(columns["function"], numbers_of(name))
    if not found.any() and "@" in name:
        bare, _, file = name.rpartition("@")
        modules = enumerate(batch.modules)
        files = [number for number, each in modules if file in (each, PurePath(each).name)]
        found = rows_with(columns["function"], numbers_of(bare))
        found &= rows_with(columns["module"], files)
    return found


def modules_of_rows(batch: FunctionBatch, rows: NDArray[np.bool_]) -> set[str]:
    """Return the files of the functions of these rows."""
    import numpy as np

    return {batch.modules[number] for number in np.unique(batch.columns()["module"][rows])}


def check_in_one_file(function: str, modules: Collection[str]) -> None:
    """Raise UsageError if functions of this name are in several files."""
    if len(modules) > 1:
        first, *others = sorted(modules)
        raise UsageError(
            f"{function!r} is in several files: {', '.join([first, *others])}",
            hint=f"name one of them: --function {function}@{PurePath(first).name}",
        )


def merge_functions(
    tree: CallTree,
    function: str | None = None,
    threads: Mapping[int, str] | None = None,
    *,
    with_file: bool = False,
) -> FunctionNode:
    """Return the tree by function, below a node without a name.

    `function`: only the calls of this function, and what it called. `threads`: titles by thread id;
    each thread then has a node of its own. `with_file`: as for `function_labels`. Raises UsageError
    if `function` was not called.
    """
    root = FunctionNode("")
    wanted = None if function is None else _rows_of_function(tree, function).tolist()
    merged: list[FunctionNode | None] = []
    titles = threads or {}
    labels = function_labels(tree, with_file=with_file)
    keys = tree.function_keys().tolist()
    rows = zip(*tree.column_lists(), strict=True)
    for row, each in enumerate(rows):
        parent, _, kind, kind_of_root, _, entry, calls, own, total, _, tid, _, file = each
        above = merged[parent] if parent >= 0 else None
        if above is None:
            if wanted is None and parent < 0:
                title = titles.get(tid)
                above = root if title is None else root.child(title)
                if title is not None:
                    above.total += total
            elif wanted is not None and wanted[row]:
                above = root
            else:
                merged.append(None)
                continue
            root.total += total
        elif kind == CallKind.SIGNAL:
            root.total += total
        node = above.child(_node_name(labels[keys[row]], kind, kind_of_root, entry))
        node.add(calls, own, total)
        if kind == CallKind.INLINED:
            node.is_inlined, node.file = True, tree.files[file]
        merged.append(node)
    return root


def merge_callers(tree: CallTree, function: str, *, with_file: bool = False) -> FunctionNode:
    """Return the callers of a function, their callers and so on, below a node of the function.

    The counts of each node are those of the function when it was called along this path;
    recursive calls belong to the outermost call. `with_file`: as for `function_labels`. Raises
    UsageError if it was not called.
    """
    wanted = _rows_of_function(tree, function)
    parents, keys = tree.parent.tolist(), tree.function_keys().tolist()
    kinds, roots, files = tree.kind.tolist(), tree.root.tolist(), tree.file.tolist()
    entries = tree.entry.tolist()
    labels = function_labels(tree, with_file=with_file)
    top = FunctionNode("")
    # The outermost call of the function above each row, or the row itself.
    outermost: list[int] = []
    for row, (parent, is_wanted) in enumerate(zip(parents, wanted.tolist(), strict=True)):
        above = outermost[parent] if parent >= 0 else -1
        outermost.append(row if above < 0 and is_wanted else above)
    for row in wanted.nonzero()[0].tolist():
        own = int(tree.self_instructions[row])
        calls, first = int(tree.calls[row]), outermost[row]
        total = int(tree.total_instructions[row]) if first == row else 0
        top.total += total
        at, node = parents[first], top.child(labels[keys[row]])
        node.add(calls, own, total)
        node.file, node.is_inlined = tree.files[files[row]], kinds[row] == CallKind.INLINED
        while at >= 0:
            node = node.child(_node_name(labels[keys[at]], kinds[at], roots[at], entries[at]))
            node.add(calls, own, total)
            node.file, node.is_inlined = tree.files[files[at]], kinds[row] == CallKind.INLINED
            at = parents[at]
    return top


def count_each_path_once(root: FunctionNode) -> None:
    """Change a tree of callers: `own` of a node becomes the instructions of paths that end there.

    The sum of `own` is then the total of the function, as for a tree of callees.
    """
    pending = [root]
    while pending:
        node = pending.pop()
        node.own = node.total - sum(each.total for each in node.children.values())
        pending += node.children.values()


def find_called_function(tree: CallTree, function: str, trace: Trace) -> str:
    """Return the name that the tree has for a function: one symbol of several, with its version.

    `function` is a name in the tree, another symbol of the function, or NAME@FILE. Returns
    `function` itself if the tree does not have it. Raises UsageError if several files have it.
    """
    import numpy as np

    rows = is_function(tree, function)
    if not rows.any():
        rows = _is_entered_by_symbol(tree, function, trace)
    check_in_one_file(function, modules_of_rows(tree, rows))
    if not rows.any():
        return function
    row = int(rows.argmax())
    name = tree.functions[int(tree.function[row])]
    files = np.unique(tree.module[tree.function == tree.function[row]])
    return name if len(files) == 1 else f"{name}@{tree.modules[int(tree.module[row])]}"


def _is_entered_by_symbol(tree: CallTree, function: str, trace: Trace) -> NDArray[np.bool_]:
    import numpy as np

    found = np.zeros(len(tree), bool)
    for ranges in _ranges_by_process(function, trace):
        for each in ranges:
            found |= (tree.entry >= np.uint64(each.start)) & (tree.entry < np.uint64(each.end))
    return found


def entries_of_function(tree: CallTree, function: str) -> set[int]:
    """Return the addresses at which calls of a function begin."""
    return {*tree.entry[_rows_of_function(tree, function)].tolist()}


def count_functions_of_name(function: str, entries: Set[int], trace: Trace) -> int:
    """Return how many functions with this name begin at some addresses of a process.

    Static functions of several source files can have the same name.
    """
    if len(entries) < 2:
        return len(entries)
    starts = ({each.start for each in ranges} for ranges in _ranges_by_process(function, trace))
    return max((len(entries & each) for each in starts), default=0)


def _ranges_by_process(function: str, trace: Trace) -> Iterator[Sequence[SelectedRange]]:
    """Iterate over the address ranges of the functions with a name, process by process."""
    from rtit.trace.tables.selection import SelectedRanges, Selection

    ranges = SelectedRanges(Selection(functions=(function,)), trace.images)
    for pid in sorted({pid for stream in trace.threads for pid in stream.space_pids}):
        yield ranges.in_processes(pid) or ()


def _rows_of_function(tree: CallTree, function: str) -> NDArray[np.bool_]:
    found = is_function(tree, function)
    if not found.any():
        hint = similar_names_hint(function, tree.functions)
        raise UsageError(f"no call of a function {function!r}{hint}")
    check_in_one_file(function, modules_of_rows(tree, found))
    return found


def _node_name(name: str, kind: int, root: int, entry: int) -> str:
    if kind == CallKind.ROOT:
        note = _ROOT_NOTES.get(RootKind(root))
    elif kind == CallKind.SIGNAL and entry >= KERNEL_START:
        note = _INTERRUPT_NOTE
    else:
        note = _CALL_NOTES.get(CallKind(kind))
    return f"{name} [{note}]" if note else name


def walk_tree(
    root: FunctionNode, min_total: float, max_depth: int
) -> Iterator[tuple[int, FunctionNode, int]]:
    """Iterate over the nodes depth first, the largest callee first.

    Yields the depth, the node, and the number of its callees that are left out: those with less
    than `min_total` instructions, and those deeper than `max_depth`.
    """
    pending = [(0, each) for each in callees_by_total(root)]
    pending = [each for each in pending if each[1].total >= min_total]
    while pending:
        depth, node = pending.pop()
        shown = [
            each
            for each in callees_by_total(node)
            if each.total >= min_total and depth + 1 < max_depth
        ]
        yield depth, node, len(node.children) - len(shown)
        pending += [(depth + 1, each) for each in shown]


def callees_by_total(node: FunctionNode) -> Sequence[FunctionNode]:
    """Return the callees of a node, the largest last."""
    return sorted(node.children.values(), key=lambda each: (each.total, each.name))


def folded_stacks(root: FunctionNode, max_depth: int) -> Generator[str, None, int]:
    """Iterate over lines "caller;callee;... INSTRUCTIONS", the input of flame graph tools.

    The instructions of nodes deeper than `max_depth` belong to their callers at that depth, because
    the lines of a deep recursion would grow with the square of its depth. The generator returns the
    number of these nodes. The names of a stack take memory only while it is the current one.
    """
    pending = [(0, each) for each in callees_by_total(root)]
    stack: list[str] = []
    own = deeper = 0
    while pending:
        depth, node = pending.pop()
        if depth < max_depth:
            if own:
                yield f"{';'.join(stack)} {own}"
            del stack[depth:]
            stack.append(escape_control_characters(node.name).replace(";", ":"))
            own = node.own
        else:
            own += node.own
            deeper += 1
        pending += [(depth + 1, each) for each in callees_by_total(node)]
    if own:
        yield f"{';'.join(stack)} {own}"
    return deeper


def call_tree_json(tree: CallTree) -> Iterator[str]:
    """Iterate over the parts of one JSON object: its nodes, parents first, and the statistics."""
    yield '{"nodes": ['
    for start in range(0, len(tree), _JSON_NODES):
        nodes = [
            {
                "parent": node.parent if node.parent >= 0 else None,
                "function": node.function,
                "module": node.module,
                "kind": node.kind.label,
                "root": node.root.label if node.kind == CallKind.ROOT else None,
                "call_site": node.call_site or None,
                "entry": node.entry if node.kind != CallKind.INLINED else None,
                "file": node.file or None,
                "calls": node.calls if node.kind != CallKind.INLINED else None,
                "self": node.self_instructions,
                "total": node.total_instructions,
                "tid": node.tid,
            }
            for node in tree.select_rows(slice(start, start + _JSON_NODES))
        ]
        text = format_json(nodes)[1:-1]
        yield f", {text}" if start else text
    yield f'], "stacks": {format_json(vars(tree.statistics))}}}\n'
