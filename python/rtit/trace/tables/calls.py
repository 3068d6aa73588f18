"""The calls of threads, one by one: who called, from where, for how long, and how each ended.

Native code follows the stacks of each process (`crates/calls` explains how). `call_tree` adds the
calls up by path.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from rtit.trace.tables.batch import LABELS_BY_BATCH, FunctionBatch, LabelledNumber, declare_column
from rtit.trace.tables.call_tree import CallKind, RootKind

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from rtit import _core
    from rtit.trace.tables.batch import U8, U32, U64

    I32 = NDArray[np.int32]
    I64 = NDArray[np.int64]


class CallEnd(LabelledNumber):
    """How a call ended."""

    RETURNED = 0
    """It returned to its caller. A tail call ends with the function that made it."""
    UNWOUND = 1
    """An exception or longjmp left it."""
    SUSPENDED = 2
    """Its stack was suspended and did not run again."""
    LOST = 3
    """It was running when packets were lost."""
    REPLACED = 4
    """The program was replaced (exec)."""
    RUNNING = 5
    """It was running when the trace of the thread ended."""


class Call(NamedTuple):
    """One row of `Calls`."""

    call: int
    parent: int
    stack: int
    depth: int
    function: str
    kind: CallKind
    root: RootKind
    end: CallEnd
    ambiguous: bool
    call_site: int
    entry: int
    first: int
    stop: int
    end_tid: int
    self_instructions: int
    total_instructions: int
    begin_time: int
    end_time: int
    module: str


class Calls(FunctionBatch):
    """Calls of threads, in the order of their ends.

    * `call`: number of the call in its process; in each thread by the order in which calls begin
    * `parent`: `call` of the caller; -1 for the first function of a stack
    * `stack`: `call` of the first function of the stack
    * `depth`: number of callers on the stack
    * `function`: index in `functions`, the names of this batch; see `function_names`. Consumers of
      Arrow have the names, as `Table.columns` does
    * `kind`: a `CallKind`; `root`: a `RootKind`; `end`: a `CallEnd`
    * `ambiguous`: 1 if several stacks were possible below the call when it ended; `parent` and
      `depth` are then those of the likeliest one
    * `call_site`: IP of the call; 0 if there is none. `entry`: IP of the first instruction
    * `first`, `stop`: the call lasted from instruction `first` of the thread up to `stop`, which is
      not part of it; instructions count from 0 in the order of execution
    * `end_tid`: the thread of `stop`. It is not that of `first` if the stack of the call was
      suspended, and resumed by another thread
    * `self_instructions`: instructions of the function itself
    * `total_instructions`: also those of the functions it called. Signal handlers, and other stacks
      that ran meanwhile, do not count
    * `begin_time`, `end_time`: TSC estimates for the first instruction of the call, and for the
      first one after it. Both are lower bounds: the call began and ended at these times or later,
      but not later than the `latest` that `Trace.instructions` has for `first` and `stop`
    * `module`: index in `modules`, the paths of the files of the functions as they were recorded

    The sum of `self_instructions` is the number of decoded instructions. A function that returns
    twice, such as getcontext, has a row for each return.
    """

    ADDRESS_COLUMNS: ClassVar[tuple[str, str] | None] = ("entry", "entry")
    TIME_COLUMN: ClassVar[str | None] = "begin_time"
    call: U64 = declare_column("u8")
    parent: I64 = declare_column("i8")
    stack: U64 = declare_column("u8")
    depth: U32 = declare_column("u4")
    function: U32 = declare_column("u4", LABELS_BY_BATCH)
    kind: U8 = declare_column("u1", CallKind)
    root: U8 = declare_column("u1", RootKind)
    end: U8 = declare_column("u1", CallEnd)
    ambiguous: U8 = declare_column("u1")
    call_site: U64 = declare_column("u8")
    entry: U64 = declare_column("u8")
    first: U64 = declare_column("u8")
    stop: U64 = declare_column("u8")
    end_tid: I32 = declare_column("i4")
    self_instructions: U64 = declare_column("u8")
    total_instructions: U64 = declare_column("u8")
    begin_time: U64 = declare_column("u8")
    end_time: U64 = declare_column("u8")
    module: U32 = declare_column("u4", LABELS_BY_BATCH)

    @classmethod
    def from_native(cls, columns: _core.CallColumns, tids: I32, cpus: I32) -> Calls:
        """Wrap the columns of native code. `tids`, `cpus`: of the streams of the process."""
        import numpy as np

        begin_thread = np.asarray(columns["begin_thread"])
        native: dict[str, Any] = {
            **columns,
            "parent": np.asarray(columns["parent"]).view(np.int64),
            "end_tid": tids[np.asarray(columns["end_thread"])],
        }
        batch = cls(*(native[name] for name, _, _ in cls.FIELDS))
        named = batch.replace(functions=columns["functions"], modules=columns["modules"])
        return named.with_columns(tid=tids[begin_thread], cpu=cpus[begin_thread])

    def __iter__(self) -> Iterator[Call]:
        for call, parent, stack, depth, function, kind, root, end, ambiguous, *rest, module in zip(
            *self.column_lists(), strict=True
        ):
            kinds = CallKind(kind), RootKind(root), CallEnd(end)
            head = call, parent, stack, depth, self.functions[function], *kinds, bool(ambiguous)
            yield Call._make((*head, *rest, self.modules[module]))
