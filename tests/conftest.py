"""Fixtures shared by all tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from live import record
from programs.plugin import program

__all__ = ["program", "record"]

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def traces() -> Path:
    """Real hardware traces, kept beside the repository and not in it."""
    path = ROOT.parent / "shared" / "traces"
    if not path.is_dir():
        pytest.skip("the folder of real traces is not beside the repository")
    return path
