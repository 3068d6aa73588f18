"""The functions of one ELF file, by file offset.

File offsets, not virtual addresses, are what mappings and perf's address filters are written in,
so that is how functions are kept here: a mapping turns an address into an offset by subtraction.
"""

from __future__ import annotations

import sys
from array import array
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from os import PathLike

    from rtit._core import ElfFile


@dataclass(frozen=True, slots=True)
class Function:
    """A function: `offset` in the file and `size` in bytes, `address` as the file numbers it.

    `binding` is "g" global, "w" weak, "l" local or "p" for a stub of the procedure linkage table,
    whose name ends in @plt. A size that the file leaves out reaches to the next function.
    """

    name: str
    offset: int
    size: int
    address: int
    binding: str


class FileSymbols:
    """The functions of the ELF file at `path`.

    Raises ImageError if the file is missing, changed since it was opened, or malformed. A stripped
    file has the functions that it exports and stubs of the linkage table; it may have none.
    """

    def __init__(self, path: str | PathLike[str] | ElfFile) -> None:
        from rtit._core import ElfFile

        self.elf = path if isinstance(path, ElfFile) else ElfFile(path)
        # (file offset, end, address of the offset), executable pieces that have bytes in the file
        pieces = [
            (offset, offset + size, address)
            for offset, address, size, _, flags in self.elf.segments
            if flags & 1 and size and offset + size < 1 << 64
        ]
        self._segments = sorted(pieces)

    @cached_property
    def functions(self) -> list[Function]:
        """All functions in order of offset; the best name first where several share an offset."""
        values, sizes, names, bindings = self.elf.symbols()
        rows = zip(_column(values), _column(sizes), names, bindings.decode(), strict=True)
        found = []
        for value, size, name, binding in rows:
            for offset, end, address in self._segments:
                at = value - address + offset
                if offset <= at < end:
                    found.append(Function(name, at, min(size, end - at), value, binding))
                    break
        return list(self._sized(found))

    def _sized(self, functions: list[Function]) -> Iterator[Function]:
        functions.sort(key=lambda each: each.offset)  # stable: keeps the best name first
        starts = sorted({each.offset for each in functions})
        for each in functions:
            if each.size:
                yield each
                continue
            index = bisect_right(starts, each.offset)
            end = self._segment_end(each.offset)
            if index < len(starts):
                end = min(end, starts[index])
            yield Function(each.name, each.offset, end - each.offset, each.address, each.binding)

    def _segment_end(self, offset: int) -> int:
        return next(end for start, end, _ in self._segments if start <= offset < end)

    def address(self, offset: int) -> int:
        """The address that the file gives to a file offset; the offset itself if it gives none."""
        for start, end, address in self._segments:
            if start <= offset < end:
                return offset - start + address
        return offset

    def addresses(self, offsets: Any) -> Any:
        """As `address`, for a NumPy array of uint64."""
        import numpy as np

        result = offsets.copy()
        for start, end, address in self._segments:
            inside = (offsets >= np.uint64(start)) & (offsets < np.uint64(end))
            result[inside] = offsets[inside] - np.uint64(start) + np.uint64(address)
        return result

    @cached_property
    def pieces(self) -> tuple[array[int], array[int], array[int]]:
        """Disjoint ranges of file offsets with the function each belongs to.

        Starts, ends and indices into `functions`, sorted. Where functions overlap, the one that
        starts last owns the bytes, and the outer one again what lies behind it.
        """
        starts, ends, owners = array("Q"), array("Q"), array("Q")

        def add(start: int, end: int, owner: int) -> None:
            if start < end:
                starts.append(start)
                ends.append(end)
                owners.append(owner)

        open_: list[tuple[int, int]] = []  # (end, index), the innermost last
        at = 0
        last = -1
        for index, function in enumerate(self.functions):
            if function.offset == last:
                continue
            last = function.offset
            while open_ and open_[-1][0] <= function.offset:
                end, owner = open_.pop()
                add(at, end, owner)
                at = max(at, end)
            if open_:
                add(at, function.offset, open_[-1][1])
            at = function.offset
            open_.append((function.offset + function.size, index))
        while open_:
            end, owner = open_.pop()
            add(at, end, owner)
            at = max(at, end)
        return starts, ends, owners

    def at(self, offset: int) -> Function | None:
        """The function that owns a file offset."""
        starts, ends, owners = self.pieces
        index = bisect_right(starts, offset) - 1
        if index < 0 or offset >= ends[index]:
            return None
        return self.functions[owners[index]]

    def named(self, name: str) -> list[Function]:
        """The functions of this name in order of offset, one for each offset."""
        found: dict[int, Function] = {}
        for function in self._by_name.get(name, []):
            found.setdefault(function.offset, function)
        return list(found.values())

    @cached_property
    def _by_name(self) -> dict[str, list[Function]]:
        table: dict[str, list[Function]] = {}
        for function in self.functions:
            table.setdefault(function.name, []).append(function)
        return table

    @property
    def names(self) -> list[str]:
        """All names, each once."""
        return list(self._by_name)

    @cached_property
    def columns(self) -> tuple[Any, Any, Any]:
        """`pieces` as three NumPy arrays of uint64."""
        import numpy as np

        starts, ends, owners = (np.array(column, dtype=np.uint64) for column in self.pieces)
        return starts, ends, owners


def _column(data: bytes) -> array[int]:
    column = array("Q", data)
    if sys.byteorder == "big":
        column.byteswap()
    return column
