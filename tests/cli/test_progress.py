"""The progress line of `rtit record`."""

from __future__ import annotations

import io
from types import SimpleNamespace
from typing import Any, cast

import pytest

from rtit.capture.backends import Choice
from rtit.capture.recording import Totals
from rtit.cli.progress import Progress


def test_the_progress_line(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([0.0, 1.0, 20.0])
    monkeypatch.setattr("rtit.cli.status.time.monotonic", lambda: next(clock))
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
