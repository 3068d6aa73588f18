"""Under any limit of memory a command ends by an exit code, with a line if it is not done."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from floods import recorded

COMMAND = """
import resource, sys
from rtit import _core
from rtit.cli.main import main
if sys.argv[2] in ("stat", "edges"):
    import numpy
with open("/proc/self/status") as status:
    now = next(int(line.split()[1]) << 10 for line in status if line.startswith("VmSize"))
resource.setrlimit(resource.RLIMIT_AS, (now + (int(sys.argv.pop(1)) << 20),) * 2)
sys.exit(main())
"""
"""What a machine maps for Python and NumPy does not count."""


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return recorded(tmp_path_factory.mktemp("flood"), "targets", 1 << 18)


@pytest.mark.parametrize("verb", ["report", "instructions", "packets", "stat", "edges"])
@pytest.mark.parametrize("megabytes", [16, 24, 32, 1024])
def test_it_ends_by_an_exit_code(recording: Path, verb: str, megabytes: int) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", COMMAND, str(megabytes), verb, str(recording)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
        env={**os.environ, "RUST_BACKTRACE": "0"},
    )
    assert ended.returncode in (0, 1, 3), ended.stderr
    # Rust tells, too, how to see more
    lines = [line for line in ended.stderr.splitlines() if not line.startswith("note: ")]
    assert len(lines) == int(ended.returncode == 1), ended.stderr
