"""Source lines and inlined functions of instructions, read once for several functions."""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING

from rtit.image.inlined_calls import Frame, InlinedCalls
from rtit.image.source_lines import address_windows, line_ranges

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from rtit.image import FileSymbols


class DebugInformation:
    """The DWARF of the instructions at some offsets of a file."""

    def __init__(self, symbols: FileSymbols, offsets: NDArray[np.uint64]) -> None:
        self._inlined = InlinedCalls(symbols, offsets)
        self._calls: dict[int, int] = dict(
            zip(offsets.tolist(), self._inlined.innermost.tolist(), strict=True)
        )
        self._starts: list[int] = []
        self._rows: list[tuple[int, str, int]] = []
        for part in line_ranges(symbols, address_windows(symbols.addresses(offsets))):
            self._starts += part.start.tolist()
            files = map(part.files.__getitem__, part.file.tolist())
            self._rows += zip(part.end.tolist(), files, part.line.tolist(), strict=True)

    def source_line(self, address: int) -> tuple[str, int, bool]:
        """Return file and line of an instruction, and whether it is the first of a range of this
        line; "" and 0 if they are unknown.
        """
        row = bisect_right(self._starts, address) - 1
        if row < 0 or address >= self._rows[row][0]:
            return "", 0, False
        _, file, line = self._rows[row]
        return file, line, self._starts[row] == address

    def inlined_call(self, offset: int) -> int:
        """Return the number of the innermost inlined call of an instruction; -1 for none."""
        return self._calls[offset]

    def frames(self, offset: int, file: str, line: int) -> tuple[Frame, ...]:
        """Return the inlined functions of an instruction on a line, the innermost first."""
        from rtit._core import demangle

        frames, _, _ = self._inlined.frames(self._calls[offset], file, line)
        return tuple(each._replace(function=demangle(each.function)) for each in frames)
