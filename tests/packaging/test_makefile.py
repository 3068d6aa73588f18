"""The Makefile works in its own virtual environment."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def test_make_ignores_an_active_virtual_environment() -> None:
    """Maturin installs into the environment that these variables name."""
    make = shutil.which("make")
    if make is None:
        pytest.skip("make is not installed")
    shown = subprocess.run(
        [make, "-s", "--eval", 'show:; @echo "$$VIRTUAL_ENV,$$CONDA_PREFIX"', "show"],
        cwd=ROOT,
        env={**os.environ, "VIRTUAL_ENV": "/other/venv", "CONDA_PREFIX": "/other/conda"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert shown.stdout == f"{ROOT / '.venv'},\n"
