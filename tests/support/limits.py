"""Limits on memory: `assert_peak_memory`, and work in child processes under RLIMIT_AS."""

from __future__ import annotations

import contextlib
import hashlib
import os
import resource
import traceback
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from rtit.image import memory_budget

_SELF = Path("/proc/self")


def _kilobytes(name: str) -> int:
    lines = (_SELF / "status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{name}:"))


@contextlib.contextmanager
def assert_peak_memory(megabytes: int) -> Iterator[None]:
    """Assert that the body never takes more memory than this, pages of mapped files included.

    Writing 5 to clear_refs resets the peak (proc(5)).
    """
    try:
        (_SELF / "clear_refs").write_text("5")
    except OSError:
        pytest.skip("the kernel does not count the peak of memory here")
    before = _kilobytes("VmRSS")
    yield
    taken = (_kilobytes("VmHWM") - before) // 1024
    assert taken <= megabytes, f"{taken} MB of memory"


STEP = 3 << 20
"""Least difference of two limits in bytes."""
MOST = 400 << 20
"""With this much memory all work succeeds."""
WRONG = 65
"""Exit code of a child: another exception than MemoryError, or a wrong result."""


def limits() -> Iterator[int]:
    """Yield limits in bytes, in addition to the memory that is mapped already."""
    limit = 0
    while limit < MOST:
        yield limit
        limit += max(STEP, limit // 2)


def digest(parts: Iterable[object]) -> str:
    """Return a hash of results; columns count with their bytes."""
    found = hashlib.sha256()
    for part in parts:
        data = part if isinstance(part, bytes) else getattr(part, "tobytes", None)
        found.update(data() if callable(data) else data or repr(part).encode())
    return found.hexdigest()


@contextlib.contextmanager
def address_space_limit(more: int) -> Iterator[None]:
    """Let the body map no more than `more` additional bytes."""
    resource.setrlimit(
        resource.RLIMIT_AS, ((_kilobytes("VmSize") << 10) + more, resource.RLIM_INFINITY)
    )
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY,) * 2)


def _child(work: Callable[[], str], limit: int, expected: str) -> int:
    """Return 0 if the work succeeds under the limit, 1 if it raises MemoryError and then succeeds
    without the limit, WRONG otherwise.
    """
    refused = 0
    try:
        with address_space_limit(limit):
            right = work() == expected
    except MemoryError:
        refused, right = 1, True
    if not right or work() != expected:
        return WRONG
    return refused


def result_in_child(work: Callable[[], str]) -> str:
    """Return the result of the work in a child process."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(writing, work().encode())
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as found:
        result = found.read()
    os.waitpid(child, 0)
    assert result
    return result


def outcomes_under_limits(work: Callable[[], str], *, clean: bool = False) -> list[tuple[int, int]]:
    """Return pairs of limit and exit code of a child; a signal gives a negative exit code.

    With `clean` the parent never does the work itself, so that the children inherit no memory
    from it.
    """
    expected = result_in_child(work) if clean else work()
    ended = []
    for limit in limits():
        child = os.fork()
        if child == 0:
            code = WRONG
            try:
                code = _child(work, limit, expected)
            except BaseException:  # pytest is in the parent
                traceback.print_exc()
            finally:
                os._exit(code)
        _, status = os.waitpid(child, 0)
        ended.append((limit, os.waitstatus_to_exitcode(status)))
        if ended[-1][1] == 0 and limit > 0 and all(code == 0 for _, code in ended[-2:]):
            break
    return ended


def limit_recordings(monkeypatch: pytest.MonkeyPatch, **limits: int) -> None:
    """Change fields of the memory limits of recordings that are opened in this test."""
    changed = replace(memory_budget.LIMITS, **limits)
    monkeypatch.setattr(memory_budget, "LIMITS", changed)
