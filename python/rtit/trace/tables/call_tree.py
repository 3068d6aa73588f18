"""The call tree: which functions were called along which path, how often, and for how many
instructions.

Native code follows the stacks of each process (`crates/calls` explains how). A tree here has the
threads of a trace side by side, each with roots of its own.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from rtit.trace.tables.batch import LABELS_BY_BATCH, FunctionBatch, LabelledNumber, declare_column

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from rtit import _core
    from rtit.trace.tables.batch import U8, U32, U64

    I32 = NDArray[Any]


class CallKind(LabelledNumber):
    """How a function was entered."""

    ROOT = 0
    """No known call: the first function of a stack."""
    CALL = 1
    TAIL = 2
    """A jump to another function, which returns for its caller."""
    SIGNAL = 3
    """A signal handler, or the kernel's handler of an interrupt or exception, below the interrupted
    function.
    """
    INJECTED = 4
    """A call that a signal handler put into the interrupted code, as Go preempts goroutines."""
    UNTRACED = 5
    """Code outside of the filters called into traced code."""
    INLINED = 6
    """No call: the compiler put the function into its caller."""


class RootKind(LabelledNumber):
    """Why nothing is known about the caller of a root."""

    START = 0
    """The thread or program started here."""
    NEW_STACK = 1
    """A new coroutine, goroutine or fiber."""
    CALLER = 2
    """Code that a function returned to. The call of that function is not in the trace."""
    AFTER_LOSS = 3
    """Code after lost packets."""
    UNKNOWN = 4
    """The trace does not say on which stack this ran."""
    NOT_A_ROOT = 5


class CallNode(NamedTuple):
    """One row of `CallTree`."""

    parent: int
    function: str
    kind: CallKind
    root: RootKind
    call_site: int
    entry: int
    calls: int
    self_instructions: int
    total_instructions: int
    recursive: int
    tid: int
    module: str
    file: str


class FunctionTotals(NamedTuple):
    """The calls of a function, and the instructions without and with callees."""

    calls: int
    self_instructions: int
    total_instructions: int


@dataclass(frozen=True)
class StackStatistics:
    """How the call stacks of a trace were followed."""

    returned: int = 0
    """Returns to the return address of the newest call."""
    unwound: int = 0
    """Transfers that left several functions at once: exceptions, longjmp."""
    switched: int = 0
    """Transfers to another stack: coroutines, goroutines, fibers."""
    unknown: int = 0
    """Transfers to a stack that is not known."""
    choices: int = 0
    """Transfers that could have led to several stacks."""
    corrected: int = 0
    """How often a later return showed that another of these stacks was the right one."""
    calls_without_node: int = 0
    """Calls beyond the limits of memory. Their instructions count for a caller."""

    def __add__(self, other: StackStatistics) -> StackStatistics:
        return StackStatistics(
            *(mine + theirs for mine, theirs in zip(_fields(self), _fields(other), strict=True))
        )


def _fields(statistics: StackStatistics) -> Iterator[int]:
    return iter(vars(statistics).values())


class CallTree(FunctionBatch):
    """The call tree. Each row is a node: the calls of a function with the same path of callers.

    * `parent`: row of the caller, which is before this row; -1 for a root
    * `function`: index in `functions`, the names; see `function_names`
    * `kind`: a `CallKind`; `root`: a `RootKind`
    * `call_site`: IP of the call; 0 if there is none. `entry`: IP of the first instruction
    * `calls`: how often
    * `self_instructions`: instructions of the function itself
    * `total_instructions`: also those of the functions it called, but for signal handlers
    * `recursive`: 1 if a caller has the same function, so that its total includes this one
    * `tid`: the thread in which the stack began. Other threads may have executed a part of it
    * `module`: index in `modules`, the paths of the files of the functions as they were recorded
    * `file`: index in `files`: the source files of inlined functions, "" for others

    An inlined function (`INLINED`) has no `call_site` and no `entry`, and 0 `calls`. The sum of
    `self_instructions` is the number of decoded instructions. PLT stubs are part of their callers.
    `statistics` says how the stacks were followed.
    """

    ADDRESS_COLUMNS: ClassVar[tuple[str, str] | None] = None
    parent: I32 = declare_column("i4")
    function: U32 = declare_column("u4", LABELS_BY_BATCH)
    kind: U8 = declare_column("u1", CallKind)
    root: U8 = declare_column("u1", RootKind)
    call_site: U64 = declare_column("u8")
    entry: U64 = declare_column("u8")
    calls: U64 = declare_column("u8")
    self_instructions: U64 = declare_column("u8")
    total_instructions: U64 = declare_column("u8")
    recursive: U8 = declare_column("u1")
    tid: I32 = declare_column("i4")
    module: U32 = declare_column("u4", LABELS_BY_BATCH)
    file: U32 = declare_column("u4", LABELS_BY_BATCH)
    statistics: StackStatistics = StackStatistics()

    def __iter__(self) -> Iterator[CallNode]:
        for parent, function, kind, root, *rest, module, file in zip(
            *self.column_lists(), strict=True
        ):
            name = self.functions[function]
            kinds = CallKind(kind), RootKind(root)
            yield CallNode._make(
                (parent, name, *kinds, *rest, self.modules[module], self.files[file])
            )

    def select_threads(self, tids: Collection[int]) -> CallTree:
        """Return the tree of these threads."""
        import numpy as np

        is_kept = np.isin(self.tid, [*tids])
        # Nodes have the thread of their root.
        rows = np.cumsum(is_kept) - 1
        parent = np.where(self.parent < 0, -1, rows[self.parent]).astype(np.int32)
        found = self.replace(parent=parent).select_rows(is_kept)
        called, function = np.unique(found.function, return_inverse=True)
        functions = [self.functions[number] for number in called]
        return found.replace(function=function.astype(np.uint32), functions=functions)

    def by_function(self) -> dict[tuple[str, str], FunctionTotals]:
        """Return the calls and instructions of each function, over all paths and threads.

        The key is the name of the function and the path of its file. A recursive call counts in
        `calls` and `self_instructions`; in `total_instructions` it is part of the outermost call.
        """
        import numpy as np

        keys, which = np.unique(self.function_keys(), return_inverse=True)

        def sum_by_function(values: NDArray[Any]) -> list[int]:
            found = np.zeros(len(keys), np.uint64)
            np.add.at(found, which, values)
            return found.tolist()

        outermost = np.where(self.recursive == 0, self.total_instructions, np.uint64(0))
        columns = map(sum_by_function, (self.calls, self.self_instructions, outermost))
        return {
            (self.functions[key >> 32], self.modules[key & 0xFFFF_FFFF]): FunctionTotals(*numbers)
            for key, *numbers in zip(keys.tolist(), *columns, strict=True)
        }

    def function_keys(self) -> NDArray[Any]:
        """Return a number for each row that stands for its function and module."""
        import numpy as np

        return self.function.astype(np.uint64) << np.uint64(32) | self.module

    def children(self) -> list[list[int]]:
        """Return the rows of the callees of each row, and at the end those of the roots."""
        found: list[list[int]] = [[] for _ in range(len(self) + 1)]
        for row, parent in enumerate(self.parent.tolist()):
            found[parent].append(row)
        return found


def call_tree_from_native(columns: _core.CallTreeColumns, tids: Sequence[int]) -> CallTree:
    """Return the tree of a process. `tids`: of its threads."""
    import numpy as np

    statistics = StackStatistics(
        columns["returned"],
        columns["unwound"],
        columns["switched"],
        columns["unknown"],
        columns["choices"],
        columns["corrected"],
        columns["calls_without_node"],
    )
    tree = CallTree(
        np.asarray(columns["parent"]).view(np.int32),
        columns["function"],
        columns["kind"],
        columns["root"],
        columns["call_site"],
        columns["entry"],
        columns["calls"],
        columns["own"],
        columns["total"],
        columns["recursive"],
        np.asarray(tids, np.int32)[np.asarray(columns["thread"])],
        columns["module"],
        np.zeros(len(columns["calls"]), np.uint32),
    )
    return tree.replace(
        functions=columns["functions"], modules=columns["modules"], statistics=statistics
    )


def join_call_trees(trees: Iterable[CallTree]) -> CallTree:
    """Return one tree with the roots of all."""
    import numpy as np

    parts: list[CallTree] = []
    functions: dict[str, int] = {}
    modules: dict[str, int] = {}
    files = {"": 0}
    statistics, rows = StackStatistics(), 0

    def renumber(column: U32, texts: Sequence[str], numbers: dict[str, int]) -> U32:
        joined = [numbers.setdefault(text, len(numbers)) for text in texts]
        return np.asarray(joined, np.uint32)[column] if len(column) else column

    for tree in trees:
        parts.append(
            tree.replace(
                parent=np.where(tree.parent < 0, -1, tree.parent + rows).astype(np.int32),
                function=renumber(tree.function, tree.functions, functions),
                module=renumber(tree.module, tree.modules, modules),
                file=renumber(tree.file, tree.files, files),
            )
        )
        statistics += tree.statistics
        rows += len(tree)
    columns = [
        np.concatenate([getattr(each, name) for each in parts]) if parts else np.empty(0, dtype)
        for name, dtype, _ in CallTree.FIELDS
    ]
    return CallTree(*columns).replace(
        functions=list(functions), modules=list(modules), files=list(files), statistics=statistics
    )
