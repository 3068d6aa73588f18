"""AFL++ reads the map of a fork server that rtit fills."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import rtit
from programs.build import SOURCES, CannotBuildError, compiled
from rtit.cli.main import main
from support.recordings import require_backend

SERVER = Path(__file__).with_name("forkserver.py")


def test_afl_showmap_reads_edge_map(tmp_path: Path) -> None:
    showmap = shutil.which("afl-showmap")
    if showmap is None:
        pytest.skip("afl-showmap is not installed (Debian: afl++)")
    require_backend("qemu")
    try:
        program = compiled(
            "builds", [str(SOURCES / "builds.c")], language="c", flags=["-O1", "-static"]
        )
    except CannotBuildError as error:
        pytest.skip(str(error))
    inputs, found = tmp_path / "in", tmp_path / "out"
    inputs.mkdir()
    (inputs / "one").write_text("nothing")
    environment = {
        **os.environ,
        "PYTHONPATH": str(Path(rtit.__file__).parent.parent),
        "FORKSERVER_FOLDER": str(tmp_path),
        "AFL_SKIP_BIN_CHECK": "1",
        "AFL_FORKSRV_INIT_TMOUT": "60000",
    }
    target = [sys.executable, str(SERVER), str(program)]
    ended = subprocess.run(
        [
            showmap,
            "-r",
            "-i",
            str(inputs),
            "-o",
            str(found),
            "-t",
            "60000",
            "-m",
            "none",
            "--",
            *target,
        ],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    rows = (line.split(":") for line in (found / "one").read_text().split())
    seen = {int(at): int(count) for at, count in rows}
    data, ours = tmp_path / "data", tmp_path / "ours"
    assert main(["coverage", str(data), "--format", "afl", "-o", str(ours)]) == 0
    counters = ours.read_bytes()
    assert len(seen) > 500
    assert seen == {at: count for at, count in enumerate(counters) if count}
