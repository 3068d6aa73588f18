"""Lines of text in order, as many as there are, for whoever prints them later."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterator
from itertools import accumulate, islice
from typing import IO

_PART = 1 << 16
"""Characters that are kept as they are, and compressed at once."""
_ROOM = 1 << 24
"""Bytes of compressed lines that are kept in memory; more go to a file without a name."""


class Spool:
    """Lines, be they what they may. Raises OSError if there is no room for the file."""

    def __init__(self) -> None:
        self._last: list[str] = []
        self._size = 0
        self._begun = 0
        # of the compressed parts: their first lines, and where they are
        self._first = array("Q")
        self._place = array("Q", [0])
        self._file: IO[bytes] | None = None
        self._read: tuple[int, list[str]] = -1, []

    def __del__(self) -> None:
        if self._file is not None:
            self._file.close()

    def __len__(self) -> int:
        return self._begun + len(self._last)

    def add(self, line: str) -> None:
        """The next line."""
        self._last.append(line)
        self._size += len(line)
        if self._size >= _PART:
            self._compress()

    def lines(self, first: int = 0) -> Iterator[str]:
        """Those from number `first` on; none is to be added meanwhile."""
        part = bisect_right(self._first, first) - 1
        for number in range(max(part, 0), len(self._first)):
            begin = self._first[number]
            yield from self._part(number)[max(0, first - begin) :]
        yield from self._last[max(0, first - self._begun) :]

    def _compress(self) -> None:
        # most spools stay empty
        import zlib

        if self._file is None:
            from tempfile import SpooledTemporaryFile

            self._file = SpooledTemporaryFile(_ROOM)  # noqa: SIM115 - __del__ closes it
        sizes = array("Q", map(len, self._last)).tobytes()
        text = "".join(self._last).encode("utf-8", "surrogatepass")
        self._file.seek(self._place[-1])
        self._file.write(zlib.compress(sizes + text, 1))
        self._place.append(self._file.tell())
        self._first.append(self._begun)
        self._begun += len(self._last)
        self._last, self._size = [], 0

    def _part(self, number: int) -> list[str]:
        if self._read[0] != number:
            import zlib

            assert self._file is not None
            begin, end = self._place[number : number + 2]
            self._file.seek(begin)
            data = zlib.decompress(self._file.read(end - begin))
            behind = self._first[number + 1] if number + 1 < len(self._first) else self._begun
            sizes = array("Q", data[: 8 * (behind - self._first[number])])
            text = data[8 * len(sizes) :].decode("utf-8", "surrogatepass")
            ends = zip(sizes, accumulate(sizes), strict=True)
            self._read = number, [text[end - size : end] for size, end in ends]
        return self._read[1]


class Lines:
    """Some lines one after the other in a spool that is being filled: `len` says how many were
    added, and iterating gives the first `most` of them, which alone are kept.
    """

    def __init__(self, spool: Spool, most: int | None = None) -> None:
        self._spool, self._most = spool, most
        self._first, self._count = len(spool), 0

    def add(self, line: str) -> None:
        """The next line; nobody else may have added to the spool since the first."""
        if self._most is None or self._count < self._most:
            self._spool.add(line)
        self._count += 1

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[str]:
        kept = self._count if self._most is None else min(self._count, self._most)
        return islice(self._spool.lines(self._first), kept)
