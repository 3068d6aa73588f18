"""Which mapping an address is in, for columns of addresses.

The code of one address space, put together by whoever knows it.
"""

from __future__ import annotations

import os
from collections import abc
from collections.abc import Callable, Iterable
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from rtit.errors import ImageError, UsageError
from rtit.image.files import Files, UnusableFile
from rtit.image.mappings import FOREVER, Mapping, Mappings

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from typing_extensions import Buffer

    from rtit import _core


NO_MAPPING = -1
"""Stands for a mapping where there is none."""


def has_reused_addresses(mappings: Iterable[Mapping]) -> bool:
    """Whether an address stands for two things, at different times."""
    furthest: Mapping | None = None
    for each in sorted(mappings, key=lambda each: each.start):
        if (
            furthest is not None
            and each.start < furthest.end
            and not each.has_same_source(furthest)
        ):
            return True
        if furthest is None or each.end > furthest.end:
            furthest = each
    return False


class MappingLookup:
    """The mappings of a process over its life, by address and time."""

    def __init__(self, mappings: Iterable[Mapping]) -> None:
        import numpy as np

        self.mappings = sorted(mappings, key=lambda each: each.start)
        self._borders = np.zeros(1, np.uint64)
        if has_reused_addresses(self.mappings):
            times = {0}.union(*((each.since, each.until) for each in self.mappings))
            self._borders = np.array(sorted(times), np.uint64)
        self._tables: dict[int, Any] = {}

    def find(
        self, ips: NDArray[np.uint64], times: NDArray[np.uint64]
    ) -> tuple[NDArray[np.int64], NDArray[np.uint64]]:
        """For addresses at times (TSC, in order): rows of `mappings` or NO_MAPPING, and offsets in
        what is mapped, or the addresses.
        """
        import numpy as np

        if len(self._borders) == 1:
            return self._in_epoch(0, ips)
        epochs = np.searchsorted(self._borders, times, "right") - 1
        rows, offsets = np.full(len(ips), NO_MAPPING), ips.copy()
        for epoch in np.unique(epochs).tolist():
            own = epochs == epoch
            rows[own], offsets[own] = self._in_epoch(epoch, ips[own])
        return rows, offsets

    def _in_epoch(self, epoch: int, ips: Any) -> tuple[Any, Any]:
        import numpy as np

        if epoch not in self._tables:
            self._tables[epoch] = self._table(epoch)
        rows, starts, ends, shifts = self._tables[epoch]
        if not len(rows):
            return np.full(len(ips), NO_MAPPING), ips
        at = np.maximum(np.searchsorted(starts, ips, "right") - 1, 0)
        inside = (ips >= starts[at]) & (ips < ends[at])
        return np.where(inside, rows[at], NO_MAPPING), np.where(inside, ips + shifts[at], ips)

    def _table(self, epoch: int) -> tuple[Any, ...]:
        import numpy as np

        time = int(self._borders[epoch])
        rows = [
            row
            for row, each in enumerate(self.mappings)
            if len(self._borders) == 1 or each.since <= time < each.until
        ]
        live = [self.mappings[row] for row in rows]
        return (
            np.array(rows, np.int64),
            np.array([each.start for each in live], np.uint64),
            np.array([each.end for each in live], np.uint64),
            np.array([each.offset - each.start & FOREVER for each in live], np.uint64),
        )


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

    def add_pages(self, pages: abc.Mapping[int, Buffer] | Iterable[tuple[int, Buffer]]) -> Self:
        """A dump of pages: bytes by address, of any size. Raises UsageError."""
        for address, data in pages.items() if isinstance(pages, abc.Mapping) else pages:
            self.add(address, data)
        return self

    def add_elf(
        self, path: str | os.PathLike[str], base: int | None = None, *, time: int = 0
    ) -> Self:
        """The executable segments of an ELF file, with its symbols.

        `base` is where its first page lies, as /proc/PID/maps has it; without it the segments are
        at the addresses that the file gives. Raises ImageError, UsageError.
        """
        from rtit._core import ElfFile

        elf = ElfFile(path)
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
                code = files.read_code(name, offset, size)
            except UnusableFile as error:
                raise ImageError(error.problem.message, source=os.fspath(path)) from error
            self.native.map(time, start, code)
            self.mappings.add(Mapping(start, start + size, offset, name, None, time))
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
