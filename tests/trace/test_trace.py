"""`Trace` objects: repr, and use after close."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path

import pytest

from rtit.errors import ClosedError, PerfDataError
from rtit.perfdata import Writer
from rtit.trace import Trace

PSB = bytes([0x02, 0x82] * 8)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    with Writer(
        tmp_path / "perf.data",
        config=0x2601,
        cpuid="GenuineIntel,6,94,3",
        cmdline=["rtit", "record", *["a" * 20] * 8],
    ) as out:
        out.comm(7, 7, 1, "name")
        out.auxtrace(7, 7, PSB, None, 1)
        out.auxtrace(8, 7, PSB * 100, None, 1)
    return tmp_path / "perf.data"


def test_repr_of_trace_and_stream_shows_size_and_titles(data: Path) -> None:
    with Trace(data) as trace:
        shown = repr(trace)
        streams = repr(trace.streams)
    assert shown.startswith(f"<Trace '{data}': rtit record aaaa")
    assert shown.endswith("...; 2 buffers, 1,616 bytes of PT>")
    assert len(shown) < len(str(data)) + 120
    assert streams == (
        "[<Stream thread 7 (name), 16 bytes of PT>, <Stream thread 8, 1,600 bytes of PT>]"
    )
    assert repr(trace) == f"<Trace '{data}', closed>"


def test_closed_trace_raises_closed_error(data: Path) -> None:
    """Objects taken from it before raise, too; nothing crashes or reads half a file."""
    with Trace(data) as trace:
        stream = trace.streams[1]
        begun = stream.chunks()
        next(begun)
        counted = trace.streams[0]
        assert counted.counts().packets == {"PSB": 1}
        stream.native_decoder()
    trace.close()
    questions: list[Callable[[], object]] = [
        lambda: trace.data,
        lambda: trace.incomplete,
        lambda: trace.clock,
        lambda: trace.filter,
        stream.read,
        lambda: list(stream.scan()),
        lambda: list(stream.rows()),
        stream.counts,
        stream.ledger,
    ]
    for ask in questions:
        with pytest.raises(ClosedError, match=f"{data} is closed"):
            ask()
    # It is a ValueError, as of any closed file of Python.
    with pytest.raises(ValueError, match="is closed"):
        stream.native_decoder()
    # Cached values stay available.
    assert counted.counts().packets == {"PSB": 1}
    assert stream.title == "thread 8"
    assert stream.size == 1600


def test_trace_closed_before_first_use_raises_closed_error(data: Path) -> None:
    trace = Trace(data)
    trace.close()
    for ask in (lambda: trace.streams, lambda: trace.images, lambda: trace.comms):
        with pytest.raises(ClosedError):
            ask()


def test_trace_closed_during_iteration_raises_closed_error(tmp_path: Path) -> None:
    with Writer(tmp_path / "perf.data", config=0x2601, cpuid="GenuineIntel,6,94,3") as out:
        out.auxtrace(7, 7, PSB * (1 << 18), None, 1)
    trace = Trace(tmp_path / "perf.data")
    parts = trace.streams[0].chunks()
    first = next(parts)
    trace.close()
    assert bytes(first[:16]) == PSB
    with pytest.raises(ClosedError):
        next(parts)


def test_trace_reads_an_open_file(data: Path) -> None:
    with data.open("rb") as file, Trace(file) as trace:
        assert trace.path == str(data)
        assert [each.size for each in trace.streams] == [16, 1600]
    # From its position on; a file without descriptor is copied.
    for start in (0, 5):
        source = io.BytesIO(b"12345" + data.read_bytes() if start else data.read_bytes())
        source.seek(start)
        with Trace(source) as trace:
            assert [each.size for each in trace.streams] == [16, 1600]
            assert trace.path == "a pipe"
    with pytest.raises(PerfDataError, match="empty"):
        Trace(io.BytesIO())
