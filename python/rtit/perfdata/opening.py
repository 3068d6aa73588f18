"""A perf.data as one view of memory: a file is mapped, what comes through a pipe is copied first.

perf's records name each other by their place, so a pipe cannot be read as it flows; its copy is a
file without a name, on disk and not in memory, and gone when it is closed.
"""

from __future__ import annotations

import io
import mmap
import os
import stat
import time
from pathlib import Path
from typing import BinaryIO, NamedTuple

from rtit.errors import (
    MissingRecordingError,
    NotPerfDataError,
    PerfDataError,
    UnsupportedError,
)

from .header import MAGICS
from .parts import MAIN

_PART = 1 << 20


class Opened(NamedTuple):
    """`name` for messages; `modified` in seconds since 1970, of a pipe when its end was read;
    `folder`: the directory that it is in, if this was given.
    """

    name: str
    map: mmap.mmap
    modified: float
    folder: str | None = None


def open_map(source: str | os.PathLike[str] | BinaryIO) -> Opened:
    """Map a file, given by its path or open for reading in binary, from where it stands on.

    Raises MissingRecordingError; PerfDataError for a file that is empty, cannot be read, or, of a
    pipe, does not begin as a perf.data file; UnsupportedError for devices and other directories.
    """
    if not isinstance(source, str | os.PathLike):
        return _map(source, _name(source))
    path = os.fspath(source)
    folder = Path(path)
    try:
        if folder.is_dir():
            return _of_folder(folder, path)
        with folder.open("rb") as file:
            return _map(file, path)
    except FileNotFoundError as error:
        raise MissingRecordingError(path) from error
    except OSError as error:
        raise PerfDataError(f"cannot be read: {error.strerror}", source=path) from error
    except ValueError as error:  # a path with a NUL byte
        raise PerfDataError(f"cannot be read: {error}") from error


def _of_folder(folder: Path, name: str) -> Opened:
    main = folder / MAIN
    if not main.is_file() or main.is_symlink():
        raise UnsupportedError(f"{name}: a directory without a file {MAIN!r} is no perf.data")
    with main.open("rb") as file:
        return _map(file, str(main))._replace(name=name, folder=name)


def _map(file: BinaryIO, name: str) -> Opened:
    status = _status(file)
    if status is not None and stat.S_ISREG(status.st_mode) and not file.tell():
        if not status.st_size:
            raise PerfDataError("the file is empty", source=name, offset=0)
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        return Opened(name, mapped, status.st_mtime)
    if status is not None and not _flows(status.st_mode):
        raise UnsupportedError(f"{name}: neither a regular file nor a pipe")
    import tempfile

    with tempfile.TemporaryFile() as copy:
        size = _copy(file, copy, name)
        mapped = mmap.mmap(copy.fileno(), size, access=mmap.ACCESS_READ)
    return Opened(name, mapped, time.time())


def _copy(file: BinaryIO, copy: BinaryIO, name: str) -> int:
    """All of `file`; refused at its first bytes if it is something else, which may have no end."""
    begin = file.read(len(MAGICS[0]))
    if not begin:
        raise PerfDataError("the file is empty", source=name, offset=0)
    if begin not in MAGICS:
        raise NotPerfDataError(name, begin)
    part = begin
    try:
        while part:
            copy.write(part)
            part = file.read(_PART)
        copy.flush()
    except OSError as error:
        import tempfile

        where = tempfile.gettempdir()
        raise PerfDataError(
            f"cannot be copied to {where} (TMPDIR says where): {error.strerror}", source=name
        ) from error
    return copy.tell()


def _status(file: BinaryIO) -> os.stat_result | None:
    try:
        return os.fstat(file.fileno())
    except io.UnsupportedOperation:
        return None


def _flows(mode: int) -> bool:
    return stat.S_ISREG(mode) or stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)


def _name(file: BinaryIO) -> str:
    name = getattr(file, "name", None)
    return os.fsdecode(name) if isinstance(name, str | bytes) else "a pipe"
