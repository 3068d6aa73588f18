"""Programs under test that run beside the test: start them, wait for them, send them signals."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path


@contextlib.contextmanager
def running_program(program: Path) -> Iterator[subprocess.Popen[str]]:
    """Start a program of tests/programs that prints "running" and ends when it reads a line."""
    with subprocess.Popen(
        [program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "running\n"
            yield process
        finally:
            process.kill()


def wait_until(condition: Callable[[], bool], what: str) -> None:
    """Poll until `condition` is true; fail after five minutes."""
    deadline = time.monotonic() + 300
    while not condition():
        assert time.monotonic() < deadline, f"timed out: {what}"
        time.sleep(0.02)


def send_signal_and_wait(recorder: subprocess.Popen[bytes], number: signal.Signals) -> None:
    """Send a signal that the recorder keeps blocked, and wait until the recorder has taken it.

    Two signals sent before the recorder looks merge into one, and one that arrives while the
    recorder exits kills it.
    """
    recorder.send_signal(number)
    wait_until(lambda: not is_signal_pending(recorder.pid, number), "the recorder takes the signal")


def is_signal_pending(pid: int, number: signal.Signals) -> bool:
    """Return whether a signal waits for a process that blocks it."""
    return any(int(each["ShdPnd"], 16) & 1 << number - 1 for each in thread_statuses(pid))


def thread_statuses(pid: int) -> list[dict[str, str]]:
    """Return the fields of /proc/PID/task/TID/status of each thread that still exists."""
    found = []
    for status in Path(f"/proc/{pid}/task").glob("*/status"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            lines = status.read_text().splitlines()
            found.append(dict(line.split(":\t", 1) for line in lines))
    return found


def voluntary_switches(pid: int) -> dict[str, int]:
    """Return by tid how often each thread gave up its CPU: to wait, or to stop for its tracer."""
    return {each["Pid"]: int(each["voluntary_ctxt_switches"]) for each in thread_statuses(pid)}


def all_waiting_again(pid: int, before: dict[str, int]) -> bool:
    """Return whether each thread has stopped since `before` and waits in a system call again."""
    return all(
        each["State"][0] == "S" and int(each["voluntary_ctxt_switches"]) > before[each["Pid"]]
        for each in thread_statuses(pid)
    )
