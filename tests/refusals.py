"""Work under limits of memory, in processes of their own."""

from __future__ import annotations

import contextlib
import hashlib
import os
import resource
import traceback
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

STEP = 3 << 20
"""Bytes between two limits, at least."""
MOST = 400 << 20
"""Under so much everything ends well."""
WRONG = 65
"""Exit code: something else was raised, or the result was another."""


def _mapped() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmSize"))


def limits() -> Iterator[int]:
    """Bytes beside what is mapped already."""
    limit = 0
    while limit < MOST:
        yield limit
        limit += max(STEP, limit // 2)


def digest(parts: Iterable[object]) -> str:
    """Of results: of columns their bytes."""
    found = hashlib.sha256()
    for part in parts:
        data = part if isinstance(part, bytes) else getattr(part, "tobytes", None)
        found.update(data() if callable(data) else data or repr(part).encode())
    return found.hexdigest()


@contextlib.contextmanager
def limited(more: int) -> Iterator[None]:
    """No more than so many bytes are mapped beside what is now."""
    resource.setrlimit(resource.RLIMIT_AS, (_mapped() + more, resource.RLIM_INFINITY))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY,) * 2)


def _child(work: Callable[[], str], limit: int, expected: str) -> int:
    """How the work ended under the limit: 0 whole, 1 MemoryError; then it was whole without."""
    refused = 0
    try:
        with limited(limit):
            right = work() == expected
    except MemoryError:
        refused, right = 1, True
    if not right or work() != expected:
        return WRONG
    return refused


def apart(work: Callable[[], str]) -> str:
    """What a process of its own finds."""
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


def tried(work: Callable[[], str], *, clean: bool = False) -> list[tuple[int, int]]:
    """Limits with how the work ended under each; a signal's number is below zero. `clean`: this
    process never does the work itself, so that no memory is left over from that.
    """
    expected = apart(work) if clean else work()
    ended = []
    for limit in limits():
        child = os.fork()
        if child == 0:
            code = WRONG
            try:
                code = _child(work, limit, expected)
            except BaseException:  # whatever it is: pytest is in the parent
                traceback.print_exc()
            finally:
                os._exit(code)
        _, status = os.waitpid(child, 0)
        ended.append((limit, os.waitstatus_to_exitcode(status)))
        if ended[-1][1] == 0 and limit > 0 and all(code == 0 for _, code in ended[-2:]):
            break
    return ended
