"""Every command of the README runs."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
README = ROOT / "README.md"


def commands() -> list[str]:
    lines = README.read_text().splitlines()
    return [line.removeprefix("    $ ") for line in lines if line.startswith("    $ ")]


def test_the_readme_has_commands() -> None:
    assert len(commands()) > 5


def test_commands(tmp_path: Path) -> None:
    if sys.platform != "linux":
        pytest.skip("recording needs Linux")
    (tmp_path / "bin").mkdir()
    rtit = tmp_path / "bin" / "rtit"
    rtit.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m rtit "$@"\n')
    rtit.chmod(0o755)
    shutil.copy("/bin/true", tmp_path / "program")
    environment = {**os.environ, "PATH": f"{rtit.parent}:{os.environ['PATH']}"}
    for command in commands():
        if command.startswith("perf ") and shutil.which("perf") is None:
            continue
        ended = subprocess.run(
            ["/bin/bash", "-o", "pipefail", "-c", command],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
        )
        # 141: the reader of a pipe had enough
        assert ended.returncode in (0, 141), f"{command}\n{ended.stdout}{ended.stderr}"
        assert "Traceback" not in ended.stderr, command


def test_make_targets_exist() -> None:
    makefile = (ROOT / "Makefile").read_text()
    targets = [
        word.split()[1] for word in README.read_text().splitlines() if word.startswith("    make ")
    ]
    assert targets
    for target in targets:
        assert f"\n{target}:" in makefile
