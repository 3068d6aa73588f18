"""Files that tell what a program executed: for nobody else's eyes."""

from __future__ import annotations

import os
from io import FileIO
from pathlib import Path

from rtit.errors import RecordError


def create(path: Path | str) -> FileIO:
    """An empty file, unbuffered; one that is new can be read by its owner alone. Raises OSError."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
    return FileIO(os.open(path, flags, 0o600), "wb")


def refuse_link_to_nothing(path: Path | str) -> None:
    """Raise RecordError for one: where it leads nobody has said that a file may be."""
    name = Path(path)
    if name.is_symlink() and not name.exists():
        raise RecordError(f"cannot write {path}: it is a symbolic link to nothing")
