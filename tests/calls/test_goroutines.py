"""Goroutines keep their callers when they continue, in the same thread or in another one."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from calls.instrumented import decoded_instructions
from programs.build import CACHE, SOURCES
from rtit.trace import Trace
from support.recordings import require_backend

SOURCE = SOURCES / "calls" / "goroutines.go"
SCHEDULER = {"gogo", "runtime.gogo", "runtime.mcall", "runtime.schedule", "runtime.execute"}


@cache
def goroutines_program() -> Path:
    """Build the program. Skips without Go."""
    go = shutil.which("go")
    if go is None:
        pytest.skip("go is not installed")
    CACHE.mkdir(parents=True, exist_ok=True)
    program = CACHE / "calls-goroutines"
    environment = {**os.environ, "CGO_ENABLED": "0", "GO111MODULE": "off"}
    subprocess.run([go, "build", "-o", program, SOURCE], check=True, env=environment)
    return program


def record_goroutines(processors: int, file: Path) -> list[int]:
    """Record the program; return how often each goroutine compared, as the program counted."""
    require_backend("qemu")
    program = goroutines_program()
    words = ["record", "-q", "--backend", "qemu", "-o", str(file), "--", str(program)]
    ended = subprocess.run(
        [sys.executable, "-m", "rtit", *words],
        capture_output=True,
        check=True,
        env={**os.environ, "GOMAXPROCS": str(processors)},
    )
    return [int(line) for line in ended.stderr.split()]


@pytest.mark.parametrize("processors", [1, 2])
def test_goroutines_keep_their_callers(processors: int, tmp_path: Path) -> None:
    compared = record_goroutines(processors, tmp_path / "data")
    with Trace(tmp_path / "data") as trace:
        tree = trace.call_tree()
    paths: list[tuple[str, ...]] = []
    found = [0] * 8
    for node in tree:
        above = paths[node.parent] if node.parent >= 0 else ()
        paths.append((*above, node.function))
        if node.function.startswith("main.less"):
            number = int(node.function[len("main.less") :])
            callers = (f"main.sorter{number}", "main.order", "sort.Slice", "sort.pdqsort_func")
            assert above[:4] == callers
            found[number] += node.calls
    assert found == compared
    assert tree.statistics.unknown == 0


@pytest.mark.parametrize("processors", [1, 2])
def test_goroutines_are_not_called_by_the_scheduler(processors: int, tmp_path: Path) -> None:
    record_goroutines(processors, tmp_path / "data")
    with Trace(tmp_path / "data") as trace:
        tree = trace.call_tree()
        assert tree.self_instructions.sum() == decoded_instructions(trace)
    paths: list[tuple[str, ...]] = []
    for node in tree:
        above = paths[node.parent] if node.parent >= 0 else ()
        paths.append((*above, node.function))
        if node.function.startswith(("main.", "sort.")):
            assert not SCHEDULER.intersection(above)


def test_calls_of_goroutines_add_up_to_the_call_tree(tmp_path: Path) -> None:
    record_goroutines(2, tmp_path / "data")
    with Trace(tmp_path / "data") as trace:
        calls = list(trace.calls().rows())
        tree = trace.call_tree()
    assert sum(call.self_instructions for call in calls) == tree.self_instructions.sum()
    assert {call.end_tid for call in calls} <= set(tree.tid.tolist())
