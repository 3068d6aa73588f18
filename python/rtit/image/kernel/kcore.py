"""A copy of the kernel's memory in the form of /proc/kcore: a core file with a segment a range."""

from __future__ import annotations

import os
import struct
import weakref
from bisect import bisect_right
from collections.abc import Iterator

from rtit.errors import ImageError, unreadable_image
from rtit.image.mappings import UPPER

_PAGE = 4096
_CORE, _X86_64, _LOADED = 4, 62, 1
_HEADER, _SEGMENT = struct.Struct("<4s5B7xHHIQQQI6H"), struct.Struct("<II6Q")
_MOST_SEGMENTS = 0xFFFE


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
            raise unreadable_image(error, path) from error
        weakref.finalize(self, os.close, self._file)
        self._asked: set[int] = set()
        self.path = path

    def has(self, address: int) -> bool:
        """Whether there is a byte for an address."""
        found = bool(self.read(address, 1))
        if found:
            self._asked.add(address)
        return found

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
        found = self.read(address, _PAGE)
        if found:
            self._asked.add(address)
        return found or None

    @property
    def was_asked(self) -> bool:
        """Whether anything of it was needed so far."""
        return bool(self._asked)

    def part(self) -> Iterator[bytes]:
        """A core file of the pages that were asked for so far, in parts.
        Raises ImageError for more pieces than a core file has.
        """
        runs: list[list[int]] = []
        for start in sorted(self._asked):
            end = start + len(self.read(start, _PAGE - start % _PAGE))
            if runs and start <= runs[-1][1]:
                runs[-1][1] = max(end, runs[-1][1])
            elif end > start:
                runs.append([start, end])
        if len(runs) > _MOST_SEGMENTS:
            raise ImageError("too many pieces of it are needed", value=len(runs))
        at = -(-(_HEADER.size + len(runs) * _SEGMENT.size) // _PAGE) * _PAGE
        header = (b"\x7fELF", 2, 1, 1, 0, 0, _CORE, _X86_64, 1, 0, _HEADER.size, 0, 0)
        head = bytearray(_HEADER.pack(*header, _HEADER.size, _SEGMENT.size, len(runs), 0, 0, 0))
        for start, end in runs:
            size = end - start
            head += _SEGMENT.pack(_LOADED, 7, at, start, 0, size, size, _PAGE)
            at += -(-size // _PAGE) * _PAGE
        yield bytes(head.ljust(-(-len(head) // _PAGE) * _PAGE, b"\0"))
        for start, end in runs:
            for page in range(start, end, _PAGE):
                content = self.read(page, min(_PAGE, end - page))
                yield content.ljust(_PAGE, b"\0")
