"""Whether what is opened is a pack: nothing that takes one apart is loaded for what is none."""

from __future__ import annotations

import io
import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

if TYPE_CHECKING:
    from rtit.trace.packed import Pack

_MAGIC = b"PK\x03\x04"


def pack_in(source: str | os.PathLike[str] | BinaryIO) -> Pack | None:
    """The pack in a file, by its path or open for reading; None if it is something else, which may
    be anything. Raises InputError for a pack that cannot be read.
    """
    if not isinstance(source, str | os.PathLike):
        name = getattr(source, "name", None)
        return _pack(source, name if isinstance(name, str) else "a pack")
    try:
        if not stat.S_ISREG(Path(source).stat().st_mode):
            return None
        with Path(source).open("rb") as file:
            return _pack(file, os.fspath(source))
    except (OSError, ValueError):
        return None  # who reads recordings says why


def _pack(file: BinaryIO, name: str) -> Pack | None:
    try:
        descriptor = file.fileno()
        regular = stat.S_ISREG(os.fstat(descriptor).st_mode)
        if not regular or file.tell() or os.pread(descriptor, len(_MAGIC), 0) != _MAGIC:
            return None
    except io.UnsupportedOperation:
        return None
    from rtit.trace.packed import Pack

    return Pack(file, name)
