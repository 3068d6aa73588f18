"""Create output files that only their owner can read: they show what a program executed."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import BufferedWriter
from pathlib import Path
from typing import BinaryIO, Self

from rtit.capture.named_file import NamedFile
from rtit.errors import RecordError


def create_private_file(path: Path | str) -> NamedFile:
    """An empty file, unbuffered; one that is new can be read by its owner alone. A symbolic link to
    nothing is not followed, whenever it comes. Raises OSError.
    """
    flags = os.O_WRONLY | os.O_CLOEXEC
    try:
        number = os.open(path, flags | os.O_TRUNC)
    except FileNotFoundError:
        number = os.open(path, flags | os.O_CREAT | os.O_EXCL, 0o600)
    return NamedFile(number, os.fspath(path))


class ReservedOutput:
    """A file that is written later, all at once: whether it can be is known before. Until then it
    keeps what it has, and one that is new goes again if nothing is written.

    A context manager. Raises OSError, and RecordError for a symbolic link to nothing.
    """

    def __init__(self, path: Path | str) -> None:
        self._path = path
        self._new = False
        refuse_dangling_link(path)
        flags = os.O_WRONLY | os.O_CLOEXEC
        try:
            number = os.open(path, flags)
        except FileNotFoundError:
            # with O_EXCL a link that has come meanwhile is not followed
            number = os.open(path, flags | os.O_CREAT | os.O_EXCL, 0o600)
            self._new = True
        self._file = NamedFile(number, os.fspath(path))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()
        if self._new:
            Path(self._path).unlink()

    @contextmanager
    def writing(self) -> Iterator[BinaryIO]:
        """The file, emptied; of what could not be written whole nothing stays. Raises OSError."""
        with suppress(OSError):  # of a device or a pipe there is nothing to empty
            self._file.truncate(0)
        try:
            with BufferedWriter(self._file) as file:
                yield file
        except BaseException:
            with suppress(OSError):
                os.truncate(self._path, 0)
            raise
        self._new = False


def refuse_dangling_link(path: Path | str) -> None:
    """Raise RecordError for a dangling symbolic link: a write would create its target."""
    name = Path(path)
    if name.is_symlink() and not name.exists():
        raise RecordError(f"cannot write {path}: it is a symbolic link to nothing")
