"""Lists of text lines that may outgrow memory.

A report can have millions of lines that are printed later: losses, gaps, loops. `SpilledLines`
compresses them in chunks of 64 KiB, keeps the chunks in memory up to 16 MiB, and writes all of them
to an unnamed temporary file beyond that. `BoundedLines` is one list within such a store; it counts
all lines that were added and keeps the first ones.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterator
from itertools import accumulate, islice
from typing import IO

_CHUNK_CHARACTERS = 1 << 16
"""Characters of one chunk. Only the last, open chunk is uncompressed."""
_MEMORY_BYTES = 1 << 24
"""Compressed bytes that are kept in memory; more go to a temporary file."""


class SpilledLines:
    """An append-only list of lines, which may hold any characters.

    Raises OSError if the temporary file cannot be written.
    """

    def __init__(self) -> None:
        self._open_chunk: list[str] = []
        self._open_size = 0
        self._closed_lines = 0
        # of each compressed chunk: the number of its first line, and its offset in the file
        self._first_lines = array("Q")
        self._offsets = array("Q", [0])
        self._file: IO[bytes] | None = None
        self._last_read: tuple[int, list[str]] = -1, []

    def __del__(self) -> None:
        if self._file is not None:
            self._file.close()

    def __len__(self) -> int:
        return self._closed_lines + len(self._open_chunk)

    def add(self, line: str) -> None:
        """Append a line."""
        self._open_chunk.append(line)
        self._open_size += len(line)
        if self._open_size >= _CHUNK_CHARACTERS:
            self._close_chunk()

    def lines(self, first: int = 0) -> Iterator[str]:
        """Iterate over the lines from number `first` on. Do not add lines meanwhile."""
        chunk = bisect_right(self._first_lines, first) - 1
        for number in range(max(chunk, 0), len(self._first_lines)):
            begin = self._first_lines[number]
            yield from self._read_chunk(number)[max(0, first - begin) :]
        yield from self._open_chunk[max(0, first - self._closed_lines) :]

    def _close_chunk(self) -> None:
        # zlib is imported late: most lists stay empty
        import zlib

        if self._file is None:
            from tempfile import SpooledTemporaryFile

            self._file = SpooledTemporaryFile(_MEMORY_BYTES)  # noqa: SIM115 - __del__ closes it
        sizes = array("Q", map(len, self._open_chunk)).tobytes()
        text = "".join(self._open_chunk).encode("utf-8", "surrogatepass")
        self._file.seek(self._offsets[-1])
        self._file.write(zlib.compress(sizes + text, 1))
        self._offsets.append(self._file.tell())
        self._first_lines.append(self._closed_lines)
        self._closed_lines += len(self._open_chunk)
        self._open_chunk, self._open_size = [], 0

    def _read_chunk(self, number: int) -> list[str]:
        if self._last_read[0] != number:
            import zlib

            assert self._file is not None
            begin, end = self._offsets[number : number + 2]
            self._file.seek(begin)
            data = zlib.decompress(self._file.read(end - begin))
            next_first = (
                self._first_lines[number + 1]
                if number + 1 < len(self._first_lines)
                else self._closed_lines
            )
            sizes = array("Q", data[: 8 * (next_first - self._first_lines[number])])
            text = data[8 * len(sizes) :].decode("utf-8", "surrogatepass")
            ends = zip(sizes, accumulate(sizes), strict=True)
            self._last_read = number, [text[end - size : end] for size, end in ends]
        return self._last_read[1]


class BoundedLines:
    """Consecutive lines of a `SpilledLines` that is still being filled.

    `len` is the number of lines that were added. Iteration gives the first `max_lines` of them; no
    others are kept.
    """

    def __init__(self, spilled: SpilledLines, max_lines: int | None = None) -> None:
        self._spilled, self._max_lines = spilled, max_lines
        self._start, self._added = len(spilled), 0

    def add(self, line: str) -> None:
        """Add a line. Other users of the store must not add any between two lines of this list."""
        if self._max_lines is None or self._added < self._max_lines:
            self._spilled.add(line)
        self._added += 1

    def __len__(self) -> int:
        return self._added

    def __iter__(self) -> Iterator[str]:
        kept = self._added if self._max_lines is None else min(self._added, self._max_lines)
        return islice(self._spilled.lines(self._start), kept)
