"""Lists of text lines that may outgrow memory.

A report can have millions of lines that are printed later: losses, gaps, loops. `SpilledLines`
keeps them in memory up to 1 MiB, and in an unnamed temporary file beyond that. `BoundedLines` is
one list within such a store; it counts all lines that were added and keeps the first ones.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import IO

_MEMORY_BYTES = 1 << 20


class SpilledLines:
    """An append-only list of lines, which may hold any characters.

    Raises OSError if the temporary file cannot be written.
    """

    def __init__(self) -> None:
        self._file: IO[bytes] | None = None
        self._count = 0
        self.end_offset = 0
        """Offset in the file at which the next line is added."""

    def __del__(self) -> None:
        if self._file is not None:
            self._file.close()

    def __len__(self) -> int:
        return self._count

    def append_line(self, line: str) -> None:
        """Append a line."""
        import json

        if self._file is None:
            from tempfile import SpooledTemporaryFile  # imported late: most lists stay empty

            self._file = SpooledTemporaryFile(_MEMORY_BYTES)  # noqa: SIM115 - __del__ closes it
        self._file.seek(self.end_offset)
        self._file.write(json.dumps(line).encode() + b"\n")
        self.end_offset = self._file.tell()
        self._count += 1

    def lines_from_offset(self, offset: int = 0) -> Iterator[str]:
        """Iterate over the lines from an offset in the file on."""
        import json

        while self._file is not None and offset < self.end_offset:
            self._file.seek(offset)
            yield json.loads(self._file.readline())
            offset = self._file.tell()


class BoundedLines:
    """Consecutive lines of a `SpilledLines` that is still being filled.

    `len` is the number of lines that were added. Iteration gives the first `max_lines` of them; no
    others are kept.
    """

    def __init__(self, spilled: SpilledLines, max_lines: int | None = None) -> None:
        self._spilled, self._max_lines = spilled, max_lines
        self._start, self._added = spilled.end_offset, 0

    def append_line(self, line: str) -> None:
        """Add a line. Other users of the store must not add any between two lines of this list."""
        if self._max_lines is None or self._added < self._max_lines:
            self._spilled.append_line(line)
        self._added += 1

    def __len__(self) -> int:
        return self._added

    def __iter__(self) -> Iterator[str]:
        kept = self._added if self._max_lines is None else min(self._added, self._max_lines)
        return islice(self._spilled.lines_from_offset(self._start), kept)
