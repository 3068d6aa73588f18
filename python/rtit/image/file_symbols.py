"""The functions of one ELF file, by file offset.

File offsets, not virtual addresses, are what mappings and perf's address filters are written in,
so that is how functions are kept here: a mapping turns an address into an offset by subtraction.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterable
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
    """The functions of the ELF file at `path`; `debug` is another file with symbols of it.

    Raises ImageError if the file is missing, changed since it was opened, or malformed. A stripped
    file has the functions that it exports and stubs of the linkage table; it may have none.
    """

    def __init__(self, path: str | PathLike[str] | ElfFile, debug: ElfFile | None = None) -> None:
        from rtit._core import ElfFile, Functions

        self.elf: ElfFile = path if isinstance(path, ElfFile) else ElfFile(path)
        self.native = Functions(self.elf, debug)
        self.keep_alive: object = None
        """What must stay as long as this does."""
        self.has_incomplete_lines = False
        """Whether its DWARF told of more lines of source than could be read."""
        self.segments = self.elf.segments

    @classmethod
    def from_rows(cls, start: int, end: int, rows: Iterable[tuple[int, int, str]]) -> FileSymbols:
        """Functions of memory from `start` to before `end` that no ELF file has, as (address, size,
        name); offsets are addresses then, and there is no `elf`. A size of 0 reaches to the next.
        """
        from rtit._core import Functions

        found = cls.__new__(cls)
        found.native = Functions.listed(start, end, list(rows))
        found.segments = [(start, start, end - start, end - start, 1)]
        found.keep_alive, found.has_incomplete_lines = None, False
        return found

    @cached_property
    def _told(self) -> tuple[bytes, bytes, bytes, bytes]:
        return self.native.columns()

    @cached_property
    def offsets(self) -> Any:
        """Those of `functions`, as a NumPy array of uint64."""
        import numpy as np

        return np.array(_column(self._told[0]), dtype=np.uint64)

    def name(self, index: int) -> str:
        """That of one of `functions`, which need not all be made for it."""
        return self.native.name(index)

    @property
    def bindings(self) -> bytes:
        """Those of `functions`, a character each."""
        return self._told[3]

    @cached_property
    def functions(self) -> list[Function]:
        """All functions in order of offset; the best name first where several share an offset."""
        offsets, sizes, addresses, bindings = self._told
        columns = _column(offsets), _column(sizes), _column(addresses), bindings.decode()
        return [
            Function(self.name(index), *row) for index, row in enumerate(zip(*columns, strict=True))
        ]

    def address(self, offset: int) -> int:
        """The address that the file gives to a file offset; the offset itself if it gives none."""
        return self.native.address(offset)

    def addresses(self, offsets: Any) -> Any:
        """As `address`, for a NumPy array of uint64."""
        import numpy as np

        result = offsets.copy()
        for start, address, size, _, flags in self.segments:
            if flags & 1 and start + size < 1 << 64:
                inside = (offsets >= np.uint64(start)) & (offsets < np.uint64(start + size))
                result[inside] = offsets[inside] - np.uint64(start) + np.uint64(address)
        return result

    def find_function(self, offset: int) -> Function | None:
        """The function that owns a file offset: where functions overlap, the one that starts last
        owns the bytes, and the outer one again what lies behind it.
        """
        index = self.native.at(offset)
        return self.functions[index] if index is not None else None

    def find_by_name(self, name: str) -> list[Function]:
        """The functions of this name, as the file spells it, else as people read it (demangled), in
        order of offset, one for each offset.
        """
        found: dict[int, Function] = {}
        for function in self._by_name.get(name) or self._by_readable_name.get(name, []):
            found.setdefault(function.offset, function)
        return list(found.values())

    @cached_property
    def _by_readable_name(self) -> dict[str, list[Function]]:
        from rtit._core import demangle

        table: dict[str, list[Function]] = {}
        for function in self.functions:
            table.setdefault(demangle(function.name), []).append(function)
        return table

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
    def owned_ranges(self) -> tuple[array[int], array[int], array[int]]:
        """Disjoint ranges of file offsets with the function that owns each: starts, ends and
        indices into `functions`, sorted.
        """
        starts, ends, owners = map(_column, self.native.owned())
        return starts, ends, owners

    @cached_property
    def owned_columns(self) -> tuple[Any, Any, Any]:
        """`pieces` as three NumPy arrays of uint64."""
        import numpy as np

        starts, ends, owners = (np.array(column, dtype=np.uint64) for column in self.owned_ranges)
        return starts, ends, owners


def _column(data: bytes) -> array[int]:
    column = array("Q", data)
    if sys.byteorder == "big":
        column.byteswap()
    return column
