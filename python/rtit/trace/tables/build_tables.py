"""From the native decoder's columns to tables: decode, filter, count and concatenate.

`rtit.trace.stream` chains these functions into the tables of a stream. The `decode_*` functions
yield each batch with, for every row, the stream offset of the packet that reported it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence, Sized
from typing import TYPE_CHECKING, Any, TypeVar

from rtit.image import KERNEL_PID
from rtit.image.mappings import KERNEL_START
from rtit.trace.tables.batch import Batch, EventKind, Table
from rtit.trace.tables.counts import BoundedCounter, EdgeTotals, RunTotals, Totals
from rtit.trace.tables.coverage_ledger import Ledger
from rtit.trace.tables.rows import Branches, Events, Instructions, Rows, SyncPoints
from rtit.trace.tables.selection import RowFilter
from rtit.trace.threads.address_spaces import SPACE_COLUMNS, column_or_zeros

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from rtit import _core


B = TypeVar("B", bound=Batch)

BATCH_ROWS = 1 << 16
"""Approximate number of rows of a batch."""

BatchesWithOffsets = Iterator[tuple[B, Sized]]
"""Batches, and for each row the offset of the packet that reported it: an array or buffer of u64.
"""

_THREAD_COLUMNS = ("tid", "pid", "cpu")


def decode_rows(
    decoder: _core.StreamDecoder, *, with_spaces: bool = False, with_cr3: bool = False
) -> BatchesWithOffsets[Rows]:
    """Decode all blocks and events. `with_spaces`: with the column `space`. `with_cr3`: with the
    column `cr3`.
    """
    first = 0
    while (columns := decoder.rows(BATCH_ROWS)) is not None:
        rows = Rows.from_native(columns, first, with_spaces=with_spaces, with_cr3=with_cr3)
        yield rows, rows.buffer("offset")
        first += len(rows)


def decode_instructions(
    decoder: _core.StreamDecoder, *, with_spaces: bool = False, with_cr3: bool = False
) -> BatchesWithOffsets[Instructions]:
    """Decode all instructions. `with_spaces`: with the column `space`. `with_cr3`: with the column
    `cr3`.
    """
    while (columns := decoder.instructions(BATCH_ROWS)) is not None:
        rows: list[Sized] = [columns[name] for name in ("ip", "size", "time", "bits", "in_tx")]
        extra: dict[str, NDArray[Any]] = {}
        if with_spaces:
            extra["space"] = column_or_zeros(columns["space"], len(rows[0]))
        if with_cr3:
            extra["cr3"] = column_or_zeros(columns["cr3"], len(rows[0]), "u8")
        yield Instructions(*rows, extra_columns=extra), columns["offset"]


def decode_branches(
    decoder: _core.StreamDecoder, *, with_spaces: bool = False, with_index: bool = False
) -> BatchesWithOffsets[Branches]:
    """Decode all branches. `with_spaces`: with the columns `space` and `target_space`.
    `with_index`: with the column `index`.
    """
    decode = decoder.indexed_branches if with_index else decoder.branches
    while (columns := decode(BATCH_ROWS)) is not None:
        rows: list[Sized] = [columns[name] for name in ("source", "target", "kind", "time")]
        extra = {}
        if with_spaces:
            space, target_space = columns["space"], columns["target_space"]
            extra["space"] = column_or_zeros(space, len(rows[0]))
            extra["target_space"] = column_or_zeros(
                target_space if len(target_space) else space, len(rows[0])
            )
        if with_index:
            import numpy as np

            extra["index"] = np.asarray(columns["index"])
        yield Branches(*rows, extra_columns=extra), columns["offset"]


def decode_totals(decoder: _core.StreamDecoder) -> Totals:
    """Decode the counts of all runs and edges."""
    return _totals_of_columns(decoder.totals())


def decode_period_totals(
    decoder: _core.StreamDecoder, starts: Sequence[int]
) -> Iterator[tuple[int, Totals]]:
    """Decode the counts of each period of time: its number, and its totals."""
    while (found := decoder.next_period_totals(starts)) is not None:
        period, columns = found
        yield period, _totals_of_columns(columns)


def _totals_of_columns(columns: dict[str, Any]) -> Totals:
    runs = RunTotals(*(columns[f"run_{name}"] for name, _, _ in RunTotals.FIELDS))
    edges = EdgeTotals(*(columns[f"edge_{name}"] for name, _, _ in EdgeTotals.FIELDS))
    return Totals(
        runs.replace(uncounted=columns["uncounted_runs"]),
        edges.replace(uncounted_by_kind=dict(enumerate(columns["uncounted_edges"]))),
    )


def filtered_table(
    batch_type: type[B],
    batches: Callable[[], Iterator[B]],
    row_filter: RowFilter | None,
    extra_columns: tuple[str, ...] = (),
) -> Table[B]:
    """Return a table of the selected rows; empty if `row_filter` is None.

    `extra_columns`: the extra columns that the batches have. Raises UsageError if rows of this type
    lack the time or address that the filter needs.
    """
    if row_filter is None:
        return Table(batch_type, lambda: iter(()), extra_columns)
    row_filter.check_batch_type(batch_type)
    if row_filter == RowFilter():
        return Table(batch_type, batches, extra_columns)
    if SPACE_COLUMNS[0] in extra_columns or row_filter.ranges_by_space is None:
        return Table(batch_type, lambda: row_filter.filter_batches(batches()), extra_columns)
    # The filter needs the address space, but the table does not have this column.
    return Table(
        batch_type,
        lambda: (
            each.without_columns(SPACE_COLUMNS) for each in row_filter.filter_batches(batches())
        ),
        extra_columns,
    )


def events_from_rows(rows: Iterator[Rows]) -> Iterator[Events]:
    """Return the events of batches of rows."""
    return (each.events for each in rows if len(each.events))


def sync_points_from_rows(rows: Iterator[Rows]) -> Iterator[SyncPoints]:
    """Yield the PSB events of batches of rows, as sync points."""
    for events in events_from_rows(rows):
        is_psb = events.kind == EventKind.PSB
        if is_psb.any():
            psbs = events.select_rows(is_psb)
            yield SyncPoints(psbs.offset, psbs.ip, psbs.time, extra_columns=psbs.extra_columns)


def count_runs(blocks: Table[Rows], max_counters: int = 0) -> RunTotals:
    """Count equal runs. Keeps the first `max_counters` of them, as `BoundedCounter` does."""
    spaces, dtypes = _space_columns(blocks)
    counter = BoundedCounter(f"u8 u4{dtypes}", max_counters)
    for each in blocks:
        counter.add_rows(
            each.start, each.instructions, *(each.extra_columns[name] for name in spaces)
        )
    start, instructions, *extra, count = counter.take_sorted_columns()
    runs = RunTotals(
        start, instructions, count, extra_columns=dict(zip(spaces, extra, strict=True))
    )
    return runs.replace(uncounted=counter.uncounted)


def count_edges(
    branches: Table[Branches], max_counters: int = 0, *, by_process: bool = False
) -> EdgeTotals:
    """Count equal edges. Keeps the first `max_counters` of them, as `BoundedCounter` does.

    `by_process`: each process separately, with the column `pid`.
    """
    names, dtypes = _space_columns(branches)
    if by_process:
        names, dtypes = [*names, "pid"], f"{dtypes} i4"
    counter = BoundedCounter(f"u8 u8 u1{dtypes}", max_counters, kind_column=2)
    for each in branches:
        extra = {name: each.extra_columns[name] for name in names}
        if by_process:
            extra["pid"] = _merge_kernel_pids(each, extra["pid"])
        counter.add_rows(each.source, each.target, each.kind, *extra.values())
    source, target, kind, *columns, count = counter.take_sorted_columns()
    edges = EdgeTotals(
        source, target, kind, count, extra_columns=dict(zip(names, columns, strict=True))
    )
    return edges.replace(uncounted_by_kind=counter.uncounted_by_kind)


def _merge_kernel_pids(branches: Branches, pids: NDArray[Any]) -> NDArray[Any]:
    """Return the process of each branch; KERNEL for branches within the kernel."""
    import numpy as np

    is_kernel = np.minimum(branches.source, branches.target) >= np.uint64(KERNEL_START)
    return np.where(is_kernel, np.int32(KERNEL_PID), pids)


def _space_columns(table: Table[B]) -> tuple[list[str], str]:
    """Return the address space columns of a table, and their dtypes."""
    names = [name for name in SPACE_COLUMNS if name in table.extra_columns]
    return names, " u4" * len(names)


def concatenate_tables(parts: list[tuple[Table[B], int, int]], batch_type: type[B]) -> Table[B]:
    """One table of several streams: (table, tid, cpu) each. Adds the columns `tid` and `cpu`."""
    import numpy as np

    common = parts[0][0].extra_columns if parts else ()
    # Space numbers are dropped unless all streams have them.
    common = tuple(
        name for name in common if all(name in table.extra_columns for table, _, _ in parts)
    )
    dropped = (*_THREAD_COLUMNS, *(name for name in SPACE_COLUMNS if name not in common))

    def batches() -> Iterator[B]:
        for table, tid, cpu in parts:
            for batch in table:
                rows = len(batch)
                tids = batch.extra_columns.get("tid", np.full(rows, tid, np.int32))
                cpus = batch.extra_columns.get("cpu", np.full(rows, cpu, np.int32))
                yield batch.without_columns(dropped).with_columns(tid=tids, cpu=cpus)

    kept = [name for name in common if name not in _THREAD_COLUMNS]
    return Table(batch_type, batches, (*kept, "tid", "cpu"))


def concatenate_ledgers(parts: list[tuple[Ledger, int, int]]) -> Ledger:
    """One ledger of several streams: (ledger, tid, cpu) each. Adds the columns `tid` and `cpu`."""
    import numpy as np

    texts: dict[str, int] = {"": 0}
    found = []
    for ledger, tid, cpu in parts:
        numbers = np.array([texts.setdefault(text, len(texts)) for text in ledger.texts], np.uint32)
        extra = {
            name: np.full(len(ledger), n, np.int32) for name, n in (("tid", tid), ("cpu", cpu))
        }
        found.append(ledger.replace(error=numbers[ledger.error]).with_columns(**extra))
    columns = Ledger.concatenate(iter(found), ("tid", "cpu"))
    extra = {name: columns.pop(name) for name in ("tid", "cpu")}
    return Ledger(**columns, texts=tuple(texts), extra_columns=extra)
