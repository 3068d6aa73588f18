"""Recognizes packs by their first bytes, without loading what only packs need."""

from __future__ import annotations

import io
import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from rtit.remote_files import RemoteFile

if TYPE_CHECKING:
    from rtit.trace.recording.packs import OpenPack


_MAGIC = b"PK\x03\x04"
_READ_AHEAD = 1 << 20
"""Bytes that one request for a remote pack reads."""


def open_pack(source: str | os.PathLike[str] | BinaryIO) -> OpenPack | None:
    """Return the pack in a file, given by path or open for reading; None if it is not a pack.

    Raises InputError for a pack that cannot be read.
    """
    if isinstance(source, RemoteFile):
        if source.read_range(0, min(len(_MAGIC), source.size)) != _MAGIC:
            return None
        from rtit.trace.recording.packs import OpenPack

        return OpenPack(io.BufferedReader(source, _READ_AHEAD), source.name)
    if not isinstance(source, str | os.PathLike):
        name = getattr(source, "name", None)
        return _open_if_pack(source, name if isinstance(name, str) else "a pack")
    try:
        if not stat.S_ISREG(Path(source).stat().st_mode):
            return None
        with Path(source).open("rb") as file:
            return _open_if_pack(file, os.fspath(source))
    except (OSError, ValueError):
        return None  # Opening it as a recording reports the error.


def _open_if_pack(file: BinaryIO, name: str) -> OpenPack | None:
    try:
        descriptor = file.fileno()
        regular = stat.S_ISREG(os.fstat(descriptor).st_mode)
        if not regular or file.tell() or os.pread(descriptor, len(_MAGIC), 0) != _MAGIC:
            return None
    except io.UnsupportedOperation:
        return None
    from rtit.trace.recording.packs import OpenPack

    return OpenPack(file, name)
