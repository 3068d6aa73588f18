"""The progress line of decoding commands: on terminals only, and erased at the end."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from rtit.cli.main import main
from rtit.cli.progress import StatusLine, describe_share, show_progress
from rtit.image import Image
from rtit.trace import Settings, Stream
from support.recordings import Recorder
from support.streams import ChunkedBytes

PACKETS = bytes(range(200)) * 1000


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def ticking_clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time of a clock that advances one second at each call."""
    now = [0.0]

    def tick() -> float:
        now[0] += 1
        return now[0]

    monkeypatch.setattr("rtit.cli.progress.time.monotonic", tick)
    return now


def replace_stderr(monkeypatch: pytest.MonkeyPatch, stream: io.StringIO) -> io.StringIO:
    # Called within the test, since pytest replaces sys.stderr after the fixtures.
    monkeypatch.setattr(sys, "stderr", stream)
    return stream


def two_streams() -> list[Stream]:
    return [Stream(ChunkedBytes(PACKETS, 150_000), Image(), Settings(), tid=tid) for tid in (1, 2)]


def shown_lines(text: str) -> list[str]:
    return [line for line in text.split("\r\x1b[K") if line]


def test_progress_line_counts_each_byte_once(
    ticking_clock: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    terminal = replace_stderr(monkeypatch, Terminal())
    pair = two_streams()
    sources = [stream.source for stream in pair]
    with show_progress("report", pair, prints=False):
        assert [stream.read() for stream in pair] == [PACKETS, PACKETS]
        assert [stream.size for stream in pair] == [len(PACKETS)] * 2
        lines = shown_lines(terminal.getvalue())
        for stream in pair:
            stream.read()
    assert lines[0].startswith("rtit report: ")
    # 65,536 bytes of 400,000 in each second since the first
    assert lines[0] == "rtit report: 33% of 400,000 bytes of PT, 0.1 MB/s, 0:00:04 left"
    shares = [int(line.split()[2].rstrip("%")) for line in lines]
    assert shares == sorted(shares)
    assert len(shares) > 4
    assert shares[-1] == 100
    # A byte that is read twice counts once, and the line is erased at the end.
    assert shown_lines(terminal.getvalue())[-1].startswith("rtit report: 100% of 400,000")
    assert terminal.getvalue().endswith("\r\x1b[K")
    assert [stream.source for stream in pair] == sources


def test_progress_line_is_erased_after_an_error(
    ticking_clock: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    terminal = replace_stderr(monkeypatch, Terminal())
    [one, _] = two_streams()

    def read_and_interrupt() -> None:
        one.read()
        assert shown_lines(terminal.getvalue())
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), show_progress("report", [one], prints=False):
        read_and_interrupt()
    assert terminal.getvalue().endswith("\r\x1b[K")
    assert isinstance(one.source, ChunkedBytes)


def test_no_progress_line_where_output_goes_to_the_terminal(
    ticking_clock: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    terminal = replace_stderr(monkeypatch, Terminal())
    monkeypatch.setattr(sys, "stdout", Terminal())
    with show_progress("packets", pair := two_streams(), prints=True):
        pair[0].read()
    assert terminal.getvalue() == ""
    with show_progress("report", pair, prints=False):
        pair[0].read()
    assert shown_lines(terminal.getvalue())


def test_no_progress_line_in_a_file(
    ticking_clock: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = replace_stderr(monkeypatch, io.StringIO())
    with show_progress("report", pair := two_streams(), prints=False):
        pair[0].read()
    assert file.getvalue() == ""


def test_no_progress_line_in_continuous_integration(
    ticking_clock: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    terminal = replace_stderr(monkeypatch, Terminal())
    monkeypatch.setenv("CI", "true")
    with show_progress("report", pair := two_streams(), prints=False):
        pair[0].read()
    assert terminal.getvalue() == ""


@pytest.mark.parametrize(
    ("count", "total", "seconds", "shown"),
    [
        (1_000_000, 4_000_000, 10, "25% of 4,000,000 bytes of PT, 0.1 MB/s, 0:00:30 left"),
        (10**9, 10**12, 20, "0% of 1,000,000,000,000 bytes of PT, 50.0 MB/s, 5:33:00 left"),
        (9_000_000, 0, 4.5, "9,000,000 bytes of PT, 2.0 MB/s"),
    ],
    ids=["share", "hours", "unknown size"],
)
def test_time_left_is_what_the_rate_so_far_needs(
    count: int, total: int, seconds: float, shown: str
) -> None:
    assert describe_share(count, total, seconds) == shown


@pytest.mark.parametrize("command", ["report", "calls", "timeline", "lint", "convert", "coverage"])
def test_command_shows_its_progress_on_a_terminal(
    command: str, record: Recorder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {
        "timeline": ["-o", str(tmp_path / "out")],
        "convert": ["--split", str(tmp_path / "parts")],
    }
    monkeypatch.setattr("rtit.cli.progress._QUIET_SECONDS", 0)
    terminal = replace_stderr(monkeypatch, Terminal())
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BytesIO()))
    assert main([command, str(record(["/bin/true"]).data), *options.get(command, [])]) == 0
    assert shown_lines(terminal.getvalue())[0].startswith(f"rtit {command}: ")
    assert terminal.getvalue().endswith("\r\x1b[K")


def test_status_line_waits_two_seconds_and_limits_its_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = replace_stderr(monkeypatch, Terminal())
    seconds: Iterator[float] = iter([0.0, 1.9, 2.0, 2.4, 2.5])
    monkeypatch.setattr("rtit.cli.progress.time.monotonic", lambda: next(seconds))
    line = StatusLine(terminal)
    due = []
    for text in ("a", "b", "c", "d"):
        due.append(line.is_due())
        if due[-1]:
            line.show_text(text)
    assert due == [False, True, False, True]
    assert shown_lines(terminal.getvalue()) == ["b", "d"]


def test_no_progress_line_for_an_empty_stream(
    ticking_clock: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    terminal = replace_stderr(monkeypatch, Terminal())
    empty = Stream(ChunkedBytes(b""), Image(), Settings())
    with show_progress("report", [empty], prints=False):
        assert empty.read() == b""
    assert terminal.getvalue() == ""


def test_page_shows_the_progress_of_each_pass(
    ticking_clock: list[float], record: Recorder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rtit.cli.progress._QUIET_SECONDS", 0)
    terminal = replace_stderr(monkeypatch, Terminal())
    data = record(["/bin/true"]).data
    assert main(["view", str(data), "-o", str(tmp_path / "page.html")]) == 0
    passes = [line.partition(":")[0] for line in shown_lines(terminal.getvalue())]
    assert list(dict.fromkeys(passes)) == [f"rtit view, pass {each} of 4" for each in range(1, 5)]
