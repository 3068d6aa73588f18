"""HTML that shows traces, tables and call trees in a notebook.

Names come from recordings: all text is escaped. A call tree is an `<img>`, in which no script runs.
"""

from __future__ import annotations

import math
from base64 import b64encode
from collections.abc import Iterable, Sequence
from functools import singledispatch
from html import escape
from itertools import chain
from typing import TYPE_CHECKING, Any

from rtit.errors import RtitError
from rtit.text_escaping import escape_control_characters
from rtit.trace import Batch, CallTree, Stream, Table, Trace
from rtit.trace.tables.batch import category_labels
from rtit.views.call_tree import merge_functions
from rtit.views.flame_graph import flame_graph

if TYPE_CHECKING:
    from rtit.trace.notebook_display import NotebookDisplay

_ROWS, _STREAMS = 10, 20
_MAX_COUNTED = 10_000_000
"""At most this number of rows of a table is decoded and counted."""
_ADDRESSES = frozenset({"ip", "start", "last", "source", "target", "call_site", "entry"})
"""Columns that are shown in hexadecimal, in tables with addresses."""
_GRAPH_WIDTH, _GRAPH_DEPTH, _GRAPH_SHARE = 960, 24, 0.002


@singledispatch
def draw(value: NotebookDisplay) -> str:
    """Return the HTML of a value."""
    return _paragraph(repr(value))


@draw.register
def _(trace: Trace) -> str:
    try:
        streams, notes = trace.streams, [" ".join(trace.command_line)]
    except RtitError:  # it is closed, or cannot be read
        return _paragraph(repr(trace))
    if trace.incomplete is not None:
        notes.append(f"incomplete: {trace.incomplete}")
    notes.append(_shown(_STREAMS, len(streams), "stream"))
    title = f"<p><b>{_text(trace.path or 'raw PT')}</b></p>"
    shown = _html_table(_STREAM_COLUMNS, map(_stream_cells, streams[:_STREAMS]))
    return title + "".join(map(_paragraph, filter(None, notes))) + shown


@draw.register
def _(stream: Stream) -> str:
    return _html_table(_STREAM_COLUMNS, [_stream_cells(stream)])


@draw.register
def _(batch: Batch) -> str:
    return _rows_html([batch.select_rows(slice(0, _ROWS))], len(batch))


@draw.register
def _(table: Table) -> str:  # type: ignore[type-arg]  # singledispatch needs a class
    head: list[Batch] = []
    missing, count = _ROWS, 0
    batches = iter(table)
    while count <= _MAX_COUNTED and (batch := next(batches, None)) is not None:
        if missing > 0 and len(batch):
            head.append(batch.select_rows(slice(0, missing)))
            missing -= len(head[-1])
        count += len(batch)
    if not head:
        names = [name for name, _, _ in table.fields]
        return _html_table(names, []) + _paragraph("0 rows")
    return _rows_html(head, count)


@draw.register
def _(tree: CallTree) -> str:
    caption = f"{len(tree):,} nodes, {int(tree.self_instructions.sum()):,} instructions"
    if not len(tree):
        return _paragraph(caption)
    titles = {tid: f"thread {tid}" for tid in set(tree.tid.tolist())}
    root = merge_functions(tree, threads=titles if len(titles) > 1 else {})
    picture = b"".join(
        flame_graph(
            root,
            "Call tree",
            min_share=_GRAPH_SHARE,
            max_depth=_GRAPH_DEPTH,
            width=_GRAPH_WIDTH,
        )
    )
    source = f"data:image/svg+xml;base64,{b64encode(picture).decode()}"
    return (
        f'<img src="{source}" width="{_GRAPH_WIDTH}" style="max-width: 100%; height: auto" '
        f'alt="Flame graph">{_paragraph(caption)}'
    )


_STREAM_COLUMNS = ("stream", "pid", "tid", "cpu", "bytes of PT")


def _stream_cells(stream: Stream) -> list[str]:
    return [
        stream.title,
        *("" if number < 0 else str(number) for number in (stream.pid, stream.tid, stream.cpu)),
        f"{stream.size:,}",
    ]


def _rows_html(head: Sequence[Batch], total: int) -> str:
    """Return the rows of batches, and how many there are in all."""
    rows = [*chain.from_iterable(map(_batch_cells, head))]
    names = [name for name, _, _ in head[0].fields]
    return _html_table(names, rows) + _paragraph(_shown(_ROWS, total, "row"))


def _shown(most: int, total: int, noun: str) -> str:
    """Return how many are shown, at most `most`, of how many."""
    if total > _MAX_COUNTED:
        return f"{most} of more than {_MAX_COUNTED:,} {noun}s"
    count = f"{total:,} {noun}{'' if total == 1 else 's'}"
    return count if total <= most else f"{most} of {count}"


def _batch_cells(batch: Batch) -> Iterable[tuple[str, ...]]:
    columns, has_address = batch.columns(), batch.ADDRESS_COLUMNS is not None
    return zip(
        *(
            [
                _cell(category_labels(labels), value, as_hex=has_address and name in _ADDRESSES)
                for value in columns[name].tolist()
            ]
            for name, _, labels in batch.fields
        ),
        strict=True,
    )


def _cell(labels: Sequence[str], value: Any, *, as_hex: bool) -> str:
    if labels:
        return str(labels[value])
    if isinstance(value, float):
        return "" if math.isnan(value) else f"{value:.4g}"
    return f"{value:#x}" if as_hex else str(value)


def _html_table(names: Iterable[str], rows: Iterable[Sequence[str]]) -> str:
    def line(cells: Iterable[str], tag: str) -> str:
        each = (f'<{tag} style="white-space: nowrap">{_text(cell)}</{tag}>' for cell in cells)
        return f"<tr>{''.join(each)}</tr>"

    body = "".join(line(row, "td") for row in rows)
    return f"<table><thead>{line(names, 'th')}</thead><tbody>{body}</tbody></table>"


def _paragraph(text: str) -> str:
    return f"<p>{_text(text)}</p>"


def _text(text: str) -> str:
    return escape(escape_control_characters(text))
