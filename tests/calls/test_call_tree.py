"""The call tree equals what instrumented programs log of their own entries and exits.

The programs log the frame address of each entry. A function is on the stack until it exits, or
until another function is entered at its frame address or above: then it was left by an exception
or a longjmp.
"""

from __future__ import annotations

import struct
import subprocess
import sys
from collections import Counter, defaultdict
from pathlib import Path

import pytest

from programs.build import SOURCES, CannotBuildError, compiled
from rtit.trace import Trace
from support.recordings import require_backend

FLAGS = ["-O1", "-g", "-fno-omit-frame-pointer", "-finstrument-functions"]
PROGRAMS = ["unwinding.c", "coroutines.c", "exceptions.cpp"]

CallPath = tuple[int, ...]
"""Start addresses of functions, the outermost first."""


def logged_paths(log: bytes) -> Counter[CallPath]:
    """Return how often each path was entered, according to the program's own log."""
    stacks: dict[int, list[tuple[int, int]]] = defaultdict(list)
    paths: Counter[CallPath] = Counter()
    for function, frame, number in struct.iter_unpack("<QQq", log):
        stack = stacks[number]
        if not frame:
            if function in (each for each, _ in stack):
                while stack.pop()[0] != function:
                    pass
            continue
        while stack and stack[-1][1] <= frame:
            stack.pop()
        stack.append((function, frame))
        paths[tuple(each for each, _ in stack)] += 1
    return paths


def decoded_paths(trace: Trace, functions: set[int]) -> Counter[CallPath]:
    """Return how often each path was entered, according to the call tree.

    Paths have these functions alone.
    """
    paths: list[CallPath] = []
    found: Counter[CallPath] = Counter()
    for node in trace.call_tree():
        above = paths[node.parent] if node.parent >= 0 else ()
        path = (*above, node.entry) if node.entry in functions else above
        paths.append(path)
        if node.entry in functions:
            found[path] += node.calls
    return found


@pytest.fixture(params=["qemu", "ptrace"])
def backend(request: pytest.FixtureRequest) -> str:
    require_backend(request.param)
    return str(request.param)


@pytest.mark.parametrize("source", PROGRAMS)
def test_paths_of_calls_equal_the_log_of_the_program(
    source: str, backend: str, tmp_path: Path
) -> None:
    program = build_instrumented(source)
    log = record(program, backend, tmp_path)
    expected = logged_paths(log)
    assert len(expected) > 20
    with Trace(tmp_path / "data") as trace:
        found = decoded_paths(trace, {function for path in expected for function in path})
    assert found == expected


def build_instrumented(source: str) -> Path:
    path = SOURCES / "calls" / source
    header = (SOURCES / "calls" / "entry_log.h").read_bytes()
    try:
        return compiled(
            f"calls-{path.stem}",
            [str(path)],
            language="c++" if path.suffix == ".cpp" else "c",
            flags=FLAGS,
            depends=[header],
        )
    except CannotBuildError as error:
        pytest.skip(str(error))


def record(program: Path, backend: str, folder: Path) -> bytes:
    """Record the program into `data`; return its standard output."""
    words = ["record", "-q", "--backend", backend, "-o", folder / "data", "--", program]
    ended = subprocess.run([sys.executable, "-m", "rtit", *words], capture_output=True, check=True)
    return ended.stdout
