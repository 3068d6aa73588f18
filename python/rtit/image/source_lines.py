"""Source lines of the code of a file, from its DWARF.

Line tables are read in chunks, so that large files take bounded memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from rtit.image.file_symbols import FileSymbols

TOO_MANY_LINES = "its DWARF has more lines than rtit reads"
MAX_LINES = 1 << 19
"""Line table rows that are in memory at a time."""
_MAX_CHUNKS = 32
"""Chunks of a file that are read, of `MAX_LINES` each: 16 million rows."""
_MIN_WINDOW_GAP = 64
_MAX_WINDOWS = 1 << 10
_MAX_SOURCE_BYTES = 1 << 24
"""Bytes of the largest source file that is read."""
_END_OF_ADDRESSES = (1 << 64) - 1


class SourceLines(NamedTuple):
    """File (a number in `files`, -1 if unknown) and line of each requested offset."""

    files: list[str]
    file: NDArray[np.int64]
    line: NDArray[np.int64]


class LineRanges(NamedTuple):
    """Address ranges with their source line, sorted and disjoint. `file` is a number in `files`."""

    start: NDArray[np.uint64]
    end: NDArray[np.uint64]
    file: NDArray[np.uint32]
    line: NDArray[np.uint32]
    files: list[str]


def line_ranges(
    symbols: FileSymbols, windows: Sequence[tuple[int, int]] | None = None, start: int = 0
) -> Iterator[LineRanges]:
    """Iterate over the line ranges of a file, in chunks, in order of address from `start` on.

    With `windows`, only addresses in these half-open ranges are read.
    """
    for _ in range(_MAX_CHUNKS):
        *columns, files, next_, is_incomplete = symbols.native.source_lines(
            windows, start, MAX_LINES
        )
        symbols.has_incomplete_lines |= is_incomplete
        begin, end, file, line = map(np.asarray, columns)
        if len(begin):
            yield LineRanges(begin, end, file, line, files)
        if next_ is None:
            return
        start = next_
    symbols.has_incomplete_lines = True


def source_lines_at(symbols: FileSymbols, offsets: NDArray[np.uint64]) -> SourceLines:
    """Return the source lines of the instructions at these file offsets."""
    file, line = np.full(len(offsets), -1), np.zeros(len(offsets), np.int64)
    addresses = symbols.addresses(offsets)
    numbers: dict[str, int] = {}
    for chunk in line_ranges(symbols, address_windows(addresses)):
        own = np.array([numbers.setdefault(name, len(numbers)) for name in chunk.files])
        rows = np.flatnonzero((addresses >= chunk.start[0]) & (addresses < chunk.end[-1]))
        at = np.searchsorted(chunk.start, addresses[rows], "right") - 1
        inside = addresses[rows] < chunk.end[at]
        rows, at = rows[inside], at[inside]
        file[rows], line[rows] = own[chunk.file[at]], chunk.line[at]
    return SourceLines(list(numbers), file, line)


def address_windows(addresses: NDArray[np.uint64]) -> list[tuple[int, int]]:
    """Return at most a thousand ranges that cover the addresses, with small gaps if possible."""
    known = np.unique(addresses)
    if not len(known):
        return []
    distances = known[1:] - known[:-1]
    gap = _MIN_WINDOW_GAP
    while (cuts := np.flatnonzero(distances > np.uint64(gap))).size >= _MAX_WINDOWS:
        gap *= 4
    lows, highs = known[np.append(0, cuts + 1)], known[np.append(cuts, len(known) - 1)]
    return [
        (low, min(high + 1, _END_OF_ADDRESSES))
        for low, high in zip(lows.tolist(), highs.tolist(), strict=True)
    ]


def read_source(path: str) -> list[str]:
    """Return the lines of a source file; none if it is missing, unreadable or too large."""
    try:
        file = Path(path)
        if not file.is_file() or file.stat().st_size > _MAX_SOURCE_BYTES:
            return []
        return file.read_text(encoding="utf-8", errors="replace").split("\n")
    except (OSError, ValueError):
        return []
