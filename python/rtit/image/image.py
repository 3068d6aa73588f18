"""The code of one address space over time.

`Image` is what a decoder reads instructions from. Callers add bytes, files or a page callback.
`MappingLookup` finds the mapping of each address of a column.
"""

from __future__ import annotations

import os
from collections import abc
from collections.abc import Callable, Iterable
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from rtit.errors import ImageError, MissingImageError, UsageError
from rtit.image.mapped_files import Files, UnusableFile
from rtit.image.mappings import FOREVER, Mapping, Mappings

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from typing_extensions import Buffer

    from rtit import _core


NO_MAPPING = -1
"""Row number of an address without a mapping."""


def has_reused_addresses(mappings: Iterable[Mapping]) -> bool:
    """Return whether an address shows different bytes at different times."""
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
    """The mappings of a process by address and time.

    If addresses are reused, or with `by_time`, time is divided into epochs without changes. Else a
    mapping is found at all times.
    """

    def __init__(self, mappings: Iterable[Mapping], *, by_time: bool = False) -> None:
        import numpy as np

        self.mappings = sorted(mappings, key=lambda each: each.start)
        self._borders = np.zeros(1, np.uint64)
        if by_time or has_reused_addresses(self.mappings):
            times = {0}.union(*((each.since, each.until) for each in self.mappings))
            self._borders = np.array(sorted(times), np.uint64)
        self._last_table: tuple[int, Any] = -1, ()

    def has_same_offsets(self, other: MappingLookup) -> bool:
        """Return whether `find_mappings` returns the same for both, at any times."""
        tables = (
            [(each.start, each.end, each.offset) for each in lookup.mappings]
            for lookup in (self, other)
        )
        return len(self._borders) == len(other._borders) == 1 and next(tables) == next(tables)

    def find_mappings(
        self, ips: NDArray[np.uint64], times: NDArray[np.uint64]
    ) -> tuple[NDArray[np.int64], NDArray[np.uint64]]:
        """Return, for addresses at times (TSC), the row in `mappings` and the offset.

        Without a mapping the row is NO_MAPPING and the offset is the address.
        """
        import numpy as np

        if len(self._borders) == 1:
            return self._lookup_in_epoch(0, ips)
        epochs = np.searchsorted(self._borders, times, "right") - 1
        rows, offsets = np.full(len(ips), NO_MAPPING), ips.copy()
        for epoch in np.unique(epochs).tolist():
            selected = epochs == epoch
            rows[selected], offsets[selected] = self._lookup_in_epoch(epoch, ips[selected])
        return rows, offsets

    def _lookup_in_epoch(self, epoch: int, ips: Any) -> tuple[Any, Any]:
        import numpy as np

        if self._last_table[0] != epoch:
            self._last_table = epoch, self._table_of_epoch(epoch)
        rows, starts, ends, shifts = self._last_table[1]
        if not len(rows):
            return np.full(len(ips), NO_MAPPING), ips
        at = np.maximum(np.searchsorted(starts, ips, "right") - 1, 0)
        inside = (ips >= starts[at]) & (ips < ends[at])
        return np.where(inside, rows[at], NO_MAPPING), np.where(inside, ips + shifts[at], ips)

    def _table_of_epoch(self, epoch: int) -> tuple[Any, ...]:
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
"""Returns up to `PAGE` bytes from the address of a page on, or None."""


class Image:
    """Code bytes by address, over time: what a decoder reads instructions from.

    Added bytes replace what they overlap, from `time` (TSC) on; without a time they were always
    there. A page without added bytes is requested from `missing` when a decoder needs it: the
    argument is the address of the page, a multiple of 4096; the result is up to 4096 bytes from
    there on, or None. Results are kept, None as well, until `forget`. Exceptions of `missing` are
    raised by the decoding call.
    """

    def __init__(self, missing: Missing | None = None) -> None:
        self._missing = missing
        self.mappings = Mappings()
        """The mapped files, for their symbols."""

    def __repr__(self) -> str:
        count = self.native.changes
        asks = ", asks for missing pages" if self._missing is not None else ""
        return f"<Image: {count:,} part{'s' * (count != 1)}{asks}>"

    @cached_property
    def native(self) -> _core.Space:
        """The native object that holds the code; for internal use."""
        from rtit._core import Space

        space = Space()
        if self._missing is not None:
            space.set_page_callback(self._missing)
        return space

    def add(self, address: int, data: Buffer, *, time: int = 0) -> Self:
        """Add `data` at `address`. Raises UsageError if it exceeds 64 bits of address."""
        code = bytes(data)
        _check_address_range(address, len(code))
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
        """Add a file, such as a memory dump, at `address`: its bytes from `offset` on, at most
        `size`.

        Raises OSError, UsageError.
        """
        if offset < 0 or (size is not None and size < 0):
            raise UsageError(f"{size} bytes from {offset}: neither can be negative")
        with Path(path).open("rb") as file:
            file.seek(offset)
            return self.add(address, file.read(-1 if size is None else size), time=time)

    def add_pages(self, pages: abc.Mapping[int, Buffer] | Iterable[tuple[int, Buffer]]) -> Self:
        """Add bytes by address, of any size, such as a dump of pages. Raises UsageError."""
        for address, data in pages.items() if isinstance(pages, abc.Mapping) else pages:
            self.add(address, data)
        return self

    def add_elf(
        self, path: str | os.PathLike[str], base: int | None = None, *, time: int = 0
    ) -> Self:
        """Add the executable segments of an ELF file, and its symbols.

        `base` is the address of its first page, as in /proc/PID/maps; without it the segments are
        at the addresses in the file. Raises ImageError, UsageError.
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
            raise ImageError("it has no segment to load", source=os.fspath(path))
        first = min(address for _, address, *_ in segments) & -PAGE
        shift = 0 if base is None else base - first
        name, files = os.path.realpath(path), Files()
        for offset, address, size, _, flags in segments:
            if not flags & _EXECUTABLE:
                continue
            start = address + shift
            _check_address_range(start, size)
            try:
                code = files.read_code(name, offset, size)
            except UnusableFile as error:
                raise ImageError(error.problem.message, source=os.fspath(path)) from error
            self.native.map(time, start, code)
            self.mappings.add(Mapping(start, start + size, offset, name, None, time))
        return self

    def remove(self, address: int, size: int, *, time: int = 0) -> Self:
        """Remove `size` bytes at `address`, from `time` on."""
        _check_address_range(address, size)
        self.native.unmap(time, address, size)
        self.mappings.remove(address, address + size, time)
        return self

    def forget(self, address: int = 0, size: int = FOREVER) -> None:
        """Drop the results of `missing` for these addresses, so that they are requested again."""
        self.native.forget(address, size)

    def read(self, address: int, size: int, *, time: int = FOREVER) -> bytes:
        """Return `size` bytes at `address` as of `time`, or fewer, up to the first unknown byte.

        Raises what `missing` raises.
        """
        return self.native.read(time, address, size)

    def fork(self, time: int) -> Image:
        """Return a copy as of `time`, for a process that is forked then."""
        child = Image(self._missing)
        child.__dict__["native"] = self.native.fork(time)
        child.mappings = self.mappings.fork(time)
        return child


def _check_address_range(address: int, size: int) -> None:
    if not 0 <= address <= address + size <= FOREVER:
        raise UsageError(f"{size:,} bytes at {address:#x}: addresses have 64 bits")
