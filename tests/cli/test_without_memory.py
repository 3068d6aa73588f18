"""Under any limit of memory a command ends by an exit code, with a line if it is not done."""

from __future__ import annotations

import os
import resource
import subprocess
from pathlib import Path

import pytest

from floods import recorded
from live import RTIT

PLAIN = ["report", "instructions", "packets"]
"""Those that load no NumPy, which takes a hundred megabytes of addresses and has its own words."""
NUMBERS = ["stat", "edges"]


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return recorded(tmp_path_factory.mktemp("flood"), "targets", 1 << 18)


@pytest.mark.parametrize(
    ("verb", "megabytes"),
    [
        *((verb, limit) for verb in PLAIN for limit in (52, 64)),
        *((verb, limit) for verb in NUMBERS for limit in (136, 1024)),
    ],
)
def test_it_ends_by_an_exit_code(recording: Path, verb: str, megabytes: int) -> None:
    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (megabytes << 20,) * 2)

    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "RUST_BACKTRACE": "0"}
    ended = subprocess.run(
        [*RTIT, verb, str(recording)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
        preexec_fn=limit,
        env=environment,
    )
    assert ended.returncode in (0, 1, 3), ended.stderr
    # Rust tells, too, how to see more
    lines = [line for line in ended.stderr.splitlines() if not line.startswith("note: ")]
    assert len(lines) == int(ended.returncode == 1), ended.stderr
