"""The file that a recorder writes: appended to, its header's numbers put in place later."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from types import TracebackType
from typing import Self

from rtit.errors import RecordError

_BUFFER = 1 << 18


def rotate(path: str | os.PathLike[str]) -> None:
    """Move an existing recording out of the way: NAME becomes NAME.old, an older NAME.old is lost.

    So does a symbolic link, also one to nothing: what it names is never written. What is no regular
    file (a device, a pipe) stays. Raises RecordError if it cannot be moved.
    """
    name = Path(path)
    if name.is_dir():
        raise RecordError(f"cannot write {name}: it is a directory")
    if not is_older(name):
        return
    try:
        name.replace(f"{name}.old")
    except OSError as error:
        raise RecordError(f"cannot rename {name} to {name}.old: {error.strerror}") from error


def is_older(path: Path) -> bool:
    """Whether `rotate` moves it: a file, or a link to one or to nothing."""
    return path.is_file() or (path.is_symlink() and not path.exists())


class OutputFile:
    """A new file. Small writes are gathered; every OSError comes as one RecordError.

    `failed` is set once bytes were lost, by an error or by an interrupt: what follows would not be
    where it should.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = os.fspath(path)
        self._buffer = bytearray()
        self._written = 0
        self._fd = -1
        self.failed = False
        try:
            self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise self._failed(error) from error

    @property
    def offset(self) -> int:
        """Bytes appended so far."""
        return self._written + len(self._buffer)

    def disk(self) -> tuple[int, int] | None:
        """Bytes that are free for this user on the file's disk, and its size; None of a device or
        pipe, or where the file system does not say it.
        """
        if not stat.S_ISREG(os.fstat(self._fd).st_mode):
            return None
        found = os.fstatvfs(self._fd)
        free, size = (blocks * found.f_frsize for blocks in (found.f_bavail, found.f_blocks))
        return (free, size) if size else None

    @property
    def closed(self) -> bool:
        """Whether the file is closed."""
        return self._fd < 0

    def append(self, *parts: bytes | bytearray | memoryview) -> None:
        """Add bytes at the end: all parts or, if anything comes in between, `failed`."""
        try:
            for part in parts:
                if len(part) < _BUFFER:
                    self._buffer += part
                else:
                    self.flush()
                    self._write(memoryview(part), self._written)
                    self._written += len(part)
            if len(self._buffer) >= _BUFFER:
                self.flush()
        except BaseException:
            self.failed = True
            raise

    def flush(self) -> None:
        """Hand what was gathered to the kernel: it outlives this process from here on."""
        if self._buffer:
            pending, self._buffer = self._buffer, bytearray()
            try:
                self._write(memoryview(pending), self._written)
            except BaseException:
                self.failed = True
                raise
            self._written += len(pending)

    def put(self, offset: int, data: bytes) -> None:
        """Overwrite bytes that were flushed."""
        self._write(memoryview(data), offset)

    def close(self) -> None:
        """Flush and close; nothing happens the second time."""
        if self.closed:
            return
        try:
            if not self.failed:
                self.flush()
        finally:
            fd, self._fd = self._fd, -1
            try:
                os.close(fd)
            except OSError as error:
                raise self._failed(error) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _write(self, data: memoryview, offset: int) -> None:
        try:
            while data:
                size = os.pwrite(self._fd, data, offset)
                data = data[size:]
                offset += size
        except OSError as error:
            raise self._failed(error) from error

    def _failed(self, error: OSError) -> RecordError:
        return RecordError(f"cannot write {self.path}: {error.strerror}")
