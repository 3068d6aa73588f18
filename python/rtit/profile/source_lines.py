"""Functions and source lines of the instructions of a binary.

Functions come from the symbol table, lines from DWARF. Line tables are read in chunks, so that
large files take bounded memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from rtit.image import FileSymbols
    from rtit.profile.tables import Binary


def function_names(binary: Binary, offsets: NDArray[np.uint64]) -> list[tuple[str, str]]:
    """Return function ("" for none) and file name of each offset in the binary."""
    from rtit._core import demangle

    found = FunctionIndex(binary.symbols).find_functions(offsets).tolist()
    named = {-1: ("", binary.name)}
    for owner in {*found} - {-1}:
        named[owner] = demangle(binary.symbols.name(owner)), binary.name
    return [named[owner] for owner in found]


def instructions_by_function(binary: Binary) -> Iterator[tuple[tuple[str, str], int]]:
    """Iterate over the functions of a binary in order of address, with the instructions that ran in
    each.
    """
    owners = FunctionIndex(binary.symbols).find_functions(binary.offset)
    _, first, which = np.unique(owners, return_index=True, return_inverse=True)
    sums = np.zeros(len(first), np.uint64)
    np.add.at(sums, which, binary.count)
    order = np.argsort(first)
    named = function_names(binary, binary.offset[first[order]])
    yield from zip(named, sums[order].tolist(), strict=True)


TOO_MANY_LINES = "its DWARF has more lines than rtit reads"
MAX_LINES = 1 << 19
"""Line table rows that are in memory at a time."""
_MAX_CHUNKS = 32
"""Chunks of a file that are read, of `MAX_LINES` each: 16 million rows."""
_MIN_WINDOW_GAP = 64
_MAX_WINDOWS = 1 << 10
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


class Frame(NamedTuple):
    """A function and a line that runs in it; the file is "" and lines are 0 if unknown.

    `first_line` is the line of the function.
    """

    function: str
    file: str
    first_line: int
    line: int


class InlinedCalls:
    """The inlined calls of a file with code at some addresses.

    `innermost` is the number of the innermost call at each address; -1 for none.
    """

    def __init__(self, symbols: FileSymbols, offsets: NDArray[np.uint64]) -> None:
        self.innermost = np.full(len(offsets), -1, np.int32)
        addresses = symbols.addresses(offsets)
        found = symbols.native.inlined_calls(address_windows(addresses))
        symbols.has_incomplete_lines |= found["is_incomplete"]
        order = np.argsort(addresses, kind="stable")
        bounds = (np.asarray(column) for column in (found["start"], found["end"]))
        begins, ends = (np.searchsorted(addresses, each, sorter=order) for each in bounds)
        call = np.asarray(found["call"])
        # inner calls are after outer ones
        for row in np.flatnonzero(begins < ends).tolist():
            self.innermost[order[begins[row] : ends[row]]] = call[row]
        self._files, self._names = found["files"], found["names"]
        self._parent, self._function = memoryview(found["parent"]), memoryview(found["function"])
        self._call_file = memoryview(found["call_file"])
        self._call_line = memoryview(found["call_line"])
        self._first_file = memoryview(found["first_file"])
        self._first_line = memoryview(found["first_line"])

    def frames(self, call: int, file: str, line: int) -> tuple[list[Frame], str, int]:
        """Return the inlined functions at a line in the code of a call, the innermost first, then
        file and line of the outermost call.
        """
        frames = []
        while 0 <= call < len(self._parent):
            function = self._function[call]
            inner_file = self._file(self._first_file[function]) or file
            frames.append(
                Frame(self._names[function], inner_file, self._first_line[function], line)
            )
            file, line = self._file(self._call_file[call]), self._call_line[call]
            call = self._parent[call]
        return frames, file, line

    def _file(self, number: int) -> str:
        return self._files[number] if number < len(self._files) else ""


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


class FunctionIndex:
    """Finds functions of a binary by offset."""

    def __init__(self, symbols: FileSymbols) -> None:
        self._starts, self._ends, self._owners = symbols.owned_range_columns

    def find_functions(self, offsets: NDArray[np.uint64]) -> NDArray[np.int64]:
        """Return the index in `FileSymbols.functions` for each offset; -1 for none."""
        none = np.full(len(offsets), -1)
        if not len(self._starts):
            return none
        at = np.searchsorted(self._starts, offsets, "right") - 1
        safe = np.maximum(at, 0)
        inside = (at >= 0) & (offsets < self._ends[safe])
        return np.where(inside, self._owners[safe].astype(np.int64), none)
