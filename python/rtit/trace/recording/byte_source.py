"""Where a stream's bytes come from: in parts, so that no stream need be in memory as a whole."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from itertools import accumulate, zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, cast

from rtit.errors import ClosedError, UsageError
from rtit.perfdata import AuxChunk, PerfData

if TYPE_CHECKING:
    from typing_extensions import Buffer


_PART = 1 << 20


class Source(Protocol):
    """The bytes of one stream. `parts` can be asked for again and again."""

    @property
    def size(self) -> int:
        """How many bytes."""

    def parts(self) -> Iterator[memoryview]:
        """All bytes, in parts, each good until the next is taken."""


class AuxBytes:
    """AUX data of a perf.data file: the pieces of one buffer, without what two of them both claim:
    padding, or what snapshots share.

    What is behind a part that was taken is let go of, so that memory does not grow with the file.
    `parts` raises ClosedError once the file is closed.
    """

    def __init__(self, data: PerfData, pieces: list[AuxChunk], *, snapshot: bool) -> None:
        self._data = data
        self.pieces = pieces
        self.snapshot = snapshot

    @property
    def size(self) -> int:
        """Bytes of PT."""
        return sum(own for _, own in self._own())

    def parts(self) -> Iterator[memoryview]:
        """All bytes, in parts of a megabyte at most."""
        part, releaser = 0, open_data(self._data).page_releaser()
        for piece, own in self._own():
            if piece.file_index != part:
                part, releaser = (
                    piece.file_index,
                    open_data(self._data).page_releaser(piece.file_index),
                )
            for start in range(0, own, _PART):
                open_data(self._data).check_not_truncated()
                releaser.advance_to(piece.file_offset + start)
                yield piece.data[start : min(start + _PART, own)]
        open_data(self._data).check_not_truncated()

    def ends(self) -> list[int]:
        """The stream's offsets behind each piece."""
        return list(accumulate(own for _, own in self._own()))

    def _own(self) -> Iterator[tuple[AuxChunk, int]]:
        """The pieces, and how many bytes at the start of each are not the next one's, too."""
        for piece, following in zip_longest(self.pieces, self.pieces[1:]):
            own = piece.size
            # The later piece is right: perf pads a piece's end without counting the padding.
            if following is not None and (following.aux_offset > piece.aux_offset or self.snapshot):
                own = min(own, max(0, following.aux_offset - piece.aux_offset))
            yield piece, own


class Bytes:
    """A stream in memory. What changes it meanwhile changes what is read."""

    def __init__(self, data: Buffer) -> None:
        self._data = data

    @property
    def size(self) -> int:
        """Bytes of PT."""
        return memoryview(self._data).nbytes

    def parts(self) -> Iterator[memoryview]:
        """All bytes, in parts of a megabyte at most."""
        with memoryview(self._data) as view, view.cast("B") as octets:
            for start in range(0, len(octets), _PART):
                yield octets[start : start + _PART]


def _size(piece: Buffer) -> int:
    """In bytes; 0 of what is no buffer, which is an error when it is taken."""
    try:
        return memoryview(piece).nbytes
    except TypeError:
        return 0


class Pieces:
    """A stream that comes in pieces, as `pieces` gives them: as often as that can be iterated.

    `size` is what was taken so far, if it cannot be known before.
    """

    def __init__(self, pieces: Iterable[Buffer]) -> None:
        self._pieces = pieces
        self._taken = 0
        self._begun = False

    @property
    def size(self) -> int:
        """Bytes of PT, as far as they have come."""
        if isinstance(self._pieces, list | tuple):
            return sum(map(_size, self._pieces))
        return self._taken

    def parts(self) -> Iterator[memoryview]:
        """The pieces. Raises UsageError if they were taken and cannot be had again, or if one is no
        buffer of bytes.
        """
        once = isinstance(self._pieces, Iterator)
        if once and self._begun:
            raise UsageError(
                "the stream comes from an iterator, which was read before: give a list, or keep "
                "what it gives"
            )
        self._begun = True
        taken = 0
        for number, piece in enumerate(self._pieces):
            try:
                view = memoryview(piece).cast("B")
            except TypeError as error:
                raise UsageError(f"piece {number} of the stream: {error}") from error
            taken += len(view)
            self._taken = max(self._taken, taken)
            yield view


class RawFile:
    """A file of raw PT, read in parts each time."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = Path(path)

    @property
    def size(self) -> int:
        """Bytes of PT. Raises OSError."""
        return self._path.stat().st_size

    def parts(self) -> Iterator[memoryview]:
        """All bytes, in parts of a megabyte at most. Raises OSError."""
        with self._path.open("rb", buffering=0) as file:
            while part := file.read(_PART):
                yield memoryview(part)


def source_of(data: Buffer | Iterable[Buffer] | Source) -> Source:
    """The source of what a user gives. Raises UsageError if it is nothing that holds bytes."""
    if hasattr(data, "parts"):
        return cast(Source, data)
    try:
        view = memoryview(data)  # type: ignore[arg-type]
    except TypeError:
        pass
    else:
        if not view.c_contiguous:
            raise UsageError("the bytes of the stream do not follow each other in memory")
        return Bytes(data)  # type: ignore[arg-type]
    if isinstance(data, str) or not isinstance(data, Iterable):
        raise UsageError(f"a stream is bytes, or an iterable of such, not {type(data).__name__}")
    return Pieces(data)


def open_data(data: PerfData) -> PerfData:
    """Raises ClosedError if it is closed."""
    if data.closed:
        raise ClosedError(
            f"{data.path} is closed: read what you need before the Trace is closed, which the end "
            "of its `with` does"
        )
    return data
