"""Every command of the README runs."""

from __future__ import annotations

import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from readme import README, ROOT, commands, programs, run_all
from rtit.cli.main import main


def test_the_readme_has_commands() -> None:
    assert len(commands()) > 5
    assert len(programs()) == 4


def test_commands(tmp_path: Path) -> None:
    if sys.platform != "linux":
        pytest.skip("recording needs Linux")
    (tmp_path / "bin").mkdir()
    rtit = tmp_path / "bin" / "rtit"
    rtit.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m rtit "$@"\n')
    rtit.chmod(0o755)
    run_all(tmp_path, rtit.parent)


@pytest.mark.parametrize("page", ["README.md", "docs/decoding.md"])
def test_programs(page: str, tmp_path: Path) -> None:
    if sys.platform != "linux":
        pytest.skip("recording needs Linux")
    main(["scenario", "--raw", str(tmp_path / "pt.bin"), "table_33_10_begin"])
    (tmp_path / "code.bin").write_bytes(b"\x90")
    shutil.copy("/bin/true", tmp_path / "program")
    for program in programs(ROOT / page):
        ended = subprocess.run(
            [sys.executable, "-c", program],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )
        assert ended.returncode == 0, ended.stderr
        assert ended.stdout


def test_make_targets_exist() -> None:
    makefile = (ROOT / "Makefile").read_text()
    targets = [
        word.split()[1] for word in README.read_text().splitlines() if word.startswith("    make ")
    ]
    assert targets
    for target in targets:
        assert f"\n{target}:" in makefile
