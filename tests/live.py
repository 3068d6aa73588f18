"""Live recordings, each made once and shared: a single step costs tens of microseconds."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from rtit.capture.events import EventLog

RTIT = [sys.executable, "-m", "rtit"]


@dataclass(frozen=True)
class Live:
    """A recorded program: the files, and how it behaved."""

    folder: Path
    argv: tuple[str, ...]
    status: int
    stdout: str
    stderr: str

    @property
    def data(self) -> Path:
        return self.folder / "perf.data"

    @property
    def truth(self) -> Path:
        return self.folder / "truth"

    @property
    def log(self) -> EventLog:
        return EventLog.load(self.folder / "events")


Recorder = Callable[..., Live]


@pytest.fixture(scope="session")
def record(tmp_path_factory: pytest.TempPathFactory) -> Recorder:
    """Records a program through the command line; the same arguments again give the same
    recording.
    """
    if sys.platform != "linux":
        pytest.skip("recording needs Linux")
    made: dict[tuple[object, ...], Live] = {}

    def recorded(argv: Sequence[str | Path], *options: str) -> Live:
        words = tuple(map(str, argv))
        key = (words, options)
        if key not in made:
            folder = tmp_path_factory.mktemp("live")
            ended = subprocess.run(
                [
                    *RTIT,
                    "record",
                    "--backend",
                    "ptrace",
                    "-q",
                    "--truth",
                    "truth",
                    "--events",
                    "events",
                    *options,
                    "--",
                    *words,
                ],
                cwd=folder,
                capture_output=True,
                text=True,
                check=False,
                timeout=300,
            )
            made[key] = Live(folder, words, ended.returncode, ended.stdout, ended.stderr)
        return made[key]

    return recorded
