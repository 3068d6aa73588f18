"""`import rtit` loads next to nothing; the public names are these."""

from __future__ import annotations

import subprocess
import sys

import rtit


def test_import_is_light() -> None:
    script = (
        "import sys; before = set(sys.modules); import rtit; print(*(set(sys.modules) - before))"
    )
    ended = subprocess.run(
        [sys.executable, "-I", "-c", script], capture_output=True, text=True, check=True
    )
    assert set(ended.stdout.split()) <= {"rtit", "__future__"}


def test_public_names() -> None:
    assert dir(rtit) == ["Recording", "Trace", "__version__", "record"]
    for name in dir(rtit):
        assert getattr(rtit, name) is not None
