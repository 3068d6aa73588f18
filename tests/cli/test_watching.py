"""The line that shows how far a reading verb is: on a terminal only, and gone in the end."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator

import pytest

from rtit.cli.progress import StatusLine, show_progress
from rtit.image import Image
from rtit.trace import Settings, Stream
from support.streams import ChunkedBytes

WHOLE = bytes(range(200)) * 1000


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """What the clock shows; a second more each time it is looked at."""
    now = [0.0]

    def tick() -> float:
        now[0] += 1
        return now[0]

    monkeypatch.setattr("rtit.cli.progress.time.monotonic", tick)
    return now


def as_stderr(monkeypatch: pytest.MonkeyPatch, stream: io.StringIO) -> io.StringIO:
    # Within the test: pytest sets it anew behind the fixtures.
    monkeypatch.setattr(sys, "stderr", stream)
    return stream


def streams() -> list[Stream]:
    return [Stream(ChunkedBytes(WHOLE, 150_000), Image(), Settings(), tid=tid) for tid in (1, 2)]


def shown(text: str) -> list[str]:
    return [line for line in text.split("\r\x1b[K") if line]


def test_how_far_it_is(clock: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = as_stderr(monkeypatch, Terminal())
    both = streams()
    sources = [stream.source for stream in both]
    with show_progress("report", both, prints=False):
        assert [stream.read() for stream in both] == [WHOLE, WHOLE]
        assert [stream.size for stream in both] == [len(WHOLE)] * 2
        lines = shown(terminal.getvalue())
        for stream in both:
            stream.read()
    assert lines[0].startswith("rtit report: ")
    assert lines[0].endswith(" of 400,000 bytes of PT, 2 s")
    shares = [int(line.split()[2].rstrip("%")) for line in lines]
    assert shares == sorted(shares)
    assert len(shares) > 4
    assert shares[-1] == 100
    # What is read again counts once, and the line is gone in the end.
    assert shown(terminal.getvalue())[-1].startswith("rtit report: 100% of 400,000")
    assert terminal.getvalue().endswith("\r\x1b[K")
    assert [stream.source for stream in both] == sources


def test_gone_after_an_error(clock: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = as_stderr(monkeypatch, Terminal())
    [one, _] = streams()

    def fail() -> None:
        one.read()
        assert shown(terminal.getvalue())
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), show_progress("report", [one], prints=False):
        fail()
    assert terminal.getvalue().endswith("\r\x1b[K")
    assert isinstance(one.source, ChunkedBytes)


def test_not_in_the_way_of_output(clock: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = as_stderr(monkeypatch, Terminal())
    monkeypatch.setattr(sys, "stdout", Terminal())
    with show_progress("packets", both := streams(), prints=True):
        both[0].read()
    assert terminal.getvalue() == ""
    with show_progress("report", both, prints=False):
        both[0].read()
    assert shown(terminal.getvalue())


def test_nothing_in_files(clock: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    file = as_stderr(monkeypatch, io.StringIO())
    with show_progress("report", both := streams(), prints=False):
        both[0].read()
    assert file.getvalue() == ""


def test_nothing_of_what_is_soon_over(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = as_stderr(monkeypatch, Terminal())
    seconds: Iterator[float] = iter([0.0, 1.9, 2.0, 2.4, 2.5])
    monkeypatch.setattr("rtit.cli.progress.time.monotonic", lambda: next(seconds))
    line = StatusLine(terminal)
    due = []
    for text in ("a", "b", "c", "d"):
        due.append(line.is_due())
        if due[-1]:
            line.show(text)
    assert due == [False, True, False, True]
    assert shown(terminal.getvalue()) == ["b", "d"]


def test_an_empty_stream(clock: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = as_stderr(monkeypatch, Terminal())
    empty = Stream(ChunkedBytes(b""), Image(), Settings())
    with show_progress("report", [empty], prints=False):
        assert empty.read() == b""
    assert terminal.getvalue() == ""
