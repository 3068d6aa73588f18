"""How often code ran, without the order: counts of runs, edges, packets and branches.

`RunTotals` and `EdgeTotals` are tables with one row for each distinct run or edge. A stream can
have more distinct runs or edges than fit into memory, so their number is limited (`max_counters`).
`BoundedCounter` enforces the limit: it keeps the first keys in sorted order and adds up the rest,
which makes the result independent of the order in which the rows arrive.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar

from rtit.trace.tables.batch import Batch, BranchKind, declare_column

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from rtit.trace.tables.batch import U8, U32, U64


UNCOUNTED_EXPLANATION = "beyond --max-edges: they are only in the total"
"""Follows the number of `uncounted` runs or edges in messages."""


@dataclass(frozen=True, slots=True)
class RunTotal:
    """One row of `RunTotals`."""

    start: int
    instructions: int
    count: int


@dataclass(frozen=True, slots=True)
class Edge:
    """One row of `EdgeTotals`."""

    source: int
    target: int
    kind: BranchKind
    count: int


class RunTotals(Batch):
    """Distinct runs of instructions that follow each other in memory: `start` (IP of the first),
    `instructions` (how many), `count` (how often). Sorted by `start` and `instructions`.

    Runs overlap: the count of an instruction is the sum over all runs that contain it. `uncounted`
    is the total of the runs beyond `max_counters`.
    """

    start: U64 = declare_column("u8")
    instructions: U32 = declare_column("u4")
    count: U64 = declare_column("u8")
    uncounted: int = 0

    def __iter__(self) -> Iterator[RunTotal]:
        return map(RunTotal, *self.column_lists())


class EdgeTotals(Batch):
    """Distinct transfers: `source` (IP of the instruction), `target`, `kind` (a `BranchKind`),
    `count`. Sorted by `source`, `target` and `kind`.

    A transfer counts if the code or the trace gives its target, also if tracing ended with it or an
    event occurred before the first instruction there. `uncounted` is the total of the edges beyond
    `max_counters`, `uncounted_by_kind` the same by `BranchKind`.
    """

    ADDRESS_COLUMNS: ClassVar[tuple[str, str] | None] = ("source", "source")
    source: U64 = declare_column("u8")
    target: U64 = declare_column("u8")
    kind: U8 = declare_column("u1", BranchKind)
    count: U64 = declare_column("u8")
    uncounted_by_kind: Mapping[int, int] = MappingProxyType({})

    @property
    def uncounted(self) -> int:
        """The sum of `uncounted_by_kind`."""
        return sum(self.uncounted_by_kind.values())

    def __iter__(self) -> Iterator[Edge]:
        for source, target, kind, count in zip(*self.column_lists(), strict=True):
            yield Edge(source, target, BranchKind(kind), count)


@dataclass(frozen=True, slots=True, eq=False)
class Totals:
    """All runs and edges of a stream."""

    runs: RunTotals
    edges: EdgeTotals


@dataclass(frozen=True, slots=True)
class Counts:
    """Totals of a stream."""

    packets: Mapping[str, int]
    """By packet name."""
    errors: Mapping[str, int]
    """By the label of their `ErrorClass`."""
    errata: Mapping[str, int]
    """How often the decoder worked around each erratum."""
    exact_bytes: int
    resumed_bytes: int
    lost_bytes: int
    elsewhere_bytes: int
    instructions: int
    conditional: int
    indirect: int
    """Indirect branches and far transfers."""
    returns: int
    compressed_returns: int
    """Returns that are a TNT bit, a part of `returns`."""
    asynchronous: int
    """Asynchronous events."""
    cycles: int
    """Core cycles; 0 without CYC packets."""
    measured_cycles: int
    """Core cycles between known times, a part of `cycles`."""
    measured_ticks: int
    """TSC ticks of the measured cycles."""
    inactive_ticks: int
    """TSC ticks in which nothing was traced (section 33.3.6)."""

    @property
    def branches(self) -> int:
        """Conditional branches, indirect branches, returns and far transfers."""
        return self.conditional + self.indirect + self.returns

    @property
    def ipc(self) -> float | None:
        """Instructions for each core cycle, as perf computes it; None without CYC packets. Cycles
        outside of the traced code count.
        """
        return self.instructions / self.cycles if self.cycles else None

    @property
    def frequency(self) -> float | None:
        """Core cycles for each TSC tick, measured between TSCs and MTCs (section 33.8.3.4); None if
        not measured.
        """
        return self.measured_cycles / self.measured_ticks if self.measured_ticks else None


_MIN_COUNTERS = 1 << 19
_BYTES_PER_COUNTER = 1 << 10
"""Bytes of PT for each counter beyond the minimum."""
_MAX_PENDING_ROWS = 1 << 17
"""Rows that are not yet added up, beside half as many as there are counters."""
_BATCH_OVERHEAD = 64
"""Rows that the columns of a small batch count as: each of thousands of streams may have few."""


def default_max_counters(size: int) -> int:
    """The number of counters for runs, and for edges, of so many bytes of PT; 0 bytes: unknown."""
    from rtit import _core

    maximum = _core.DEFAULT_MAX_COUNTERS
    return min(_MIN_COUNTERS + size // _BYTES_PER_COUNTER, maximum) if size else maximum


class BoundedCounter:
    """Counts rows by key. Keeps the `max_counters` smallest keys; the rest is one total.

    A key beyond the limit in a part of the rows is beyond it in the whole. The result therefore
    depends neither on the order of the rows nor on their division into batches.

    `dtypes` has the dtype of each key column. `kind_column`: index of the key column by which
    `uncounted_by_kind` is divided.
    """

    def __init__(
        self,
        dtypes: str,
        max_counters: int = 0,
        *,
        kind_column: int | None = None,
        max_pending_rows: int = _MAX_PENDING_ROWS,
    ) -> None:
        self.uncounted_by_kind: Counter[int] = Counter()
        self._kind_column = kind_column
        self._dtypes = dtypes.split()
        self._max_counters = max_counters or default_max_counters(0)
        self._max_pending_rows = max_pending_rows
        self._parts: list[list[NDArray[Any]]] = []
        """Columns of keys and counts. The first part is sorted and has each key once, if
        `_counters` is not 0.
        """
        self._counters = self._pending_rows = 0

    @property
    def uncounted(self) -> int:
        """The sum of `uncounted_by_kind`."""
        return self.uncounted_by_kind.total()

    def add_rows(self, *columns: NDArray[Any], count: NDArray[Any] | None = None) -> None:
        """Add rows, one array for each key column. `count`: how often each row occurred, or once.

        The arrays are kept until they are added up, so they must not change.
        """
        import numpy as np

        count = np.ones(len(columns[0]), np.uint64) if count is None else count
        self._parts.append([*columns, count])
        self._pending_rows += len(count) + _BATCH_OVERHEAD
        if self._pending_rows > self._counters // 2 + self._max_pending_rows:
            self._merge_equal_rows()

    def take_sorted_columns(self) -> list[NDArray[Any]]:
        """Return the sorted key columns and the counts. Empties the counter."""
        import numpy as np

        if self._pending_rows:
            self._merge_equal_rows()
        parts, self._parts, self._counters = self._parts, [], 0
        return parts[0] if parts else [np.zeros(0, each) for each in (*self._dtypes, "u8")]

    def _merge_equal_rows(self) -> None:
        import numpy as np

        parts, self._parts = self._parts, []
        # Column by column, so that each part's column is freed at once.
        *keys, counts = [
            _concatenate_arrays([part.pop(0) for part in parts])
            for _ in range(len(self._dtypes) + 1)
        ]
        order = np.lexsort(keys[::-1])
        is_new = np.zeros(len(order), np.bool_)
        is_new[:1] = True
        for at in range(len(keys)):
            keys[at] = key = keys[at][order]
            is_new[1:] |= key[1:] != key[:-1]
        counts = counts[order]
        del order
        if not is_new.all():
            first = np.flatnonzero(is_new)
            counts = np.add.reduceat(counts, first)
            for at in range(len(keys)):
                keys[at] = keys[at][first]
        columns = [*keys, counts]
        if len(counts) > self._max_counters:
            self._sum_dropped_keys(keys, counts)
            # Copies: views would keep the dropped rows in memory.
            columns = [column[: self._max_counters].copy() for column in columns]
        self._parts, self._counters, self._pending_rows = [columns], len(columns[-1]), 0

    def _sum_dropped_keys(self, keys: list[NDArray[Any]], counts: NDArray[Any]) -> None:
        import numpy as np

        dropped = counts[self._max_counters :]
        if self._kind_column is None:
            self.uncounted_by_kind[0] += int(dropped.sum())
            return
        kinds = keys[self._kind_column][self._max_counters :]
        for kind in np.unique(kinds).tolist():
            self.uncounted_by_kind[kind] += int(dropped[kinds == kind].sum())


def _concatenate_arrays(parts: list[NDArray[Any]]) -> NDArray[Any]:
    import numpy as np

    return np.concatenate(parts) if len(parts) > 1 else parts[0]
