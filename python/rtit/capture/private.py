"""Files that tell what a program executed: for nobody else's eyes."""

from __future__ import annotations

import os
from io import FileIO
from pathlib import Path


def create(path: Path | str) -> FileIO:
    """An empty file, unbuffered; one that is new can be read by its owner alone. Raises OSError."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
    return FileIO(os.open(path, flags, 0o600), "wb")
