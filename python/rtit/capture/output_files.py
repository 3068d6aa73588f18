"""Create output files that only their owner can read, because they show what a program executed."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import BufferedWriter, FileIO
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Self

from rtit.errors import RecordError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from typing_extensions import Buffer


class NamedFile(FileIO):
    """Writes to a descriptor, which it owns. A write is complete or raises OSError.

    Errors have `name` as their file name, because a FileIO of a descriptor knows no name.
    """

    def __init__(self, descriptor: int, name: str) -> None:
        super().__init__(descriptor, "wb")
        self._given_name = name

    def write(self, data: Buffer, /) -> int:
        """Write all of `data` and return its size."""
        done = 0
        with self._add_name_to_errors(), memoryview(data).cast("B") as whole:
            while done < len(whole):
                with whole[done:] as rest:
                    size = super().write(rest)
                if size is None:
                    raise BlockingIOError(errno.EAGAIN, "writing would block")
                done += size
        return done

    def close(self) -> None:
        """Close the file. A network file system may report the error of an earlier write here."""
        with self._add_name_to_errors():
            super().close()

    @contextmanager
    def _add_name_to_errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            error.filename = self._given_name
            raise


def create_private_file(path: Path | str) -> NamedFile:
    """Open `path` for unbuffered writing and empty it; a new file is readable by its owner only.

    A dangling symbolic link is not followed, even if it appears meanwhile. Raises OSError.
    """
    flags = os.O_WRONLY | os.O_CLOEXEC
    try:
        descriptor = os.open(path, flags | os.O_TRUNC)
    except FileNotFoundError:
        descriptor = os.open(path, flags | os.O_CREAT | os.O_EXCL, 0o600)
    return NamedFile(descriptor, os.fspath(path))


class ReservedOutput:
    """An output file that is opened early, so that errors show early, and written later, at once.

    Until then the file keeps its contents. A new file is removed if it is never written. A context
    manager. Raises OSError, and RecordError for a dangling symbolic link.
    """

    def __init__(self, path: Path | str) -> None:
        self._path = path
        self._is_new = False
        refuse_dangling_link(path)
        flags = os.O_WRONLY | os.O_CLOEXEC
        try:
            descriptor = os.open(path, flags)
        except FileNotFoundError:
            # O_EXCL: a symbolic link that was created meanwhile is not followed.
            descriptor = os.open(path, flags | os.O_CREAT | os.O_EXCL, 0o600)
            self._is_new = True
        self._file = NamedFile(descriptor, os.fspath(path))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()
        if self._is_new:
            Path(self._path).unlink()

    @contextmanager
    def open_for_writing(self) -> Iterator[BinaryIO]:
        """Empty the file and open it; after an error it is empty again. Raises OSError."""
        with suppress(OSError):  # a device or a pipe cannot be truncated
            self._file.truncate(0)
        try:
            with BufferedWriter(self._file) as file:
                yield file
        except BaseException:
            with suppress(OSError):
                os.truncate(self._path, 0)
            raise
        self._is_new = False


def refuse_dangling_link(path: Path | str) -> None:
    """Raise RecordError for a dangling symbolic link: a write would create its target."""
    name = Path(path)
    if name.is_symlink() and not name.exists():
        raise RecordError(f"cannot write {path}: it is a dangling symbolic link")
