"""What a test needs to record with."""

from __future__ import annotations

import pytest

from rtit.capture.qemu import Found, find_qemu


def need(backend: str) -> None:
    """Skip the test if it wants QEMU and there is none that fits."""
    if backend == "qemu":
        _found()


@pytest.fixture(scope="session")
def qemu() -> Found:
    return _found()


def _found() -> Found:
    found = find_qemu()
    if isinstance(found, str):
        pytest.skip(found)
    return found
