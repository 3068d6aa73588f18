"""Formats blocks, branches and edges as lines of text or as JSON objects.

Each function returns chunks of whole UTF-8 lines, one chunk per batch.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from os.path import basename
from typing import TYPE_CHECKING, Any

from rtit.text_escaping import escape_control_characters, format_json
from rtit.trace.tables.batch import BranchKind, End, FunctionBatch, LabelledNumber, category_labels
from rtit.trace.tables.build_tables import BATCH_ROWS
from rtit.trace.tables.code_columns import lookup_symbols
from rtit.trace.tables.counts import UNCOUNTED_EXPLANATION
from rtit.trace.tables.selection import LATEST, Selection
from rtit.views.field_names import BLOCK_FIELDS, BRANCH_FIELDS, CODE_FIELDS, STATE_FIELDS

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from rtit.trace import Batch, Stream, Trace

    _Column = (
        tuple[str, NDArray[Any], int]
        | tuple[str, NDArray[Any], list[str]]
        | tuple[str, NDArray[Any], NDArray[Any], list[tuple[str, bool]]]
    )


def format_blocks(
    trace: Trace,
    stream: Stream,
    selection: Selection,
    *,
    timing: bool = False,
    as_json: bool = False,
    fields: Collection[str] = ("start", "instructions", "end"),
) -> Iterator[bytes]:
    """Return lines of instruction runs, with the `fields` of `BLOCK_FIELDS`."""
    formatter = _RowFormatter(trace, stream, End, timing=timing)
    columns = tuple(name for field in fields for name in BLOCK_FIELDS[field])
    found = stream.blocks(selection, timing=timing, extra_columns=_code_fields(fields))
    return formatter.format_batches(found, columns, as_json=as_json)


def format_branches(
    trace: Trace,
    stream: Stream,
    selection: Selection,
    *,
    timing: bool = False,
    as_json: bool = False,
    fields: Collection[str] = ("source", "target", "kind"),
) -> Iterator[bytes]:
    """Return lines of branches and other transfers, with the `fields` of `BRANCH_FIELDS`."""
    formatter = _RowFormatter(trace, stream, BranchKind, timing=timing)
    columns = tuple(name for field in fields for name in BRANCH_FIELDS[field])
    found = stream.branches(selection, timing=timing, extra_columns=_code_fields(fields))
    return formatter.format_batches(found, columns, as_json=as_json)


def _code_fields(fields: Iterable[str]) -> list[str]:
    return [name for name in fields if name in (*CODE_FIELDS, *STATE_FIELDS)]


def format_edges(
    trace: Trace,
    stream: Stream,
    selection: Selection,
    *,
    top: int | None = None,
    as_json: bool = False,
    warn: Callable[[str], object] = str,
) -> Iterator[bytes]:
    """Return lines of the `top` most frequent edges, with their counts.

    A stream with threads of several processes has the process in place of the thread, KERNEL for
    code of no process. `warn` gets a sentence if some transfers have no count of their own.
    """
    import numpy as np

    found = stream.edges_by_process(selection)
    if found.uncounted:
        warn(f"{stream.title}: {found.uncounted:,} transfers are {UNCOUNTED_EXPLANATION}")
    # edges of equal count stay in the order of their addresses
    order = np.argsort(found.count.max(initial=0) - found.count, kind="stable")[:top]
    parts = (
        found.select_rows(order[at : at + BATCH_ROWS]) for at in range(0, len(order), BATCH_ROWS)
    )
    formatter = _RowFormatter(trace, stream, BranchKind, timing=False)
    columns = ("count", "source", "name of source", "target", "name of target", "kind")
    return formatter.format_batches(parts, columns, as_json=as_json)


def format_events(
    trace: Trace, stream: Stream, selection: Selection, *, as_json: bool = False
) -> Iterator[bytes]:
    """Return lines of interrupts, transactions, PTWRITEs and power events, below a title."""
    from rtit.trace.events import describe_event, event_to_dict

    if not as_json:
        yield _text_line(f"# {stream.title}, {stream.size:,} bytes")
    clock = trace.clock
    for event in stream.events(selection):
        time = event.time if clock is None else clock.to_nanoseconds(event.time)
        if as_json:
            line = {"stream": stream.title, "nanoseconds": time if clock else None}
            yield f"{format_json(line | event_to_dict(event))}\n".encode()
        else:
            yield _text_line(f"{time:>15} {event.offset:08x}  {describe_event(event)}")


def _text_line(text: str) -> bytes:
    return f"{escape_control_characters(text)}\n".encode()


class _RowFormatter:
    """Formats columns of a stream's batches."""

    def __init__(
        self, trace: Trace, stream: Stream, kinds: type[LabelledNumber], *, timing: bool
    ) -> None:
        self._trace = trace
        self._stream = stream
        self._timing = timing
        self._labels = category_labels(kinds)

    def format_batches(
        self, batches: Iterable[Batch], columns: tuple[str, ...], *, as_json: bool
    ) -> Iterator[bytes]:
        """Return the lines of each batch."""
        from rtit._core import table_lines

        for batch in batches:
            if as_json:
                yield self._json_lines(batch)
                continue
            found = self._thread_columns(batch)
            if self._timing:
                found += [self._time_column(batch, name) for name in ("earliest", "latest")]
            yield table_lines(found + [self._value_column(batch, name) for name in columns])

    def _thread_columns(self, batch: Batch) -> list[_Column]:
        import numpy as np

        columns = batch.columns()
        tids = columns.get("tid", columns.get("pid"))
        if tids is None and self._stream.tid >= 0 and not self._stream.has_several_threads:
            tids = np.full(len(batch), self._stream.tid, np.int32)
        return [("signed", tids.astype(np.int64).view(np.uint64), 7)] if tids is not None else []

    def _value_column(self, batch: Batch, name: str) -> _Column:
        import numpy as np

        if name.startswith("name of "):
            return self._name_columns(batch, name.removeprefix("name of "))
        if name == "time":
            return self._time_column(batch, name)
        values = getattr(batch, name).astype(np.uint64, copy=False)
        if name in ("end", "kind"):
            return "words", values, [f"{each:13}" for each in self._labels]
        if name in ("function", "file"):
            texts = _names_of_batch(batch, name)
            shown = [escape_control_characters(each) or "-" for each in texts]
            return "words", values, [f"{each:32}" for each in shown]
        if name == "line":
            return "decimal", np.where(values != 0, values, np.uint64(LATEST)), 5
        form, width = {
            "count": ("commas", 12),
            "cpl": ("decimal", 1),
            "index": ("decimal", 12),
            "instructions": ("decimal", 5),
        }.get(name, ("hexadecimal", 16))
        return form, values, width

    def _name_columns(self, batch: Batch, name: str) -> _Column:
        import numpy as np

        columns = batch.columns()
        addresses, space = columns[name], "target_space" if name == "target" else "space"
        times = columns.get("time", np.full(len(batch), LATEST - 1, np.uint64))
        numbers, offsets = lookup_symbols(
            self._trace.symbols, self._stream, columns, times, addresses, space
        )
        used = np.flatnonzero(np.bincount(numbers))
        names = [_module_or_function(*self._trace.symbols.table[each]) for each in used.tolist()]
        found = np.searchsorted(used, numbers)
        if name == "target":
            # The target of a system call may be unknown.
            found[addresses == 0] = len(names)
            names.append(("-", False))
        return "locations", found.astype(np.uint64), offsets, names

    def _time_column(self, batch: Batch, name: str) -> _Column:
        import numpy as np

        ticks, clock = getattr(batch, name), self._trace.clock
        times = ticks if clock is None else clock.nanoseconds(ticks)
        known = (ticks != 0) & (ticks != np.uint64(LATEST))
        return "decimal", np.where(known, times, np.uint64(LATEST)), 15

    def _json_lines(self, batch: Batch) -> bytes:
        own = zip((name for name, _, _ in batch.FIELDS), batch.column_lists(), strict=True)
        texts = dict(own) | {name: column.tolist() for name, column in batch.extra_columns.items()}
        forms = dict.fromkeys(texts, "%d")
        for name in texts.keys() & {"end", "kind"}:
            words = [json.dumps(each) for each in self._labels]
            texts[name], forms[name] = [words[each] for each in texts[name]], "%s"
        for name in texts.keys() & {"function", "file"}:
            words = [format_json(each) for each in _names_of_batch(batch, name)]
            texts[name], forms[name] = [words[each] for each in texts[name]], "%s"
        for name in texts.keys() & {"frequency", "ipc"}:
            texts[name] = ["null" if math.isnan(each) else json.dumps(each) for each in texts[name]]
            forms[name] = "%s"
        title = format_json(self._stream.title).replace("%", "%%")
        fields = "".join(f', "{name}": {form}' for name, form in forms.items())
        line = f'{{"stream": {title}{fields}}}\n'
        return "".join(line % row for row in zip(*texts.values(), strict=True)).encode()


def _names_of_batch(batch: Batch, column: str) -> Sequence[str]:
    assert isinstance(batch, FunctionBatch)
    return batch.functions if column == "function" else batch.files


def _module_or_function(function: str, module: str) -> tuple[str, bool]:
    """Return the text, and whether it is a file name, as `SymbolLocation` does."""
    return escape_control_characters(function or basename(module)), not function  # noqa: PTH119 - a name
