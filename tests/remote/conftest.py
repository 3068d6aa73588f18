"""Fixtures of the tests of recordings by URL."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from rtit.cli.main import main
from support.recordings import Recorder
from support.remote import RangeServer, RunCommand, StoreFile, range_server


@pytest.fixture
def server() -> Iterator[RangeServer]:
    pytest.importorskip("aiohttp")
    with range_server() as running:
        yield running


@pytest.fixture
def recording(record: Recorder) -> Path:
    return record(["/bin/true"]).data


@pytest.fixture
def memory() -> Iterator[StoreFile]:
    """Return a function that stores a file in memory and returns its URL."""
    fsspec = pytest.importorskip("fsspec")
    system = fsspec.filesystem("memory")

    def store(name: str, content: bytes) -> str:
        system.pipe_file(f"/remote/{name}", content)
        return f"memory://remote/{name}"

    yield store
    if system.exists("/remote"):
        system.rm("/remote", recursive=True)


@pytest.fixture
def run(capfdbinary: pytest.CaptureFixture[bytes]) -> RunCommand:
    def run_command(words: Sequence[str | Path]) -> tuple[int, bytes, bytes]:
        capfdbinary.readouterr()
        try:
            code = main([*map(str, words)])
        except SystemExit as ended:
            code = int(ended.code or 0)
        return code, *capfdbinary.readouterr()

    return run_command
