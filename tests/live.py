"""Live recordings, each made once and shared: a single step costs tens of microseconds."""

from __future__ import annotations

import contextlib
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from rtit.capture.events import EventLog
from rtit.capture.recording import Recording
from rtit.capture.session import Session

END = 4
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


def finished(session: Session) -> Recording:
    """The recording, once everything has ended; what hangs is killed."""
    deadline = time.monotonic() + 120
    while session.step(0.2):
        if time.monotonic() > deadline:
            session.kill()
            raise TimeoutError("the program does not end")
    return session.finish()


def to_the_end(session: Session) -> Recording:
    """`finished` of a recording that nobody does anything else with."""
    with session:
        return finished(session)


def ends(truth: Path) -> dict[int, tuple[int, int, int]]:
    """What a truth file says of every thread at its end, by tid: wait status, instructions, and the
    hash over their addresses.
    """
    found = {}
    with truth.open("rb") as file:
        file.seek(16)
        while header := file.read(8):
            kind, size = struct.unpack("<II", header)
            payload = file.read(size)
            if kind == END:
                tid, status, instructions, chain = struct.unpack("<IIQQ", payload)
                found[tid] = (status, instructions, chain)
    return found


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


@contextlib.contextmanager
def running(program: Path) -> Iterator[subprocess.Popen[str]]:
    """A program of tests/programs that has said that it runs; it ends when it gets a line."""
    with subprocess.Popen(
        [program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "running\n"
            yield process
        finally:
            process.kill()


def until(condition: Callable[[], bool], what: str) -> None:
    """Wait for something that must come; a minute at most."""
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, f"{what}: this did not come"
        time.sleep(0.02)


def signalled(recorder: subprocess.Popen[bytes], number: int) -> int:
    """The exit code of a recorder that gets signals until it ends: two that come before it has
    looked are one.
    """
    deadline = time.monotonic() + 60
    while recorder.poll() is None:
        assert time.monotonic() < deadline, "it does not end"
        recorder.send_signal(number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            recorder.wait(0.3)
    return recorder.returncode


@contextlib.contextmanager
def recording_of(pid: int, folder: Path, *options: str) -> Iterator[subprocess.Popen[str]]:
    """`rtit record --pid` under way: all threads are traced."""
    command = [*RTIT, "record", "-q", "--truth", "truth", "--events", "events", *options]
    with subprocess.Popen(
        [*command, "--pid", str(pid)], cwd=folder, stderr=subprocess.PIPE, text=True
    ) as recorder:

        def traced() -> bool:
            statuses = list(Path(f"/proc/{pid}/task").glob("*/status"))
            return recorder.poll() is not None or not any(
                "TracerPid:\t0\n" in each.read_text() for each in statuses
            )

        try:
            with contextlib.suppress(FileNotFoundError):
                until(traced, "tracing")
            yield recorder
        finally:
            recorder.kill()


Attacher = Callable[[Path], Live]


@pytest.fixture(scope="session")
def attach(tmp_path_factory: pytest.TempPathFactory) -> Attacher:
    """Records a program that runs already for a while, lets go of it and lets it end.

    What is said of how the program behaved is of its whole life. Once for each program.
    """
    if sys.platform != "linux":
        pytest.skip("recording needs Linux")
    made: dict[Path, Live] = {}

    def attached(program: Path) -> Live:
        if program not in made:
            folder = tmp_path_factory.mktemp("attached")
            with running(program) as process:
                with recording_of(process.pid, folder) as recorder:
                    data = folder / "perf.data"
                    # Most of it is written 16384 instructions at a time; a program that waits
                    # executes hardly any.
                    if program.name.startswith("workers"):
                        until(lambda: data.stat().st_size > 24000, "a trace")
                    recorder.send_signal(signal.SIGINT)
                    _, said = recorder.communicate(timeout=60)
                    assert recorder.returncode == 0, said
                stdout, _ = process.communicate("\n", timeout=60)
            made[program] = Live(folder, (str(program),), process.returncode, stdout, said)
        return made[program]

    return attached
