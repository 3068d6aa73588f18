"""Sizes, frequencies and the progress line of `rtit record`."""

from __future__ import annotations

import io
from types import SimpleNamespace
from typing import Any, cast

import pytest

from rtit.capture.backends import Choice
from rtit.capture.clocks import parse_cpi, parse_frequency
from rtit.capture.events import RECORD, Kind, count_branches
from rtit.capture.recording import Totals
from rtit.capture.sizes import format_size, parse_size
from rtit.cli.progress import Progress
from rtit.errors import UsageError


@pytest.mark.parametrize(
    ("text", "size"),
    [("4096", 4096), ("4096B", 4096), ("8k", 8192), ("4M", 4 << 20), ("1G", 1 << 30),
     ("0x1000", 4096), (" 64K ", 64 << 10)],
)  # fmt: skip
def test_sizes_are_perfs(text: str, size: int) -> None:
    assert parse_size(text) == size
    assert parse_size(format_size(size)) == size


BAD = ["", "K", "-1", "1.5M", "4MB", "1T", "0", "0K", str(1 << 62), "9e9"]


@pytest.mark.parametrize("text", BAD)
def test_no_sizes(text: str) -> None:
    with pytest.raises(UsageError) as error:
        parse_size(text, "--snapshot")
    assert str(error.value).startswith("--snapshot is ")


@pytest.mark.parametrize(
    ("text", "hertz"),
    [("1GHz", 10**9), ("3.2G", 3_200_000_000), ("800mhz", 800_000_000), ("100000000", 10**8),
     ("100000 kHz", 10**8), ("25.5GHz", 25_500_000_000)],
)  # fmt: skip
def test_frequencies(text: str, hertz: int) -> None:
    assert parse_frequency(text) == hertz


@pytest.mark.parametrize("text", ["", "GHz", "0", "50MHz", "1.25GHz", "25.6GHz", "-1GHz", "1e9"])
def test_no_frequencies(text: str) -> None:
    with pytest.raises(UsageError):
        parse_frequency(text)


def test_cycles_an_instruction() -> None:
    assert [parse_cpi(text) for text in ("1", "7", "1000")] == [1, 7, 1000]
    for text in ("0", "1001", "0.5", "", "two"):
        with pytest.raises(UsageError):
            parse_cpi(text)


def test_branches_are_those_that_packets_tell_of() -> None:
    kinds = [Kind.CONDITIONAL, Kind.JUMP, Kind.CALL, Kind.RETURN, Kind.INDIRECT_JUMP,
             Kind.INDIRECT_CALL, Kind.FAR, Kind.SYSCALL, Kind.RESUME, Kind.MMAP]  # fmt: skip
    # Fields that hold the number of a kind do not count.
    records = b"".join(RECORD.pack(kind, 1, 1, 1, 1, 1, 1, 1) for kind in kinds)
    assert count_branches(records) == 6


def test_the_progress_line(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([0.0, 1.0, 20.0])
    monkeypatch.setattr("rtit.cli.progress.time.monotonic", lambda: next(clock))
    stream = io.StringIO()
    progress = Progress(stream, Choice("qemu", "as asked for"))
    totals = Totals(clock=4_000_000, branches=500_000, pt_bytes=99_000)
    session: Any = SimpleNamespace(totals=totals)
    progress.update(cast(Any, session))
    assert stream.getvalue() == ""
    progress.update(cast(Any, session))
    assert stream.getvalue() == (
        "recording: 4,000,000 instructions, 500,000 branches, 99,000 bytes of PT, "
        "200,000 instructions/s\n"
    )
