"""The header of a perf.data file, and the walk over its records by their sizes.

The file header is: magic "PERFILE2", u64 size of the header, u64 size of an entry of the attrs
section, then (offset, size) of the attrs, the data and an obsolete section, then 256 feature bits.
If the header size is 16 nothing else follows: this is pipe mode, where attrs and features are
records.

`RecordScan` walks over all records once, when a file is opened. It does not decode them; it checks
their sizes and indexes the few that are needed to decode the others. The file is mapped, and
`PageReleaser` takes pages out of memory after they were read, so memory does not grow with the
file.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from rtit.errors import NotPerfDataError, PerfDataError, UnsupportedError
from rtit.perfdata import records
from rtit.perfdata.attr import MIN_ATTR_SIZE
from rtit.perfdata.records import RECORD_HEADER

MAGIC = b"PERFILE2"
_VERSION_1 = b"PERFFILE"
MAGICS = (MAGIC, MAGIC[::-1], _VERSION_1)
"""Magics of perf.data files: ours, big-endian, and version 1. Only the first is supported."""
FILE_HEADER = struct.Struct("<8sQQ QQ QQ QQ 4Q")
PIPE_HEADER = struct.Struct("<8sQ")
SECTION_ENTRY = struct.Struct("<QQ")
DATA_SIZE_OFFSET = 48
"""Offset in the header of the size of all records; a recorder updates it while it writes."""
FLAGS_OFFSET = 72
"""Offset in the header of the feature bits."""


@dataclass(frozen=True, slots=True)
class FileSection:
    """A range of the file, in bytes."""

    offset: int
    size: int

    @property
    def end(self) -> int:
        """The offset after the last byte."""
        return self.offset + self.size


@dataclass(frozen=True, slots=True)
class FileHeader:
    """The header of a file. In pipe mode `attrs` is None."""

    attrs: FileSection | None
    entry_size: int
    data: FileSection
    features: tuple[int, ...]
    """Numbers of the set feature bits, in ascending order."""

    @classmethod
    def decode(cls, file: memoryview, source: str) -> FileHeader:
        """Return the checked header of `file`, which is the whole file.

        Raises PerfDataError if it is not a perf.data file or contradicts the file's size,
        UnsupportedError for files of big-endian machines or of perf before 2010.
        """

        def error(message: str, offset: int, value: int) -> PerfDataError:
            return PerfDataError(message, source=source, offset=offset, value=value)

        magic = bytes(file[: len(MAGIC)])
        if magic == MAGIC[::-1]:
            raise UnsupportedError(f"{source}: perf.data of a big-endian machine is not supported")
        if magic == _VERSION_1:
            raise UnsupportedError(f"{source}: version 1 of perf.data is not supported")
        if magic != MAGIC:
            raise NotPerfDataError(source, magic)
        if len(file) < PIPE_HEADER.size:
            raise error("ends within the header", len(file), len(file))
        size: int = PIPE_HEADER.unpack_from(file)[1]
        if size == PIPE_HEADER.size:
            return cls(None, 0, FileSection(size, len(file) - size), ())
        if size < FILE_HEADER.size:
            raise error("bad size of the header", 8, size)
        if len(file) < FILE_HEADER.size:
            raise error("ends within the header", len(file), len(file))
        _, _, entry_size, attrs_offset, attrs_size, data_offset, data_size, _, _, *flags = (
            FILE_HEADER.unpack_from(file)
        )
        attrs = FileSection(attrs_offset, attrs_size)
        if entry_size < MIN_ATTR_SIZE + SECTION_ENTRY.size or entry_size > len(file):
            raise error("bad size of an attr's entry", 16, entry_size)
        if attrs.end > len(file):
            raise error("the attrs lie outside of the file", 24, attrs_offset)
        if attrs_size % entry_size:
            message = "the size of the attrs is not a multiple of their entries' size"
            raise error(message, 32, attrs_size)
        if data_offset < FILE_HEADER.size:
            raise error("the records overlap the header", 40, data_offset)
        bits = sum(word << 64 * i for i, word in enumerate(flags))
        features = tuple(number for number in range(256) if bits >> number & 1)
        return cls(attrs, entry_size, FileSection(data_offset, data_size), features)


MAX_RECORD_SIZE = (1 << 16) - 1
"""Without the data after an AUXTRACE record."""
_AUXTRACE = records.Auxtrace.layout.number
_TRACING_DATA = records.TracingData.layout.number
_FEATURE = records.HeaderFeature.layout.number
_FEATURE_BODY = RECORD_HEADER.size + 8
_RELEASE_STEP = 1 << 24
"""Pages are released when this many bytes were read."""
_CHECK_STEP = 1 << 18
"""The size of the file is checked each time this many bytes were read. What was read since the last
check can be zeros if the file was truncated meanwhile; the next check then raises the error.
"""


class RecordHeader(NamedTuple):
    """The position and the header of a record.

    `offset` is that in the file; `size` is in bytes, without the data after an AUXTRACE record.
    """

    offset: int
    type: int
    misc: int
    size: int

    def error(self, message: str, source: str) -> PerfDataError:
        """Return an error with the position and the size of the record."""
        return PerfDataError(message, source=source, offset=self.offset, value=self.size)


def check_not_truncated(mapped: mmap.mmap, size: int, source: str) -> None:
    """Raise PerfDataError if the file is now shorter than `size`, its size when it was mapped.

    In the commands, pages beyond the end of a truncated file read as zeros
    (`_core.read_truncated_maps_as_zeros`). A process without this gets SIGBUS when it reads them.
    """
    current = mapped.size()
    if current < size:
        message = "the file became shorter while it was read"
        raise PerfDataError(message, source=source, offset=current, value=current)


class PageReleaser:
    """Releases the pages of a mapped file that a sequential reader has passed."""

    def __init__(self, release: Callable[[int, int], None], check: Callable[[], None]) -> None:
        """`release` takes a start and an end offset; `check` raises if the file is truncated."""
        self._release = release
        self._check = check
        self._start = 0
        self._checked = -_CHECK_STEP

    def advance_to(self, offset: int) -> None:
        """Note that all before `offset` was read. Raises PerfDataError if the file is truncated."""
        if not 0 <= offset - self._checked < _CHECK_STEP:
            self._check()
            self._checked = offset
        if offset - self._start >= _RELEASE_STEP:
            self._release(self._start, offset)
            self._start = offset


class RecordScan:
    """Finds the records of a file and indexes those that describe the others.

    Raises PerfDataError for an impossible record. In a file that was cut the records end before it
    instead, and `incomplete` says so.
    """

    INDEXED_TYPES = frozenset(
        cls.layout.number
        for cls in (
            records.Auxtrace,
            records.AuxtraceInfo,
            records.TimeConv,
            records.HeaderAttr,
            records.BuildId,
            records.IdIndex,
            records.AuxOutputHwId,
        )
    ) | set(records.COMPRESSED_TYPES)

    def __init__(
        self,
        file: memoryview,
        file_header: FileHeader,
        source: str,
        new_releaser: Callable[[], PageReleaser],
    ) -> None:
        self._file = file
        self._new_releaser = new_releaser
        self._source = source
        self._start = file_header.data.offset
        self.incomplete: str | None = None
        """Why the file ends early, in one sentence; None if it is complete."""
        self.indexed: dict[int, list[RecordHeader]] = {type_: [] for type_ in self.INDEXED_TYPES}
        """The records of each indexed type, in file order."""
        self.features: dict[int, tuple[int, int]] = {}
        """(offset, size) of each feature that is a record."""
        file_size = len(file)
        has_size = file_header.attrs is not None and file_header.data.size > 0
        self._is_cut = not has_size or file_header.data.end > file_size
        self._end = min(file_header.data.end, file_size) if has_size else file_size
        if file_header.data.end > file_size:
            self.mark_incomplete(
                f"the file has {file_size:,} bytes, "
                f"its records end at byte {file_header.data.end:,}"
            )
        elif file_header.attrs is not None and not file_header.features:
            self.mark_incomplete("the recorder did not finish the file")
        for header in self.iterate_headers():
            if header.type in self.INDEXED_TYPES:
                self.indexed[header.type].append(header)
            elif header.type == _FEATURE and header.size >= _FEATURE_BODY:
                body = header.offset + _FEATURE_BODY
                number = int.from_bytes(file[body - 8 : body], "little")
                self.features[number] = (body, header.size - _FEATURE_BODY)

    def mark_incomplete(self, message: str) -> None:
        """Set `incomplete`, unless an earlier reason is set."""
        if self.incomplete is None:
            self.incomplete = message

    def iterate_headers(self) -> Iterator[RecordHeader]:
        """Each complete record, in file order; an AUXTRACE record is complete with its data."""
        file, offset = self._file, self._start
        releaser = self._new_releaser()
        while offset < self._end:
            releaser.advance_to(offset)
            if self._end - offset < RECORD_HEADER.size:
                self._mark_truncated_or_raise(
                    "the records end within a header", offset, self._end - offset
                )
                return
            header = RecordHeader(offset, *RECORD_HEADER.unpack_from(file, offset))
            after = offset + header.size
            if header.size < RECORD_HEADER.size:
                self._mark_truncated_or_raise("bad size of a record", offset, header.size)
                return
            if header.type in (_AUXTRACE, _TRACING_DATA) and after <= self._end:
                after += self._size_of_data_after(header)
            if after > self._end:
                self._mark_truncated_or_raise(
                    "a record passes the end of the records", offset, after - offset
                )
                return
            yield header
            offset = after

    def _size_of_data_after(self, header: RecordHeader) -> int:
        """Bytes after the record that belong to it but are not counted in its size."""
        fixed = records.RECORD_CLASSES[header.type].layout.fixed
        if header.size < RECORD_HEADER.size + fixed.size:
            raise header.error("a record is too short", self._source)
        length: int = fixed.unpack_from(self._file, header.offset + RECORD_HEADER.size)[0]
        return length if header.type == _AUXTRACE else (length + 7) & ~7

    def _mark_truncated_or_raise(self, message: str, offset: int, value: int) -> None:
        """End the records before `offset` if the file was cut; else raise PerfDataError."""
        if not self._is_cut:
            raise PerfDataError(message, source=self._source, offset=offset, value=value)
        self.mark_incomplete(f"{message} at offset {offset:#x} ({value:#x})")
        self._end = offset
