"""The files of a recording, mapped into memory.

`map_recording` maps the file that a caller names. perf's records refer to each other by position,
so a pipe is first copied to an unnamed temporary file, and a directory (`perf record --threads`)
stands for the file `data` in it, which has the header. A remote file is mapped as a `SparseCopy`.

A recording can have more `RecordingFile`s, which have records but no header: the files `data.0`,
`data.1` and so on of a directory, and the decompressed content of COMPRESSED records
(`perf record -z`). The latter are pieces of one Zstandard stream for each file; its content also
goes to an unnamed temporary file, bounded by a multiple of the compressed size.
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
from typing import TYPE_CHECKING, BinaryIO, NamedTuple

from rtit.errors import MissingRecordingError, NotPerfDataError, PerfDataError, UnsupportedError
from rtit.perfdata import records
from rtit.perfdata.file_scan import (
    FILE_HEADER,
    MAGICS,
    FileHeader,
    FileSection,
    PageReleaser,
    RecordHeader,
    RecordScan,
    check_not_truncated,
)
from rtit.perfdata.records import RECORD_HEADER
from rtit.perfdata.samples import RecordDecoder, SampleLayouts
from rtit.remote_files import RemoteFile, open_if_url

if TYPE_CHECKING:
    from rtit.perfdata.sparse_copy import LoadedOnUse, SparseCopy

_MAIN = "data"
"""The file with the header in a directory."""
_NUMBERED = re.compile(r"data\.[0-9]{1,6}")
_COMPRESSED, _COMPRESSED2 = records.COMPRESSED_TYPES
_U64 = struct.Struct("<Q")
_MIN_DECOMPRESSED, _MAX_RATIO = 1 << 26, 256
"""Decompressed records can have this many bytes, and this many times the compressed size more."""
_COPY_SIZE = 1 << 20
_FILES_AND_STREAMS = stat.S_IFREG, stat.S_IFIFO, stat.S_IFSOCK


class RecordingFile(NamedTuple):
    """A mapped file, and the scan of its records."""

    map: mmap.mmap
    view: memoryview
    scan: RecordScan
    copy: SparseCopy | None = None
    """Loads the parts of a remote file; None if the file is local."""

    def aux_data(self, start: int, end: int) -> memoryview | LoadedOnUse:
        """Return a range of AUX data without reading it."""
        if self.copy is None:
            return self.view[start:end]
        from rtit.perfdata.sparse_copy import LoadedOnUse

        return LoadedOnUse(self.copy, start, end)

    def records(self, layouts: SampleLayouts, source: str) -> Iterator[records.Record]:
        """Yield all records except those that contain compressed ones."""
        decoder = RecordDecoder(self.view, layouts, source)
        for header in self.scan.iterate_headers():
            if header.type not in records.COMPRESSED_TYPES:
                yield decoder.decode(header)


def list_record_files(folder: str) -> list[str]:
    """Return the regular files `data.N` of a directory, ordered by N."""
    with os.scandir(folder) as entries:
        found = [
            each.path
            for each in entries
            if _NUMBERED.fullmatch(each.name) and each.is_file(follow_symlinks=False)
        ]
    return sorted(found, key=lambda path: int(path.rpartition(".")[2]))


def open_record_file(path: str, source: str) -> RecordingFile | None:
    """Map a file of records without a header; None if it is empty. Raises PerfDataError."""
    try:
        with Path(path).open("rb") as file:
            if not os.fstat(file.fileno()).st_size:
                return None
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except FileNotFoundError as error:
        raise MissingRecordingError(path) from error
    except OSError as error:
        raise PerfDataError(f"cannot be read: {error.strerror}", source=path) from error
    return _record_file(mapped, source)


def decompress_records(view: memoryview, scan: RecordScan, source: str) -> RecordingFile | None:
    """Return the content of a file's COMPRESSED records; None if it has none.

    Raises PerfDataError if the data is not Zstandard or grows beyond the limit.
    """
    headers = [header for type_ in records.COMPRESSED_TYPES for header in scan.indexed[type_]]
    if not headers:
        return None
    from rtit._core import unzstd

    limit = _MIN_DECOMPRESSED + _MAX_RATIO * sum(header.size for header in headers)
    first = min(header.offset for header in headers)
    payloads = (_compressed_payload(view, header, source) for header in sorted(headers))
    import tempfile

    with tempfile.TemporaryFile() as copy:
        try:
            size = unzstd(payloads, copy.write, limit)
        except ValueError as error:
            message = f"compressed records: {error}"
            raise PerfDataError(message, source=source, offset=first) from None
        except OSError as error:
            raise _copy_error(error, source) from error
        if not size:
            return None
        copy.flush()
        mapped = mmap.mmap(copy.fileno(), size, access=mmap.ACCESS_READ)
    return _record_file(mapped, source)


def _record_file(mapped: mmap.mmap, source: str) -> RecordingFile:
    view = memoryview(mapped)
    size = len(view)
    header = FileHeader(None, 0, FileSection(0, size), ())

    def new_releaser() -> PageReleaser:
        return PageReleaser(
            lambda _start, _end: None, lambda: check_not_truncated(mapped, size, source)
        )

    return RecordingFile(mapped, view, RecordScan(view, header, source, new_releaser))


def _compressed_payload(view: memoryview, header: RecordHeader, source: str) -> memoryview:
    """Return the compressed bytes of a record. COMPRESSED2 has their number, as it is padded."""
    start, end = header.offset + RECORD_HEADER.size, header.offset + header.size
    if header.type == _COMPRESSED2:
        if end - start < _U64.size:
            raise header.error("a COMPRESSED2 record is too short", source)
        (size,) = _U64.unpack_from(view, start)
        start += _U64.size
        if size > end - start:
            message = "COMPRESSED2 says it has more bytes than its record"
            raise PerfDataError(message, source=source, offset=header.offset, value=size)
        end = start + size
    return view[start:end]


class MappedFile(NamedTuple):
    """The file with the header, mapped."""

    name: str
    """For messages."""
    map: mmap.mmap
    modified: float
    """Time of the last change, in seconds since 1970; of a pipe the time when its end was read."""
    folder: str | None = None
    """The directory that contains the file, if the caller named that."""
    copy: SparseCopy | None = None
    """Loads the parts of a remote file; None if the file is local."""


def map_recording(source: str | os.PathLike[str] | BinaryIO) -> MappedFile:
    """Map a file, given by path or URL, or open for reading in binary, from its position on.

    Raises PerfDataError if it is empty, cannot be read, or is a pipe without the magic of
    perf.data; UnsupportedError for devices, and for directories that are not a recording.
    """
    source = open_if_url(source)
    if isinstance(source, RemoteFile):
        return _map_remote_file(source)
    if not isinstance(source, str | os.PathLike):
        return _map_input_file(source, _name_of_input(source))
    path = os.fspath(source)
    folder = Path(path)
    try:
        if folder.is_dir():
            return _map_main_file(folder, path)
        with folder.open("rb") as file:
            return _map_input_file(file, path)
    except FileNotFoundError as error:
        raise MissingRecordingError(path) from error
    except OSError as error:
        raise PerfDataError(f"cannot be read: {error.strerror}", source=path) from error
    except ValueError as error:  # a path with a NUL byte
        raise PerfDataError(f"cannot be read: {error}") from error


def _map_main_file(folder: Path, name: str) -> MappedFile:
    main = folder / _MAIN
    if not main.is_file() or main.is_symlink():
        raise UnsupportedError(f"{name}: a directory without a file {_MAIN!r} is not a recording")
    with main.open("rb") as file:
        return _map_input_file(file, str(main))._replace(name=name, folder=name)


def _map_input_file(file: BinaryIO, name: str) -> MappedFile:
    status = _file_status(file)
    if status is not None and stat.S_ISREG(status.st_mode) and not file.tell():
        if not status.st_size:
            raise PerfDataError("the file is empty", source=name, offset=0)
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        return MappedFile(name, mapped, status.st_mtime)
    if status is not None and stat.S_IFMT(status.st_mode) not in _FILES_AND_STREAMS:
        raise UnsupportedError(f"{name}: neither a regular file nor a pipe")
    import tempfile

    with tempfile.TemporaryFile() as copy:
        size = _copy_perf_file(file, copy, name)
        mapped = mmap.mmap(copy.fileno(), size, access=mmap.ACCESS_READ)
    return MappedFile(name, mapped, time.time())


def _map_remote_file(file: RemoteFile) -> MappedFile:
    from rtit.perfdata.sparse_copy import SparseCopy

    if not file.size:
        raise PerfDataError("the file is empty", source=file.name, offset=0)
    copy = SparseCopy(file)
    copy.load(0, FILE_HEADER.size)
    return MappedFile(file.name, copy.map, file.modified, copy=copy)


def _copy_perf_file(file: BinaryIO, copy: BinaryIO, name: str) -> int:
    """Copy all of `file` and return its size, after a check of the magic."""
    magic = file.read(len(MAGICS[0]))
    if not magic:
        raise PerfDataError("the file is empty", source=name, offset=0)
    if magic not in MAGICS:
        raise NotPerfDataError(name, magic)
    block = magic
    try:
        while block:
            copy.write(block)
            block = file.read(_COPY_SIZE)
        copy.flush()
    except OSError as error:
        raise _copy_error(error, name) from error
    return copy.tell()


def _copy_error(error: OSError, source: str) -> PerfDataError:
    import tempfile

    folder = tempfile.gettempdir()
    message = f"cannot be copied to {folder} (set by TMPDIR): {error.strerror}"
    return PerfDataError(message, source=source)


def _file_status(file: BinaryIO) -> os.stat_result | None:
    try:
        return os.fstat(file.fileno())
    except io.UnsupportedOperation:
        return None


def _name_of_input(file: BinaryIO) -> str:
    name = getattr(file, "name", None)
    return os.fsdecode(name) if isinstance(name, str | bytes) else "a pipe"
