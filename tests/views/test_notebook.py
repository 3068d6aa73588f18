"""How traces, tables and call trees look in a notebook, and their data frames."""

from __future__ import annotations

import re
import sys
from base64 import b64decode
from collections.abc import Iterator
from dataclasses import replace
from html import unescape
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

import rtit
from rtit.errors import UnsupportedError
from rtit.packets import encode
from rtit.trace import Branches, Calls, CallTree, Table, Trace
from rtit.views import notebook
from support.recordings import Recorder
from support.streams import SYNC

BACK = encode("TIP", ip_bytes=6, payload=0x1000)
HOSTILE = "<script>alert('x')</script>\n\x1b[31m&\""
ESCAPED = "<script>alert('x')</script>\\n\\x1b[31m&\""


@pytest.fixture
def trace() -> Trace:
    """Return a trace of 25 times jmp rax."""
    return rtit.decode(SYNC + BACK * 25, rtit.Image().add(0x1000, b"\xff\xe0"))


def cells(html: str) -> list[list[str]]:
    rows = re.findall(r"<tr>(.*?)</tr>", html)
    return [[unescape(cell) for cell in re.findall(r"<t[hd][^>]*>(.*?)</t", row)] for row in rows]


def caption(html: str) -> str:
    last: str = re.findall(r"<p>(.*?)</p>", html)[-1]
    return last


def test_table_shows_first_rows_and_number_of_rows_after_one_decoding(trace: Trace) -> None:
    decoded = 0
    branches = trace.branches()

    def batches() -> Iterator[Branches]:
        nonlocal decoded
        for batch in branches:
            decoded += len(batch)
            for at in range(0, len(batch), 4):  # the head is in several batches
                yield batch.select_rows(slice(at, at + 4))

    html = Table(Branches, batches, branches.extra_columns)._repr_html_()
    head, *rows = cells(html)
    assert head == ["source", "target", "kind", "time", "tid", "cpu"]
    assert rows == [["0x1000", "0x1000", "indirect jump", str(1 << 20), "-1", "-1"]] * 10
    assert caption(html) == "10 of 25 rows"
    assert decoded == 25


def test_long_table_is_decoded_up_to_a_limit(trace: Trace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notebook, "_MAX_COUNTED", 20)
    table, decoded = trace.branches(), 0

    def batches() -> Iterator[Branches]:
        nonlocal decoded
        for at in range(5):
            decoded += 15
            yield next(iter(table)).select_rows(slice(at, at + 15))

    html = Table(Branches, batches, table.extra_columns)._repr_html_()
    assert caption(html) == "10 of more than 20 rows"
    assert decoded == 30


def test_small_and_empty_tables_say_how_many_rows_they_have(trace: Trace) -> None:
    assert caption(trace.branches(rtit.Selection(head=3))._repr_html_()) == "3 rows"
    edges = trace.streams[0].edges()._repr_html_()
    assert cells(edges)[1] == ["0x1000", "0x1000", "indirect jump", "25"]
    assert caption(edges) == "1 row"
    empty = trace.branches(rtit.Selection(head=0))._repr_html_()
    assert (len(cells(empty)), caption(empty)) == (1, "0 rows")
    ledger = cells(trace.ledger()._repr_html_())
    assert ledger[1][:3] == ["0", str(len(SYNC + BACK * 25)), "exact"]
    assert cells(trace.blocks(timing=True)._repr_html_())[1][-3] == ""  # ipc: nan


def test_trace_shows_its_streams(trace: Trace) -> None:
    (one,) = trace.streams
    trace.streams[:] = [replace(one, tid=number, pid=7, name=HOSTILE) for number in range(30)]
    html = trace._repr_html_()
    assert len(cells(html)) == 1 + 20
    assert caption(html) == "20 of 30 streams"
    assert cells(html)[1] == [
        f"thread 0 ({ESCAPED})",
        "7",
        "0",
        "",
        str(len(SYNC) + 25 * len(BACK)),
    ]
    assert cells(trace.streams[0]._repr_html_()) == cells(html)[:2]
    assert "<script" not in html


def test_recording_shows_its_command_and_a_flame_graph(record: Recorder) -> None:
    trace = Trace(record([Path("/bin/echo"), "hello"]).data)
    assert "/bin/echo hello" in trace._repr_html_()
    html = trace.call_tree()._repr_html_()
    source = re.findall(r'<img src="data:image/svg\+xml;base64,([^"]*)"', html)
    picture = ElementTree.fromstring(b64decode(source[0]))
    titles = [each.text or "" for each in picture.iter("{http://www.w3.org/2000/svg}title")]
    assert any(title.startswith("_dl_start\n") for title in titles)
    instructions = trace.streams[0].counts().instructions
    assert titles[1].startswith(f"all\n{instructions:,} instructions")
    assert caption(html).endswith(f" nodes, {instructions:,} instructions")
    trace.close()
    assert "closed" in trace._repr_html_()


def test_empty_call_tree_has_no_picture() -> None:
    tree = CallTree(*(np.zeros(0, dtype) for _, dtype, _ in CallTree.FIELDS))
    assert tree._repr_html_() == "<p>0 nodes, 0 instructions</p>"


def test_names_are_escaped() -> None:
    batch = Calls(*(np.zeros(2, dtype) for _, dtype, _ in Calls.FIELDS))
    html = batch.replace(functions=(HOSTILE,), modules=("m",))._repr_html_()
    head, row, _ = cells(html)
    assert row[head.index("function")] == ESCAPED
    assert "<script" not in html
    assert "\n" not in html


@pytest.mark.parametrize("method", ["to_polars", "to_pandas", "to_arrow"])
def test_data_frames_have_all_rows_with_labels(trace: Trace, method: str) -> None:
    for library in {"to_polars": ["polars"], "to_arrow": ["pyarrow"]}.get(
        method, ["pandas", "pyarrow"]
    ):
        pytest.importorskip(library, reason=f"{library} is not installed")
    table = getattr(trace.branches(), method)()
    assert table.shape == (25, 6)
    assert [str(kind) for kind in table["kind"]] == ["indirect jump"] * 25
    batch = getattr(trace.streams[0].edges(), method)()
    assert [int(str(count)) for count in batch["count"]] == [25]


def test_missing_library_is_one_sentence(trace: Trace, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("polars", "pyarrow", "pandas"):
        monkeypatch.setitem(sys.modules, name, None)
    for method, libraries in (
        ("to_polars", ["polars"]),
        ("to_arrow", ["pyarrow"]),
        ("to_pandas", ["pandas", "pyarrow"]),
    ):
        sentence = f"{method} needs {' and '.join(libraries)}: pip install {' '.join(libraries)}"
        with pytest.raises(UnsupportedError, match=f"^{sentence}$"):
            getattr(trace.branches(), method)()
