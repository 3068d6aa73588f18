"""The functions of a binary's code, as people read their names.

Functions and lines of source for the instructions of a binary.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from rtit.image import FileSymbols
    from rtit.profile.tables import Binary


def functions(binary: Binary, offsets: NDArray[np.uint64]) -> list[tuple[str, str]]:
    """Of each offset in the binary's file the name, "" for none, and the file's name."""
    from rtit._core import demangle

    found = Owners(binary.symbols).of(offsets).tolist()
    named = {-1: ("", binary.name)}
    for owner in {*found} - {-1}:
        named[owner] = demangle(binary.symbols.name(owner)), binary.name
    return [named[owner] for owner in found]


def counted(binary: Binary) -> Iterator[tuple[tuple[str, str], int]]:
    """The functions of what ran in the binary, in its order, with the instructions of each."""
    owners = Owners(binary.symbols).of(binary.offset)
    _, first, which = np.unique(owners, return_index=True, return_inverse=True)
    sums = np.zeros(len(first), np.uint64)
    np.add.at(sums, which, binary.count)
    order = np.argsort(first)
    named = functions(binary, binary.offset[first[order]])
    yield from zip(named, sums[order].tolist(), strict=True)


MANY_LINES = "of which its DWARF tells more than is read"
MOST = 1 << 19
"""Lines that are in memory at once."""
_MOST_PARTS = 32
"""For each all tables of the file are gone over: 16 million lines in all."""
_NEAR = 64
_MOST_WINDOWS = 1 << 10
_END = (1 << 64) - 1


class Lines(NamedTuple):
    """Of each offset asked for: the number of its file in `files`, -1 if not known; the line."""

    files: list[str]
    file: NDArray[np.int64]
    line: NDArray[np.int64]


class Stretches(NamedTuple):
    """Addresses from each start up to its end, in order and disjoint, with the line that they were
    made from: `file` counts `files`.
    """

    start: NDArray[np.uint64]
    end: NDArray[np.uint64]
    file: NDArray[np.uint32]
    line: NDArray[np.uint32]
    files: list[str]


def stretches(
    symbols: FileSymbols, windows: Sequence[tuple[int, int]] | None = None, start: int = 0
) -> Iterator[Stretches]:
    """What the DWARF of a file says of its lines, a part of its addresses after the other, in order
    from `start` on; `windows`: of addresses from the first up to the second of each alone.
    """
    for _ in range(_MOST_PARTS):
        *columns, files, next_, is_cut = symbols.native.lines(windows, start, MOST)
        symbols.lacks_lines |= is_cut
        begin, end, file, line = map(np.asarray, columns)
        if len(begin):
            yield Stretches(begin, end, file, line, files)
        if next_ is None:
            return
        start = next_
    symbols.lacks_lines = True


def lines_of(symbols: FileSymbols, offsets: NDArray[np.uint64]) -> Lines:
    """The lines of the instructions at these file offsets."""
    file, line = np.full(len(offsets), -1), np.zeros(len(offsets), np.int64)
    addresses = symbols.addresses(offsets)
    numbers: dict[str, int] = {}
    for part in stretches(symbols, windows_of(addresses)):
        own = np.array([numbers.setdefault(name, len(numbers)) for name in part.files])
        rows = np.flatnonzero((addresses >= part.start[0]) & (addresses < part.end[-1]))
        at = np.searchsorted(part.start, addresses[rows], "right") - 1
        inside = addresses[rows] < part.end[at]
        rows, at = rows[inside], at[inside]
        file[rows], line[rows] = own[part.file[at]], part.line[at]
    return Lines(list(numbers), file, line)


def windows_of(addresses: NDArray[np.uint64]) -> list[tuple[int, int]]:
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
