"""Programs recorded once and shared by tests, the fixtures for them, and `require_backend`.

A single step costs tens of microseconds, so no program is recorded twice in the same way.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from pathlib import Path

import pytest

from rtit.capture.events import EventLog
from rtit.capture.qemu.installation import QemuInstallation, find_qemu
from rtit.capture.session import Recording, RecordingSession
from rtit.perfdata import PerfData, records
from support.processes import (
    all_waiting_again,
    running_program,
    thread_statuses,
    voluntary_switches,
    wait_until,
)

THREAD_END = 4
"""Kind of the records of a truth file that `thread_ends` reads."""
RTIT = [sys.executable, "-m", "rtit"]


@dataclass(frozen=True)
class RecordedProgram:
    """The files of a recording, and the exit status and output of the recorded program."""

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


Recorder = Callable[..., RecordedProgram]


def require_backend(backend: str) -> None:
    """Skip the test if `backend` is "qemu" and no suitable QEMU is installed."""
    if backend == "qemu":
        _find_qemu_or_skip()


@pytest.fixture(scope="session")
def qemu() -> QemuInstallation:
    """Return the installed QEMU; skip the test if there is no suitable one."""
    return _find_qemu_or_skip()


def _find_qemu_or_skip() -> QemuInstallation:
    found = find_qemu()
    if isinstance(found, str):
        pytest.skip(found)
    return found


def finish_recording(session: RecordingSession) -> Recording:
    """Step a session until all programs have ended; kill them after 15 minutes."""
    deadline = time.monotonic() + 900
    while session.step(0.2):
        if time.monotonic() > deadline:
            session.kill()
            raise TimeoutError("the program does not end")
    return session.finish()


def record_to_end(session: RecordingSession) -> Recording:
    """Run a new session until all programs have ended, and close it."""
    with session:
        return finish_recording(session)


def thread_ends(truth: Path) -> dict[int, tuple[int, int, int]]:
    """Return by tid how each thread of a truth file ended: wait status, number of instructions,
    and hash of their addresses.
    """
    found = {}
    with truth.open("rb") as file:
        file.seek(16)
        while header := file.read(8):
            kind, size = struct.unpack("<II", header)
            payload = file.read(size)
            if kind == THREAD_END:
                tid, status, instructions, chain = struct.unpack("<IIQQ", payload)
                found[tid] = (status, instructions, chain)
    return found


@pytest.fixture(scope="session")
def record(tmp_path_factory: pytest.TempPathFactory) -> Recorder:
    """Record a program through the command line, once for the same arguments."""
    if sys.platform != "linux":
        pytest.skip("recording needs Linux")
    command = [*RTIT, "record", "--backend", "ptrace", "-q", "--truth", "truth"]

    def recorded(argv: Sequence[str | Path], *options: str) -> RecordedProgram:
        words = tuple(map(str, argv))

        def make(folder: Path) -> Outcome:
            ended = subprocess.run(
                [*command, "--events", "events", *options, "--", *words],
                cwd=folder,
                capture_output=True,
                text=True,
                check=False,
                timeout=900,
            )
            return ended.returncode, ended.stdout, ended.stderr

        return recorded_once(tmp_path_factory, "record", words, options, make)

    return recorded


Outcome = tuple[int, str, str]
"""Exit status, standard output and standard error of a recorded program."""


def recorded_once(
    factory: pytest.TempPathFactory,
    how: str,
    argv: tuple[str, ...],
    options: tuple[str, ...],
    make: Callable[[Path], Outcome],
) -> RecordedProgram:
    """Return the recording that `make` writes into a folder, made once by all xdist workers."""
    temporary = factory.getbasetemp()
    shared = temporary.parent if "PYTEST_XDIST_WORKER" in os.environ else temporary
    folder = shared / f"{how}-{sha256(repr((argv, options)).encode()).hexdigest()[:16]}"
    outcome = folder / "outcome.json"
    folder.mkdir(exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not outcome.exists():
            outcome.write_text(json.dumps(make(folder)))
    status, stdout, stderr = json.loads(outcome.read_text())
    return RecordedProgram(folder, argv, status, stdout, stderr)


@contextlib.contextmanager
def attached_recorder(pid: int, folder: Path, *options: str) -> Iterator[subprocess.Popen[str]]:
    """Start `rtit record --pid`; all threads are traced when the body begins."""
    command = [*RTIT, "record", "-q", "--truth", "truth", "--events", "events", *options]
    with subprocess.Popen(
        [*command, "--pid", str(pid)], cwd=folder, stderr=subprocess.PIPE, text=True
    ) as recorder:

        def traced() -> bool:
            tracers = {each["TracerPid"] for each in thread_statuses(pid)}
            return recorder.poll() is not None or "0" not in tracers

        try:
            wait_until(traced, "tracing")
            yield recorder
        finally:
            recorder.kill()


def started_processes(data: Path, pid: int) -> int:
    """Return how many processes the program has started, from its unfinished recording."""
    with PerfData(data) as file:
        return sum(each.pid != pid for each in file.records() if isinstance(each, records.Fork))


Attacher = Callable[[Path], RecordedProgram]


@pytest.fixture(scope="session")
def attach(tmp_path_factory: pytest.TempPathFactory) -> Attacher:
    """Record a running program for a while, detach, and let the program end; once per program.

    Exit status and output are those of the whole program.
    """
    if sys.platform != "linux":
        pytest.skip("recording needs Linux")

    def attached(program: Path) -> RecordedProgram:
        def make(folder: Path) -> Outcome:
            data = folder / "perf.data"
            with running_program(program) as process:
                before = voluntary_switches(process.pid)
                with attached_recorder(process.pid, folder) as recorder:
                    # The recorder writes 16384 instructions at a time. A program that waits
                    # executes fewer.
                    if program.name.startswith("workers"):
                        wait_until(lambda: data.stat().st_size > 24000, "a trace")
                        # The program starts a thread, a process, a thread, a process.
                        wait_until(lambda: started_processes(data, process.pid) > 1, "processes")
                    else:
                        waiting = partial(all_waiting_again, process.pid, before)
                        wait_until(waiting, "calls made again")
                    recorder.send_signal(signal.SIGINT)
                    _, said = recorder.communicate(timeout=300)
                    assert recorder.returncode == 0, said
                stdout, _ = process.communicate("\n", timeout=300)
            return process.returncode, stdout, said

        return recorded_once(tmp_path_factory, "attach", (str(program),), (), make)

    return attached
