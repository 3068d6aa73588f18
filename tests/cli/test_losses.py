"""Losses of many streams: told whole, and kept for nobody."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from rtit.cli.main import main
from rtit.trace import Trace
from rtit.views import spilled_lines
from support.oversized import write_oversized

VERBS = [["report"], ["report", "--json"], ["events"], ["edges"], ["instructions"]]

TAKES = """
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


def lossy(folder: Path) -> Path:
    """Hundreds of threads, each with hundreds of losses."""
    return write_oversized(folder, "lossy-threads", 1)


def peak(verb: list[str], path: Path) -> int:
    """Megabytes at the peak of a process of its own."""
    words = [sys.executable, "-c", TAKES, verb[0], str(path), *verb[1:]]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    code, kilobytes = map(int, done.stderr.split())
    assert code == 3
    return kilobytes // 1024


@pytest.mark.parametrize("verb", VERBS, ids=" ".join)
def test_memory_of_many_accounts(verb: list[str], tmp_path: Path) -> None:
    one = write_oversized(tmp_path, "overflow", 1 << 10)
    taken = peak(verb, lossy(tmp_path)) - peak(verb, one)
    assert taken < 6, f"{taken} MB"


def test_each_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(spilled_lines, "_CHUNK_CHARACTERS", 1000)
    monkeypatch.setattr(spilled_lines, "_MEMORY_BYTES", 1000)
    path = lossy(tmp_path)
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
    told = capfd.readouterr().out
    for of_one in spans.values():
        first = "".join(f"  {span}\n" for span in of_one[:20])
        rest = f"  ... and {len(of_one) - 20} more\n" if len(of_one) > 20 else ""
        assert first + rest in told
