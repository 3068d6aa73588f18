"""How much memory something takes, counted by the kernel."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

_SELF = Path("/proc/self")


def _kilobytes(name: str) -> int:
    lines = (_SELF / "status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{name}:"))


@contextlib.contextmanager
def at_most(megabytes: int) -> Iterator[None]:
    """What is done within takes no more memory at any time than this, pages of mapped files among
    it (proc(5): 5 in clear_refs has the peak begin anew).
    """
    try:
        (_SELF / "clear_refs").write_text("5")
    except OSError:
        pytest.skip("the kernel does not count the peak of memory here")
    before = _kilobytes("VmRSS")
    yield
    taken = (_kilobytes("VmHWM") - before) // 1024
    assert taken <= megabytes, f"{taken} MB of memory"
