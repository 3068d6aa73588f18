"""The Python that docs/counting.md shows."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from support.doc_commands import ROOT, python_blocks
from support.recordings import require_backend


def test_programs(tmp_path: Path) -> None:
    require_backend("qemu")
    found = python_blocks(ROOT / "docs" / "counting.md")
    assert found
    for program in found:
        ended = subprocess.run(
            [sys.executable, "-c", program],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )
        assert ended.returncode == 0, ended.stderr
        assert ended.stdout
