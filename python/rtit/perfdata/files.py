"""The parts of a recording: its file, the files of a directory beside it, and what was compressed.

`perf record -z` writes its records as pieces of a Zstandard stream, one stream a file; they follow
each other there as in a file of their own. `perf record --threads` writes a directory: `data` with
the header, `data.0` and so on with records alone.

A perf.data as one view of memory: a file is mapped, what comes through a pipe is copied first.

perf's records name each other by their place, so a pipe cannot be read as it flows; its copy is a
file without a name, on disk and not in memory, and gone when it is closed.
"""

from __future__ import annotations

import io
import mmap
import os
import re
import stat
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, NamedTuple

from rtit.errors import (
    MissingRecordingError,
    NotPerfDataError,
    PerfDataError,
    UnsupportedError,
)
from rtit.perfdata import records
from rtit.perfdata.file_scan import MAGICS, Behind, Header, Place, Scan, Section, check_size
from rtit.perfdata.records import HEADER
from rtit.perfdata.samples import Decoder, SampleLayouts

MAIN = "data"
"""The file with the header in a directory."""
_OTHER = re.compile(r"data\.[0-9]{1,6}")
_COMPRESSED, _COMPRESSED2 = records.COMPRESSED
_U64 = struct.Struct("<Q")
_ALWAYS = 1 << 26
_RATIO = 256


class Part(NamedTuple):
    """Records, mapped: `view` is all of them, `map` what they are in."""

    map: mmap.mmap
    view: memoryview
    scan: Scan

    def records(self, layouts: SampleLayouts, source: str) -> Iterator[records.Record]:
        """All but those that hold compressed ones."""
        decoder = Decoder(self.view, layouts, source)
        for place in self.scan.walk():
            if place.number not in records.COMPRESSED:
                yield decoder.record(place)


def others(folder: str) -> list[str]:
    """The files of records in a directory, in the order of their numbers; regular ones alone."""
    with os.scandir(folder) as entries:
        found = [
            each.path
            for each in entries
            if _OTHER.fullmatch(each.name) and each.is_file(follow_symlinks=False)
        ]
    return sorted(found, key=lambda path: int(path.rpartition(".")[2]))


def bare(path: str, source: str) -> Part | None:
    """A file of records without a header; None if it is empty. Raises PerfDataError."""
    try:
        with Path(path).open("rb") as file:
            if not os.fstat(file.fileno()).st_size:
                return None
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except OSError as error:
        raise PerfDataError(f"cannot be read: {error.strerror}", source=path) from error
    return _part(mapped, source)


def inflated(view: memoryview, scan: Scan, source: str) -> Part | None:
    """The records that were compressed in others; None if there are none.

    They go to a file without a name, which is gone when it is closed. Raises PerfDataError for what
    is no Zstandard, or grows beyond all measure.
    """
    places = [place for number in records.COMPRESSED for place in scan.noted[number]]
    if not places:
        return None
    import tempfile

    from rtit._core import unzstd

    limit = _ALWAYS + _RATIO * sum(place.size for place in places)
    first = min(place.offset for place in places)
    pieces = (_payload(view, place, source) for place in sorted(places))
    with tempfile.TemporaryFile() as copy:
        try:
            size = unzstd(pieces, copy.write, limit)
        except ValueError as error:
            message = f"compressed records: {error}"
            raise PerfDataError(message, source=source, offset=first) from None
        except OSError as error:
            where = tempfile.gettempdir()
            message = f"cannot be copied to {where} (TMPDIR says where): {error.strerror}"
            raise PerfDataError(message, source=source) from error
        if not size:
            return None
        copy.flush()
        mapped = mmap.mmap(copy.fileno(), size, access=mmap.ACCESS_READ)
    return _part(mapped, source)


def _part(mapped: mmap.mmap, source: str) -> Part:
    view = memoryview(mapped)
    whole = Header(None, 0, Section(0, len(view)), ())
    size = len(view)

    def behind() -> Behind:
        return Behind(lambda _start, _end: None, lambda: check_size(mapped, size, source))

    return Part(mapped, view, Scan(view, whole, source, behind))


def _payload(view: memoryview, place: Place, source: str) -> memoryview:
    """The compressed bytes of a record; those of the second kind say how many they are."""
    start, end = place.offset + HEADER.size, place.offset + place.size
    if place.number == _COMPRESSED2:
        if end - start < _U64.size:
            raise PerfDataError(
                "a COMPRESSED2 record is too short",
                source=source,
                offset=place.offset,
                value=place.size,
            )
        (size,) = _U64.unpack_from(view, start)
        start += _U64.size
        if size > end - start:
            raise PerfDataError(
                "COMPRESSED2 says it has more bytes than its record",
                source=source,
                offset=place.offset,
                value=size,
            )
        end = start + size
    return view[start:end]


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
