"""A copy of the kernel's memory in the form of /proc/kcore: a core file with a segment a range."""

from __future__ import annotations

import os
import weakref
from bisect import bisect_right

from rtit.errors import ImageError
from rtit.image.mappings import UPPER

_PAGE = 4096


class Kcore:
    """Reads pages when they are asked for: the file may stand for all of memory.

    Raises ImageError for what is no regular file or no core file of 64 bits.
    """

    def __init__(self, path: str) -> None:
        from rtit._core import ElfFile

        elf = ElfFile(path)
        if (elf.bits, elf.kind) != (64, 4):
            raise ImageError("no core file of 64 bits", source=path, value=elf.kind)
        self._segments = sorted(
            (address, min(address + size, 1 << 64), offset)
            for offset, address, size, _, _ in elf.segments
            if size and address >= UPPER
        )
        if not self._segments:
            raise ImageError("no memory of a kernel is in it", source=path)
        self._starts = [start for start, _, _ in self._segments]
        try:
            self._file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError as error:
            raise ImageError(f"cannot be read: {error.strerror}", source=path) from error
        weakref.finalize(self, os.close, self._file)

    def has(self, address: int) -> bool:
        """Whether there is a byte for an address."""
        return bool(self.read(address, 1))

    def read(self, address: int, size: int) -> bytes:
        """What is at an address, `size` bytes or as many as there are."""
        place = bisect_right(self._starts, address) - 1
        if place < 0:
            return b""
        start, end, offset = self._segments[place]
        size = min(size, end - address)
        if size <= 0:
            return b""
        try:
            return os.pread(self._file, size, offset + address - start)
        except (OSError, OverflowError, ValueError):
            return b""

    def page(self, address: int) -> bytes | None:
        """What is at the address of a page and behind it."""
        return self.read(address, _PAGE) or None
