"""Commands report all losses of many streams, in bounded memory."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from rtit.cli.main import main
from rtit.trace import Trace
from rtit.views import spilled_lines
from support import oversized
from support.oversized import write_oversized

COMMAND_LINES = [["report"], ["report", "--json"], ["events"], ["edges"], ["instructions"]]

PEAK_MEMORY_SCRIPT = """
import os, sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from rtit.cli.main import main

with open(os.devnull, "w") as null, redirect_stdout(null), redirect_stderr(null):
    code = main(sys.argv[1:])
# not ru_maxrss, which begins with what the parent had
words = Path("/proc/self/status").read_text().split()
print(code, words[words.index("VmHWM:") + 1], file=sys.stderr)
"""


def write_lossy_recording(folder: Path) -> Path:
    """Write a recording of hundreds of threads with hundreds of losses each."""
    return write_oversized(folder, "lossy-threads", 1)


def peak_megabytes(command: list[str], path: Path) -> int:
    """Return the peak memory of a command in a separate process."""
    words = [sys.executable, "-c", PEAK_MEMORY_SCRIPT, command[0], str(path), *command[1:]]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    code, kilobytes = map(int, done.stderr.split())
    assert code == 3
    return kilobytes // 1024


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMAND_LINES, ids=" ".join)
def test_losses_of_many_streams_take_bounded_memory(command: list[str], tmp_path: Path) -> None:
    one = write_oversized(tmp_path, "overflow", 1 << 10)
    added_megabytes = peak_megabytes(command, write_lossy_recording(tmp_path)) - peak_megabytes(
        command, one
    )
    assert added_megabytes < 6, f"{added_megabytes} MB"


def test_every_loss_is_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(spilled_lines, "_MEMORY_BYTES", 1000)
    monkeypatch.setattr(oversized, "_BATCH", 16)  # threads
    path = write_lossy_recording(tmp_path)
    with Trace(path) as trace:
        spans = {
            stream.title: [str(span) for span in stream.spans() if span.is_gap]
            for stream in trace.streams
        }
    assert len(spans) > 2
    main(["events", str(path)])
    lines = [f"rtit events: {title}: {span}" for title in spans for span in spans[title]]
    assert capfd.readouterr().err.splitlines() == lines
    main(["report", str(path), "--json"])
    streams = json.loads(capfd.readouterr().out)["streams"]
    assert {each["title"]: each["losses"] for each in streams} == spans
    main(["report", str(path)])
    printed = capfd.readouterr().out
    for stream_losses in spans.values():
        first = "".join(f"  {span}\n" for span in stream_losses[:20])
        rest = f"  ... and {len(stream_losses) - 20} more\n" if len(stream_losses) > 20 else ""
        assert first + rest in printed
