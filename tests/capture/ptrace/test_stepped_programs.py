"""Programs that are hard to step run under ptrace as natively, and decode as executed."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from programs.build import SOURCES, CannotBuildError, compiled
from rtit.capture.events import EventFlag, EventKind, EventLog, iterate_events
from rtit.capture.ptrace.session import PtraceTracer
from torture.cases import run_program
from torture.recording import VerifiedRecording, record_and_verify

FLAGS = ["-O1", "-static", "-Wall", "-Wextra", "-pthread"]


def build(name: str) -> str:
    source = SOURCES / "stepped" / f"{name}.c"
    try:
        return str(compiled(f"stepped-{name}", [str(source)], language="c", flags=FLAGS))
    except CannotBuildError as error:
        pytest.skip(str(error))


def record(name: str, folder: Path) -> tuple[VerifiedRecording, EventLog]:
    """Record the program, and assert that it behaves as natively and decodes as executed."""
    argv = [build(name)]
    found = record_and_verify(argv, "ptrace", folder, "--events", "events")
    assert found.is_identical, found.verdict
    assert found.behaviour == run_program(argv, folder), found.messages
    return found, EventLog.load(folder / "events")


def count_kinds(log: EventLog) -> Counter[EventKind]:
    """Count the events by kind, without the contents of mapped files.

    Whether these are sent depends on the age of the file.
    """
    return Counter(
        event.kind
        for event in log.events()
        if event.kind != EventKind.CODE or not event.flags & EventFlag.CODE_OF_MAPPING
    )


def test_signals_and_faults_are_recorded(tmp_path: Path) -> None:
    kinds = count_kinds(record("signals", tmp_path)[1])
    # write, call, ud2, divide, int, not canonical, rep, overflow
    assert kinds[EventKind.FAULT] == 8
    # int3 in two forms
    assert kinds[EventKind.SOFT_INT] == 2
    assert kinds[EventKind.INTERRUPT] > 0


def test_code_without_a_file_is_reported_when_it_changes(tmp_path: Path) -> None:
    kinds = count_kinds(record("code", tmp_path)[1])
    # The vDSO; a page written 5 times and the next one once; W^X; shared pages; patched; again,
    # in the child, moved.
    assert kinds[EventKind.CODE] == 1 + 6 + 3 + 5 + 1 + 3
    assert kinds[EventKind.SWITCH] >= kinds[EventKind.CODE] - 1


def test_steps_change_no_flags_and_registers(tmp_path: Path) -> None:
    log = record("steps", tmp_path)[1]
    assert count_kinds(log)[EventKind.SOFT_INT] >= 1
    # The repeated string instructions alone are 150,000 iterations.
    *_, last = log.events()
    assert last.clock < 150_000


def test_processes_and_threads_are_followed(tmp_path: Path) -> None:
    kinds = count_kinds(record("processes", tmp_path)[1])
    assert kinds[EventKind.THREAD] == kinds[EventKind.EXIT]
    # the program; vfork, spawn, the thread that calls exec
    assert kinds[EventKind.EXEC] == 1 + 3


def test_kill_ends_all_processes_and_threads() -> None:
    kinds: Counter[EventKind] = Counter()
    with PtraceTracer([build("processes"), "wait"]) as tracer:
        for batch in tracer:
            for last in iterate_events(batch):
                kinds[last.kind] += 1
            if kinds[EventKind.THREAD] == 4:
                tracer.kill()
    assert kinds[EventKind.THREAD] == kinds[EventKind.EXIT] == 4
    assert (last.kind, last.ip, last.flags) == (EventKind.END, 9, EventFlag.END_KILLED)
