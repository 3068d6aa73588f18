"""Where a stream's bytes come from: in parts, so that no stream need be in memory as a whole."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import zip_longest
from typing import Protocol

from rtit.errors import ClosedError
from rtit.perfdata import PerfData, Piece

_PART = 1 << 20


class Source(Protocol):
    """The bytes of one stream. `parts` can be asked for again and again."""

    @property
    def size(self) -> int:
        """How many bytes."""

    def parts(self) -> Iterator[memoryview]:
        """All bytes, in parts, each good until the next is taken."""


class Bytes:
    """Bytes in memory."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    @property
    def size(self) -> int:
        """How many bytes."""
        return len(self._data)

    def parts(self) -> Iterator[memoryview]:
        """All of them, in one part."""
        yield memoryview(self._data)


class AuxBytes:
    """AUX data of a perf.data file: the pieces of one buffer, without what two of them both claim:
    padding, or what snapshots share.

    What is behind a part that was taken is let go of, so that memory does not grow with the file.
    `parts` raises ClosedError once the file is closed.
    """

    def __init__(self, data: PerfData, pieces: list[Piece], *, snapshot: bool) -> None:
        self._data = data
        self.pieces = pieces
        self.snapshot = snapshot

    @property
    def size(self) -> int:
        """Bytes of PT."""
        return sum(own for _, own in self._own())

    def parts(self) -> Iterator[memoryview]:
        """All bytes, in parts of a megabyte at most."""
        behind = open_data(self._data).behind()
        for piece, own in self._own():
            for start in range(0, own, _PART):
                open_data(self._data)
                behind.at(piece.file_offset + start)
                yield piece.data[start : min(start + _PART, own)]

    def _own(self) -> Iterator[tuple[Piece, int]]:
        """The pieces, and how many bytes at the start of each are not the next one's, too."""
        for piece, following in zip_longest(self.pieces, self.pieces[1:]):
            own = piece.size
            # The later piece is right: perf pads a piece's end without counting the padding.
            if following is not None and (following.aux_offset > piece.aux_offset or self.snapshot):
                own = min(own, max(0, following.aux_offset - piece.aux_offset))
            yield piece, own


def open_data(data: PerfData) -> PerfData:
    """Raises ClosedError if it is closed."""
    if data.closed:
        raise ClosedError(
            f"{data.path} is closed: read what you need before the Trace is closed, which the end "
            "of its `with` does"
        )
    return data
