"""Reading fields from a part of a file without ever leaving it."""

from __future__ import annotations

import os
import struct
from typing import Any

from rtit.errors import PerfDataError

_U32 = struct.Struct("<I")
_LONGEST = 1 << 20
"""Bytes of a text; what is behind them is left out."""


class Cursor:
    """A position in `data`, which begins at offset `base` of the file `source`.

    Every read raises PerfDataError, with the offset in the file, when it would pass the end.
    """

    def __init__(self, data: memoryview, base: int, source: str, what: str) -> None:
        self._data = data
        self._base = base
        self._source = source
        self._what = what
        self._at = 0

    @property
    def offset(self) -> int:
        """The position, as an offset in the file."""
        return self._base + self._at

    @property
    def left(self) -> int:
        """Bytes between the position and the end."""
        return len(self._data) - self._at

    def fail(self, message: str, value: object = None) -> PerfDataError:
        """The error to raise for something wrong at the position."""
        return PerfDataError(
            f"{self._what}: {message}", source=self._source, offset=self.offset, value=value
        )

    def take(self, size: int) -> memoryview:
        """The next `size` bytes, not copied."""
        if size > self.left:
            raise self.fail(f"ends within a field; {self.left} bytes are left of", size)
        start = self._at
        self._at += size
        return self._data[start : self._at]

    def unpack(self, layout: struct.Struct) -> tuple[Any, ...]:
        """The values of `layout`, which come next."""
        return layout.unpack(self.take(layout.size))

    def u32(self) -> int:
        """An unsigned 32-bit integer."""
        value: int = self.unpack(_U32)[0]
        return value

    def string(self) -> str:
        """A perf header string: u32 length of the padded text, then the text with its NUL."""
        return text(self.take(self.u32()))


def text(data: bytes | memoryview) -> str:
    """Text up to the first NUL, as the file system's names are decoded: never fails, and
    `os.fsencode` undoes it.
    """
    return os.fsdecode(bytes(data[:_LONGEST]).split(b"\0", 1)[0])
