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
from rtit.perfdata import PerfData, records

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
    deadline = time.monotonic() + 900
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
                timeout=900,
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
    """Wait for something that must come; five minutes at most."""
    deadline = time.monotonic() + 300
    while not condition():
        assert time.monotonic() < deadline, f"{what}: this did not come"
        time.sleep(0.02)


def signalled(recorder: subprocess.Popen[bytes], number: signal.Signals) -> None:
    """Sends a signal to a recorder that keeps it blocked, and returns when it has taken it: two
    that come before it has looked are one, and one that comes when it is about to end kills it.
    """
    recorder.send_signal(number)
    until(lambda: not is_pending(recorder.pid, number), "taking the signal")


def is_pending(pid: int, number: signal.Signals) -> bool:
    """Whether a process was sent a signal that it has not taken."""
    return any(int(each["ShdPnd"], 16) & 1 << number - 1 for each in tasks(pid))


def tasks(pid: int) -> list[dict[str, str]]:
    """What /proc/PID/status says of each thread; a thread that ends meanwhile is passed over."""
    found = []
    for status in Path(f"/proc/{pid}/task").glob("*/status"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            lines = status.read_text().splitlines()
            found.append(dict(line.split(":\t", 1) for line in lines))
    return found


@contextlib.contextmanager
def recording_of(pid: int, folder: Path, *options: str) -> Iterator[subprocess.Popen[str]]:
    """`rtit record --pid` under way: all threads are traced."""
    command = [*RTIT, "record", "-q", "--truth", "truth", "--events", "events", *options]
    with subprocess.Popen(
        [*command, "--pid", str(pid)], cwd=folder, stderr=subprocess.PIPE, text=True
    ) as recorder:

        def traced() -> bool:
            tracers = {each["TracerPid"] for each in tasks(pid)}
            return recorder.poll() is not None or "0" not in tracers

        try:
            until(traced, "tracing")
            yield recorder
        finally:
            recorder.kill()


def stops(pid: int) -> dict[str, int]:
    """How often each thread gave up its CPU by itself: to wait, or to stop for its tracer."""
    return {each["Pid"]: int(each["voluntary_ctxt_switches"]) for each in tasks(pid)}


def wait_again(pid: int, before: dict[str, int]) -> bool:
    """Each thread has stopped since, and waits in a system call."""
    return all(
        each["State"][0] == "S" and int(each["voluntary_ctxt_switches"]) > before[each["Pid"]]
        for each in tasks(pid)
    )


def started(data: Path, pid: int) -> int:
    """Processes that this one has started, as its recording tells that goes on."""
    with PerfData(data) as file:
        return sum(each.pid != pid for each in file.records() if isinstance(each, records.Fork))


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
                before = stops(process.pid)
                with recording_of(process.pid, folder) as recorder:
                    data = folder / "perf.data"
                    # Most of it is written 16384 instructions at a time; a program that waits
                    # executes hardly any.
                    if program.name.startswith("workers"):
                        until(lambda: data.stat().st_size > 24000, "a trace")
                        # it starts a thread, a process, a thread, a process
                        until(lambda: started(data, process.pid) > 1, "processes")
                    else:
                        until(lambda: wait_again(process.pid, before), "calls made again")
                    recorder.send_signal(signal.SIGINT)
                    _, said = recorder.communicate(timeout=300)
                    assert recorder.returncode == 0, said
                stdout, _ = process.communicate("\n", timeout=300)
            made[program] = Live(folder, (str(program),), process.returncode, stdout, said)
        return made[program]

    return attached
