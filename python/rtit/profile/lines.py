"""Functions and lines of source for the instructions of a binary."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from rtit.image import FileSymbols


_NEAR = 64
_MOST_WINDOWS = 1 << 10
_END = (1 << 64) - 1


class Lines(NamedTuple):
    """Of each offset asked for: the number of its file in `files`, -1 if not known; the line."""

    files: list[str]
    file: NDArray[np.int64]
    line: NDArray[np.int64]


class SourceLines:
    """What the DWARF of a file says of its lines: stretches of addresses in order, disjoint. Of
    `offsets` in the file, if they are given, and what is near them: all may be much more.
    """

    def __init__(self, symbols: FileSymbols, offsets: NDArray[np.uint64] | None = None) -> None:
        self._symbols = symbols
        windows = None if offsets is None else _windows(symbols.addresses(offsets))
        *columns, self.files = symbols.native.lines(windows)
        self.start, self.end, self.file, self.line = map(np.asarray, columns)

    def of(self, offsets: NDArray[np.uint64]) -> Lines:
        """The lines of instructions at these file offsets."""
        unknown = np.full(len(offsets), -1)
        if not len(self.start):
            return Lines(self.files, unknown, unknown + 1)
        addresses = self._symbols.addresses(offsets)
        at = np.maximum(np.searchsorted(self.start, addresses, "right") - 1, 0)
        inside = (addresses >= self.start[at]) & (addresses < self.end[at])
        file = np.where(inside, self.file[at].astype(np.int64), unknown)
        return Lines(self.files, file, np.where(inside, self.line[at].astype(np.int64), 0))


def _windows(addresses: NDArray[np.uint64]) -> list[tuple[int, int]]:
    """A few ranges that have all of these, and little else if they are few places."""
    known = np.unique(addresses)
    if not len(known):
        return []
    apart = known[1:] - known[:-1]
    room = _NEAR
    while (cuts := np.flatnonzero(apart > np.uint64(room))).size >= _MOST_WINDOWS:
        room *= 4
    lows, highs = known[np.append(0, cuts + 1)], known[np.append(cuts, len(known) - 1)]
    return [
        (low, min(high + 1, _END)) for low, high in zip(lows.tolist(), highs.tolist(), strict=True)
    ]


class Owners:
    """The functions that own the code of a binary."""

    def __init__(self, symbols: FileSymbols) -> None:
        self._starts, self._ends, self._owners = symbols.columns

    def of(self, offsets: NDArray[np.uint64]) -> NDArray[np.int64]:
        """The index in `FileSymbols.functions` of each offset's, -1 if none owns it."""
        none = np.full(len(offsets), -1)
        if not len(self._starts):
            return none
        at = np.searchsorted(self._starts, offsets, "right") - 1
        safe = np.maximum(at, 0)
        inside = (at >= 0) & (offsets < self._ends[safe])
        return np.where(inside, self._owners[safe].astype(np.int64), none)
