"""The code of one address space, put together by whoever knows it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Self

from rtit.errors import ImageError, MissingImageError, UsageError
from rtit.image.files import Files, Unusable
from rtit.image.mappings import FOREVER, Mappings
from rtit.image.mappings import Mapping as Mapped

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from rtit import _core

PAGE = 4096
"""Bytes of a page."""

_EXECUTABLE = 1

Missing = Callable[[int], "Buffer | None"]
"""Gives what is at the address of a page and behind it, up to `PAGE` bytes, or None."""


class Image:
    """Code bytes by address, over time: what a decoder reads instructions from.

    What is added replaces what it overlaps, from `time` (TSC) on; without one it was always there.
    Where nothing was added, `missing` is asked when a decoder comes there: it is given the address
    of a page, a multiple of 4096, and gives the bytes from there on, 4096 at most, or None.
    Answers are kept, None as well, until `forget`; what it raises comes out of what is decoding.
    """

    def __init__(self, missing: Missing | None = None) -> None:
        self._missing = missing
        self.mappings = Mappings()
        """The files in it, for their symbols."""

    def __repr__(self) -> str:
        count = self.native.changes
        asks = ", asks for missing pages" if self._missing is not None else ""
        return f"<Image: {count:,} part{'s' * (count != 1)}{asks}>"

    @cached_property
    def native(self) -> _core.Space:
        """The same for native code, and for nobody else."""
        from rtit._core import Space

        space = Space()
        if self._missing is not None:
            space.set_missing(self._missing)
        return space

    def add(self, address: int, data: Buffer, *, time: int = 0) -> Self:
        """`data` is at `address`. Raises UsageError if it does not fit into 64 bits of address."""
        code = bytes(data)
        _check(address, len(code))
        self.native.map(time, address, code)
        return self

    def add_file(
        self,
        path: str | os.PathLike[str],
        address: int,
        *,
        offset: int = 0,
        size: int | None = None,
        time: int = 0,
    ) -> Self:
        """The file's bytes from `offset` on, or `size` of them, are at `address`: a memory dump,
        bare code. Raises OSError, UsageError.
        """
        if offset < 0 or (size is not None and size < 0):
            raise UsageError(f"{size} bytes from {offset}: neither can be negative")
        with Path(path).open("rb") as file:
            file.seek(offset)
            return self.add(address, file.read(-1 if size is None else size), time=time)

    def add_pages(self, pages: Mapping[int, Buffer] | Iterable[tuple[int, Buffer]]) -> Self:
        """A dump of pages: bytes by address, of any size. Raises UsageError."""
        for address, data in pages.items() if isinstance(pages, Mapping) else pages:
            self.add(address, data)
        return self

    def add_elf(
        self, path: str | os.PathLike[str], base: int | None = None, *, time: int = 0
    ) -> Self:
        """The executable segments of an ELF file, with its symbols.

        `base` is where its first page lies, as /proc/PID/maps has it; without it the segments are
        at the addresses that the file gives. Raises ImageError (MissingImageError, also a
        FileNotFoundError, if there is no such file), UsageError.
        """
        from rtit._core import ElfFile

        try:
            elf = ElfFile(path)
        except ImageError as error:
            if Path(path).exists():
                raise
            raise MissingImageError(error.message, source=os.fspath(path)) from error
        segments = [each for each in elf.segments if each[2]]
        if not segments:
            raise ImageError("no segment is to be loaded", source=os.fspath(path))
        first = min(address for _, address, *_ in segments) & -PAGE
        move = 0 if base is None else base - first
        name, files = os.path.realpath(path), Files()
        for offset, address, size, _, flags in segments:
            if not flags & _EXECUTABLE:
                continue
            start = address + move
            _check(start, size)
            try:
                code = files.code(name, offset, size)
            except Unusable as error:
                raise ImageError(error.problem.message, source=os.fspath(path)) from error
            self.native.map(time, start, code)
            self.mappings.add(Mapped(start, start + size, offset, name, None, time))
        return self

    def remove(self, address: int, size: int, *, time: int = 0) -> Self:
        """From `time` on nothing is known of `size` bytes at `address`."""
        _check(address, size)
        self.native.unmap(time, address, size)
        self.mappings.remove(address, address + size, time)
        return self

    def forget(self, address: int = 0, size: int = FOREVER) -> None:
        """What `missing` has answered about these bytes is asked again when it is needed; for a
        program that was told wrong, or whose memory has changed.
        """
        self.native.forget(address, size)

    def read(self, address: int, size: int, *, time: int = FOREVER) -> bytes:
        """The bytes at `address` as of `time`: `size`, fewer up to the first that is not known.
        Raises what `missing` does.
        """
        return self.native.read(time, address, size)

    def fork(self, time: int) -> Image:
        """A copy as of `time`, for a process that was forked then."""
        child = Image(self._missing)
        child.__dict__["native"] = self.native.fork(time)
        child.mappings = self.mappings.fork(time)
        return child


def _check(address: int, size: int) -> None:
    if not 0 <= address <= address + size <= FOREVER:
        raise UsageError(f"{size:,} bytes at {address:#x}: addresses have 64 bits")
