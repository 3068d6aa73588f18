"""The tables of a trace as a query sees them: `TABLES` has a function for each.

The columns of packets, blocks, instructions, branches and calls are those of the tables in Python.
Labels and names of functions are texts, not numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np

from rtit.text_escaping import format_json
from rtit.trace.events import event_to_dict
from rtit.trace.tables import build_tables
from rtit.trace.tables.batch import LABELS_BY_BATCH, BranchKind, Table
from rtit.trace.tables.code_columns import (
    CODE_COLUMNS,
    STATE_COLUMNS,
    function_or_module,
    lookup_symbols,
)
from rtit.trace.tables.counts import UNCOUNTED_EXPLANATION
from rtit.trace.tables.packets import PACKET_BOUND_COLUMNS, Packets
from rtit.trace.tables.selection import LATEST, Selection
from rtit.trace.time.timing_samples import BOUND_COLUMNS, IPC_COLUMN

if TYPE_CHECKING:
    from rtit.image import Symbols
    from rtit.trace.events import TraceEvent
    from rtit.trace.stream import Stream
    from rtit.trace.tables.batch import Batch, Field
    from rtit.trace.tables.counts import EdgeTotals
    from rtit.trace.trace import Trace

TIMING_COLUMNS = (*BOUND_COLUMNS, IPC_COLUMN)
"""Columns of blocks, instructions and branches that a query has to name, as `CODE_COLUMNS`."""
_EVENTS_AT_ONCE = 1 << 12

Columns = tuple[Sequence["Field"], list[Any]]
"""The fields of a batch, and its columns."""


@dataclass(frozen=True, slots=True)
class Request:
    """The rows and columns that a query needs."""

    trace: Trace
    where: Selection
    names: frozenset[str]
    """The names in the query. Columns that take long are computed if their name is one of these."""
    report: Callable[[str], object]
    """Called with a sentence for each gap that only the reader of a table can see."""

    @property
    def streams(self) -> list[Stream]:
        """The selected streams, as `Trace.select` returns them."""
        return self.trace.select(self.where)

    @property
    def table_options(self) -> dict[str, Any]:
        """The arguments of `Trace.blocks` and similar tables that the query needs."""
        return {
            "timing": not self.names.isdisjoint(TIMING_COLUMNS),
            "extra_columns": [name for name in CODE_COLUMNS if name in self.names],
        }


@dataclass(frozen=True, slots=True)
class QueryTable:
    """A table: its fields, and a function that decodes its batches from the start."""

    fields: Sequence[Field]
    batches: Callable[[], Iterator[Columns]]


def _from_table(table: Table[Any]) -> QueryTable:
    return QueryTable(table.fields, lambda: map(_columns_of_batch, table))


def _from_code_table(table: Table[Any], request: Request) -> QueryTable:
    """Return a table of `Trace.blocks` and the like: one without streams has the columns, too."""
    if not request.streams:
        extra = (*request.table_options["extra_columns"], *table.extra_columns)
        table = Table(table.batch_type, lambda: iter(()), extra)
    return _from_table(table)


def _columns_of_batch(batch: Batch) -> Columns:
    return batch.fields, [*batch.columns().values()]


def _packets(request: Request) -> QueryTable:
    timing = request.where.time is not None or not request.names.isdisjoint(PACKET_BOUND_COLUMNS)
    parts = []
    for stream in request.where.select_streams(request.trace.streams):
        table = stream.packets(timing=timing)

        def sized(table: Table[Packets] = table, title: str = stream.title) -> Iterator[Packets]:
            for batch in table:
                if batch.bad is not None:
                    request.report(f"{title}: {batch.bad.length:,} bytes: {batch.bad.reason}")
                yield batch.with_columns(size=batch.size())

        row_filter = stream.row_filter(request.where)
        columns = (*table.extra_columns, "size")
        selected = build_tables.filtered_table(Packets, sized, row_filter, columns)
        parts.append((selected, stream.tid, stream.cpu))
    return _from_table(build_tables.concatenate_tables(parts, Packets))


def _blocks(request: Request) -> QueryTable:
    table = request.trace.blocks(request.where, **request.table_options)
    return _from_code_table(table, request)


def _instructions(request: Request) -> QueryTable:
    table = request.trace.instructions(request.where, **request.table_options)
    return _from_code_table(table, request)


def _branches(request: Request) -> QueryTable:
    options = request.table_options
    options["extra_columns"] = [
        name for name in options["extra_columns"] if name not in STATE_COLUMNS
    ]
    table = request.trace.branches(request.where, **options)
    return _from_code_table(table, request)


def _calls(request: Request) -> QueryTable:
    return _from_table(request.trace.calls(request.where))


def _functions(request: Request) -> QueryTable:
    fields: list[Field] = [
        ("function", "u4", LABELS_BY_BATCH),
        ("module", "u4", LABELS_BY_BATCH),
        ("calls", "u8", None),
        ("self_instructions", "u8", None),
        ("total_instructions", "u8", None),
    ]

    def batches() -> Iterator[Columns]:
        found = request.trace.call_tree(request.where).by_function()
        numbers = np.array([*found.values()], np.uint64).reshape(-1, 3)
        names = [name for name, _ in found], [module for _, module in found]
        yield _encode_texts(fields, [*names, *map(np.ascontiguousarray, numbers.T)])

    return QueryTable(fields, batches)


def _events(request: Request) -> QueryTable:
    fields: list[Field] = [
        ("event", "u4", LABELS_BY_BATCH),
        ("time", "u8", None),
        ("offset", "u8", None),
        ("details", "u4", LABELS_BY_BATCH),
        ("tid", "i4", None),
        ("cpu", "i4", None),
    ]

    def batches() -> Iterator[Columns]:
        for stream in request.streams:
            events = stream.events(request.where)
            while part := [*islice(events, _EVENTS_AT_ONCE)]:
                columns = [
                    [each.event_name for each in part],
                    np.array([each.time for each in part], np.uint64),
                    np.array([each.offset for each in part], np.uint64),
                    [*map(_event_details, part)],
                    np.full(len(part), stream.tid, np.int32),
                    np.full(len(part), stream.cpu, np.int32),
                ]
                yield _encode_texts(fields, columns)

    return QueryTable(fields, batches)


def _event_details(event: TraceEvent) -> str:
    """Return the fields that only this kind of event has, as JSON."""
    common = ("event", "time", "offset", "row")
    own = {name: value for name, value in event_to_dict(event).items() if name not in common}
    return format_json(own)


def _edges(request: Request) -> QueryTable:
    ends = {"function": ("source", "space"), "target_function": ("target", "target_space")}
    wanted = [name for name in ends if name in request.names]
    fields: list[Field] = [
        ("source", "u8", None),
        ("target", "u8", None),
        ("kind", "u1", BranchKind),
        ("count", "u8", None),
        ("tid", "i4", None),
        ("pid", "i4", None),
        ("cpu", "i4", None),
        *((name, "u4", LABELS_BY_BATCH) for name in wanted),
    ]

    def batches() -> Iterator[Columns]:
        for stream in request.streams:
            edges = stream.edges_by_process(request.where)
            if edges.uncounted:
                request.report(
                    f"{stream.title}: {edges.uncounted:,} transfers are {UNCOUNTED_EXPLANATION}"
                )
            owner = {"tid": stream.tid, "pid": stream.pid, "cpu": stream.cpu}
            columns: dict[str, Any] = {
                name: np.full(len(edges), number, np.int32) for name, number in owner.items()
            }
            columns |= edges.columns()
            for name in wanted:
                columns[name] = _function_names(request.trace.symbols, stream, edges, *ends[name])
            yield _encode_texts(fields, [columns[name] for name, _, _ in fields])

    return QueryTable(fields, batches)


def _function_names(
    symbols: Symbols, stream: Stream, edges: EdgeTotals, address: str, space: str
) -> list[str]:
    columns = edges.columns()
    # Edges have no time: the names are those of the code at the end of the recording.
    times = np.full(len(edges), LATEST - 1, np.uint64)
    numbers, _ = lookup_symbols(symbols, stream, columns, times, columns[address], space)
    names = {
        number: function_or_module(*symbols.table[number]) for number in np.unique(numbers).tolist()
    }
    return [names[number] for number in numbers.tolist()]


def _encode_texts(fields: Sequence[Field], columns: Sequence[Any]) -> Columns:
    """Return a batch in which the texts of `LABELS_BY_BATCH` columns are numbers with labels."""
    encoded_fields: list[Field] = []
    encoded: list[Any] = []
    for (name, dtype, labels), column in zip(fields, columns, strict=True):
        if labels is LABELS_BY_BATCH:
            numbers: dict[str, int] = {}
            codes = [numbers.setdefault(text, len(numbers)) for text in column]
            encoded_fields.append((name, dtype, tuple(numbers) or LABELS_BY_BATCH))
            encoded.append(np.array(codes, np.uint32))
        else:
            encoded_fields.append((name, dtype, labels))
            encoded.append(column)
    return encoded_fields, encoded


TABLES: dict[str, Callable[[Request], QueryTable]] = {
    "packets": _packets,
    "blocks": _blocks,
    "instructions": _instructions,
    "branches": _branches,
    "edges": _edges,
    "calls": _calls,
    "functions": _functions,
    "events": _events,
}
"""The tables by name."""
