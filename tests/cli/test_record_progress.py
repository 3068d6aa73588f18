"""The progress line of `rtit record`."""

from __future__ import annotations

import io
from collections.abc import Iterator
from itertools import count
from types import SimpleNamespace
from typing import Any, cast

import pytest

from rtit.capture.backends import BackendChoice
from rtit.capture.session import STOPPED_BY_FULL_DISK, RecordingTotals
from rtit.cli.look.record import RecordingProgress


class Terminal(io.StringIO):
    """Standard error as a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("stream", [Terminal(), io.StringIO()])
def test_progress_line_on_a_terminal_states_totals_and_rate(
    stream: io.StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = iter([0.0, 1.0, 20.0])
    monkeypatch.setattr("rtit.cli.progress.time.monotonic", lambda: next(clock))
    progress = RecordingProgress(stream, BackendChoice("qemu", "as requested"))
    totals = RecordingTotals(clock=4_000_000, branches=500_000, pt_bytes=99_000)
    session: Any = SimpleNamespace(totals=totals, stopped=None)
    progress.show_if_due(cast(Any, session))
    assert stream.getvalue() == ""
    progress.show_if_due(cast(Any, session))
    assert stream.getvalue() == stream.isatty() * (
        "\r\x1b[Krecording: 4,000,000 instructions, 500,000 branches, 99,000 bytes of PT, "
        "200,000 instructions/s"
    )


def clock_in_steps_of_ten() -> Iterator[float]:
    return (10.0 * tick for tick in count())


@pytest.mark.parametrize(("stream", "warned"), [(Terminal(), [1.1, 2.2, 9.9]), (io.StringIO(), [])])
def test_large_recording_warns_at_each_doubling_on_a_terminal(
    stream: io.StringIO, warned: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = clock_in_steps_of_ten()
    monkeypatch.setattr("rtit.cli.progress.time.monotonic", lambda: next(clock))
    progress = RecordingProgress(stream, BackendChoice("qemu", "as requested"))
    for size in (1.0, 1.1, 1.2, 2.2, 9.9):
        totals = RecordingTotals(clock=1, pt_bytes=int(size * 10**9))
        progress.show_if_due(cast(Any, SimpleNamespace(totals=totals, stopped=None)))
    lines = [line for line in stream.getvalue().split("\n") if "warning: " in line]
    sizes = [float(line.split("warning: ")[1].split()[0]) for line in lines]
    assert sizes == warned
    assert all("MB more each second" in line and "--max-size" in line for line in lines)


def test_nearly_full_disk_is_reported_once_even_if_quiet() -> None:
    stream = io.StringIO()
    progress = RecordingProgress(stream, BackendChoice("qemu", "as requested"), quiet=True)
    session: Any = SimpleNamespace(totals=RecordingTotals(), stopped=STOPPED_BY_FULL_DISK)
    progress.show_if_due(session)
    progress.show_if_due(session)
    assert stream.getvalue() == (
        "rtit record: warning: the disk is nearly full, so recording has stopped\n"
    )
