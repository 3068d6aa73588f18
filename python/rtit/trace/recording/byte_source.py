"""Where the bytes of a stream come from.

A `ByteSource` yields the bytes in chunks, so that no stream must be in memory as a whole. Streams
can be decoded repeatedly, so `chunks` can be called repeatedly, except for a live stream.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, cast

from rtit.errors import ClosedError, UsageError
from rtit.perfdata import AuxChunk, PerfData

if TYPE_CHECKING:
    from typing_extensions import Buffer


_CHUNK_SIZE = 1 << 20


class ByteSource(Protocol):
    """The bytes of one stream."""

    @property
    def size(self) -> int:
        """The number of bytes."""

    def chunks(self) -> Iterator[memoryview]:
        """Return all bytes in order. Each chunk is valid until the next one is requested."""


class AuxDataSource:
    """The AUX data of one buffer of a perf.data file.

    `pieces` are the data of AUX records. Adjacent pieces may overlap: padding, or bytes that two
    snapshots share. Pages of the mapped file are released as they are read, so that memory does not
    grow with the file. `chunks` raises ClosedError after the file was closed.
    """

    def __init__(self, data: PerfData, pieces: list[AuxChunk], *, is_snapshot: bool) -> None:
        self._data = data
        self.pieces = pieces
        self._is_snapshot = is_snapshot

    @property
    def size(self) -> int:
        """Bytes of PT."""
        return sum(size for _, size in self._pieces_with_overlap())

    def chunks(self) -> Iterator[memoryview]:
        """Yield all bytes, in chunks of at most one megabyte."""
        part, reader = 0, open_data(self._data).page_releaser()
        for piece, size in self._pieces_with_overlap():
            if piece.file_index != part:
                part, reader = (
                    piece.file_index,
                    open_data(self._data).page_releaser(piece.file_index),
                )
            for start in range(0, size, _CHUNK_SIZE):
                open_data(self._data).check_not_truncated()
                reader.advance_to(piece.file_offset + start)
                yield piece.data[start : min(start + _CHUNK_SIZE, size)]
        open_data(self._data).check_not_truncated()

    def _pieces_with_overlap(self) -> Iterator[tuple[AuxChunk, int]]:
        """The pieces, and the number of bytes at the start of each that are not in the next one."""
        for piece, following in zip_longest(self.pieces, self.pieces[1:]):
            size = piece.size
            # The later piece is right: perf pads the end of a piece without counting the padding.
            if following is not None and (
                following.aux_offset > piece.aux_offset or self._is_snapshot
            ):
                size = min(size, max(0, following.aux_offset - piece.aux_offset))
            yield piece, size


class MemorySource:
    """A stream in one bytes-like object. Later changes of the object change the stream."""

    def __init__(self, data: Buffer) -> None:
        self._data = data

    @property
    def size(self) -> int:
        """Bytes of PT."""
        return memoryview(self._data).nbytes

    def chunks(self) -> Iterator[memoryview]:
        """Yield all bytes, in chunks of at most one megabyte."""
        with memoryview(self._data) as view, view.cast("B") as octets:
            for start in range(0, len(octets), _CHUNK_SIZE):
                yield octets[start : start + _CHUNK_SIZE]


class ChunkedSource:
    """A stream from an iterable of bytes-like objects."""

    def __init__(self, chunks: Iterable[Buffer]) -> None:
        self._chunks = chunks
        self._bytes_read = 0
        self._has_started = False

    @property
    def size(self) -> int:
        """Bytes of PT; unless the chunks are a list or tuple, those that were read so far."""
        if isinstance(self._chunks, list | tuple):
            return sum(map(_buffer_size, self._chunks))
        return self._bytes_read

    def chunks(self) -> Iterator[memoryview]:
        """Yield the chunks. Raises UsageError if an iterator was read before, or if a chunk is not
        bytes-like.
        """
        if isinstance(self._chunks, Iterator) and self._has_started:
            raise UsageError(
                "the stream is an iterator, which was read before: pass a list, or keep the results"
            )
        self._has_started = True
        size = 0
        for number, chunk in enumerate(self._chunks):
            try:
                view = memoryview(chunk).cast("B")
            except TypeError as error:
                raise UsageError(f"piece {number} of the stream: {error}") from error
            size += len(view)
            self._bytes_read = max(self._bytes_read, size)
            yield view


def _buffer_size(chunk: Buffer) -> int:
    """Return the size in bytes; 0 if the chunk is not bytes-like, which fails when it is read."""
    try:
        return memoryview(chunk).nbytes
    except TypeError:
        return 0


class FileSource:
    """A file of raw PT."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = Path(path)

    @property
    def size(self) -> int:
        """Bytes of PT. Raises OSError."""
        return self._path.stat().st_size

    def chunks(self) -> Iterator[memoryview]:
        """Yield all bytes, in chunks of at most one megabyte. Raises OSError."""
        with self._path.open("rb", buffering=0) as file:
            while chunk := file.read(_CHUNK_SIZE):
                yield memoryview(chunk)


def as_byte_source(data: Buffer | Iterable[Buffer] | ByteSource) -> ByteSource:
    """Convert the `data` argument of `rtit.decode`. Raises UsageError for other types."""
    if hasattr(data, "chunks"):
        return cast(ByteSource, data)
    try:
        view = memoryview(data)  # type: ignore[arg-type]
    except TypeError:
        pass
    else:
        if not view.c_contiguous:
            raise UsageError("the bytes of the stream are not contiguous in memory")
        return MemorySource(data)  # type: ignore[arg-type]
    if isinstance(data, str) or not isinstance(data, Iterable):
        raise UsageError(f"a stream is bytes or an iterable of bytes, not {type(data).__name__}")
    return ChunkedSource(data)


def open_data(data: PerfData) -> PerfData:
    """Return the same file. Raises ClosedError if it was closed."""
    if data.closed:
        raise ClosedError(
            f"{data.path} is closed: read what you need before the Trace is closed, which happens "
            "at the end of its `with` block"
        )
    return data
