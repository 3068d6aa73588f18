"""Folders of many recordings, and the commands that add them up."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from support.recordings import Recorder

SOURCE = Path(__file__).resolve().parents[2] / "docs" / "examples" / "program.c"
LIMITS = (3, 10, 25)
"""Arguments of the recorded program, by the number of the recording, again and again."""
COMMANDS = {
    "coverage": ["coverage", "--format", "lcov"],
    "bolt": ["profile", "--for", "bolt"],
    "stat": ["stat", "--json"],
    "calls": ["calls"],
    "folded": ["calls", "--folded"],
    "report": ["report"],
    "report-json": ["report", "--sort", "calls", "--json"],
}
DAMAGED = ("broken.data", "empty.data", "truncated.data")


@pytest.fixture(scope="session")
def primes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a static program that calls is_prime once for each number from 0 to its argument."""
    program = tmp_path_factory.mktemp("primes") / "primes"
    if shutil.which("cc") is None:
        pytest.skip("no C compiler")
    subprocess.run(["cc", "-g", "-O1", "-static", "-o", program, SOURCE], check=True)
    return program


def copy_recordings(folder: Path, count: int, record: Recorder, primes: Path) -> None:
    """Write so many recordings into the folder, every second one into a folder below it."""
    below = folder / "below"
    below.mkdir(parents=True)
    for number in range(count):
        recorded = record([primes, str(LIMITS[number % len(LIMITS)])])
        shutil.copy(recorded.data, (below if number % 2 else folder) / f"{number:02}.data")


def calls_of_is_prime(count: int) -> int:
    """Return the calls of is_prime in so many recordings."""
    return sum(LIMITS[number % len(LIMITS)] + 1 for number in range(count))


def add_damaged_recordings(folder: Path) -> None:
    """Add a broken and an empty recording, and one without its last records."""
    (folder / "broken.data").write_text("no recording")
    (folder / "empty.data").touch()
    content = (folder / "00.data").read_bytes()
    (folder / "truncated.data").write_bytes(content[: len(content) - len(content) // 4])
