"""The call stack of a crash, in `rtit report` and gdb, equals what the program logs of itself."""

from __future__ import annotations

import json
import struct
import subprocess
from collections import defaultdict
from pathlib import Path

import pytest

from calls.instrumented import build_instrumented
from rtit.cli.main import main
from rtit.trace import Trace
from rtit.views.calls_at_end import calls_at_end
from rtit.views.trace_tail import find_crash
from support.gdb import run_gdb
from support.recordings import RTIT, require_backend

SITUATIONS = {
    "recursion": (0,),
    "longjmp": (0,),
    "handler": (0, 1),
    "coroutine": (1,),
    "exception": (0,),
}
"""Situations, each with the stacks that the functions running at the crash are on."""


def record_crash(situation: str, folder: Path, *options: str) -> bytes:
    """Record the program into `data`; return its log."""
    require_backend("qemu")
    words = ["record", "-q", "--backend", "qemu", "-o", str(folder / "data"), *options]
    words += ["--", str(build_instrumented("crashing.cpp")), situation]
    return subprocess.run([*RTIT, *words], stdout=subprocess.PIPE, check=False).stdout


def logged_stack(log: bytes, numbers: tuple[int, ...]) -> tuple[list[int], list[int]]:
    """Return the functions that run at the end of the log, and all entered ones, in order."""
    stacks: dict[int, list[tuple[int, int]]] = defaultdict(list)
    entered: list[int] = []
    for function, frame, number in struct.iter_unpack("<QQq", log):
        stack = stacks[number]
        if not frame:
            while stack.pop()[0] != function:
                pass
            continue
        while stack and stack[-1][1] <= frame:
            stack.pop()
        stack.append((function, frame))
        entered.append(function)
    return [function for number in numbers for function, _ in stacks[number]], entered


@pytest.mark.parametrize("situation", SITUATIONS)
def test_report_and_gdb_show_the_functions_that_run_at_the_crash(
    situation: str, gdb: None, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    log = record_crash(situation, tmp_path)
    running, entered = logged_stack(log, SITUATIONS[situation])
    assert len(running) >= 2
    with Trace(tmp_path / "data") as trace:
        [stream] = trace.threads
        crash = find_crash(trace, stream)
        assert crash is not None
        calls = crash.calls_at_end(5000)
        names = {ip: trace.symbols.lookup(stream.tid, crash.time, ip).name for ip in entered}
    assert [each.entry for each in calls.running[::-1] if each.entry in names] == running
    last = [each.entry for each in calls.last if each.entry in names]
    assert last == entered[-len(last) :]
    assert len(last) > 5

    expected = [names[ip].partition("(")[0] for ip in running[::-1]]
    capfd.readouterr()
    assert main(["report", "--json", str(tmp_path / "data")]) == 0
    [fault] = json.loads(capfd.readouterr().out)["faults"]
    shown = [each["to"].partition("(")[0] for each in fault["call_stack"]]
    assert [name for name in shown if name in expected] == expected
    frames = run_gdb(tmp_path / "data", "bt").frames
    assert [name for name in frames if name in expected] == expected


def test_calls_that_began_before_the_decoded_packets_are_left_out(tmp_path: Path) -> None:
    log = record_crash("recursion", tmp_path, "-e", "intel_pt/psb_period=0/u")
    running, _ = logged_stack(log, (0,))
    known = set[int]()
    with Trace(tmp_path / "data") as trace:
        [stream] = trace.threads
        for size in range(256, stream.size, 256):
            calls = calls_at_end(trace, stream, decoded_bytes=size).running[::-1]
            found = [each.entry for each in calls if each.entry in running]
            assert found == running[len(running) - len(found) :]
            known.add(len(found))
    assert len(known) > 1
    assert max(known) == len(running)
