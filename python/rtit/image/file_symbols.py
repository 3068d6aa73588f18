"""The functions of one ELF file, by file offset.

Mappings and perf's address filters have file offsets, not the virtual addresses of the file, so
functions are kept by file offset: a mapping turns an address into an offset by subtraction.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from os import PathLike

    from rtit._core import Column, ElfFile


def function_of_cold_part(name: str) -> str | None:
    """Return the function of which GCC or LLVM has moved away the part `name`, such as f for
    f.cold; None for the name of a whole function.
    """
    whole, is_part, _ = name.partition(".cold")
    return whole if is_part else None


@dataclass(frozen=True, slots=True)
class FileFunction:
    """A function: `offset` in the file and `size` in bytes, `address` as in the file.

    `binding` is "g" global, "w" weak, "l" local, "f" for a function without a symbol, or "p" for a
    stub of the procedure linkage table (its name ends in @plt) and for the code of the table that
    all stubs jump to (.plt). A function without a size reaches to the next one.
    """

    name: str
    offset: int
    size: int
    address: int
    binding: str


_FILE_AND_ADDRESS = re.compile(r"(.*)\+0x[0-9a-f]+", re.S)


def is_named_by_address(name: str, path: str) -> bool:
    """Return whether a function of a file has file and address in place of a name."""
    found = _FILE_AND_ADDRESS.fullmatch(name)
    return found is not None and found[1] == PurePath(path).name


class FileSymbols:
    """The functions of the ELF file at `path`; `debug` is a separate file with its symbols.

    A stripped file has only exported functions and stubs of the linkage table, or none. With
    `recorded_path`, functions without a symbol have names such as python3.11+0x1a2b40 (the address
    as in the file), if they have frame descriptions (.eh_frame). Raises ImageError if the file is
    missing, changed since it was opened, or malformed.
    """

    def __init__(
        self,
        path: str | PathLike[str] | ElfFile,
        debug: ElfFile | None = None,
        *,
        recorded_path: str | None = None,
    ) -> None:
        from rtit._core import ElfFile, Functions

        self.elf: ElfFile = path if isinstance(path, ElfFile) else ElfFile(path)
        self.native = Functions(self.elf, debug, recorded_path)
        self.keep_alive: object = None
        """An object that must live as long as this one."""
        self.has_incomplete_lines = False
        """Whether the file has more source lines in its DWARF than could be read."""
        self.segments = self.elf.segments

    @classmethod
    def from_rows(cls, start: int, end: int, rows: Iterable[tuple[int, int, str]]) -> FileSymbols:
        """Return the functions (address, size, name) of memory without an ELF file.

        They are between `start` and `end`; offsets are addresses, and there is no `elf`. A size of
        0 reaches to the next function.
        """
        from rtit._core import Functions

        found = cls.__new__(cls)
        found.native = Functions.from_rows(start, end, list(rows))
        found.segments = [(start, start, end - start, end - start, 1)]
        found.keep_alive, found.has_incomplete_lines = None, False
        return found

    @cached_property
    def _function_columns(self) -> tuple[Column, Column, Column, Column]:
        return self.native.columns()

    @cached_property
    def offsets(self) -> Any:
        """The offsets of `functions`, as a NumPy array of uint64."""
        import numpy as np

        return np.asarray(self._function_columns[0])

    def name(self, index: int) -> str:
        """Return the name of `functions[index]`, without building the list."""
        return self.native.name(index)

    @property
    def has_names(self) -> bool:
        """Whether any function has a symbol."""
        return not set(self.bindings) <= {ord("f")}

    @property
    def bindings(self) -> bytes:
        """The bindings of `functions`, one character each."""
        return bytes(self._function_columns[3])

    @cached_property
    def functions(self) -> list[FileFunction]:
        """All functions, ordered by offset; of several at one offset the best name is first."""
        rows = zip(*self._function_columns, strict=True)
        return [
            FileFunction(self.name(index), offset, size, address, chr(binding))
            for index, (offset, size, address, binding) in enumerate(rows)
        ]

    def address(self, offset: int) -> int:
        """Return the address of a file offset; the offset itself if the file has none."""
        return self.native.address(offset)

    def addresses(self, offsets: Any) -> Any:
        """Return `address` of each offset, for a NumPy array of uint64."""
        import numpy as np

        result = offsets.copy()
        for start, address, size, _, flags in self.segments:
            if flags & 1 and start + size < 1 << 64:
                inside = (offsets >= np.uint64(start)) & (offsets < np.uint64(start + size))
                result[inside] = offsets[inside] - np.uint64(start) + np.uint64(address)
        return result

    def find_function(self, offset: int) -> FileFunction | None:
        """Return the function at a file offset; None if there is none.

        Where functions overlap, the one that starts last has the bytes; after its end they are
        again those of the outer function.
        """
        index = self.native.index_at(offset)
        return self.functions[index] if index is not None else None

    def find_by_name(self, name: str) -> list[FileFunction]:
        """Return the functions with a name as in the file, else with this demangled name.

        They are ordered by offset, one for each offset.
        """
        found: dict[int, FileFunction] = {}
        for function in self._by_name.get(name) or self._by_demangled_name.get(name, []):
            found.setdefault(function.offset, function)
        return list(found.values())

    @cached_property
    def _by_demangled_name(self) -> dict[str, list[FileFunction]]:
        from rtit._core import demangle

        table: dict[str, list[FileFunction]] = {}
        for function in self.functions:
            table.setdefault(demangle(function.name), []).append(function)
        return table

    @cached_property
    def _by_name(self) -> dict[str, list[FileFunction]]:
        table: dict[str, list[FileFunction]] = {}
        for function in self.functions:
            table.setdefault(function.name, []).append(function)
        return table

    @property
    def names(self) -> list[str]:
        """All names, each once."""
        return list(self._by_name)

    @cached_property
    def owned_range_columns(self) -> tuple[Any, Any, Any]:
        """Disjoint ranges of file offsets, each of one function, sorted.

        The columns are start, end and index into `functions`, as NumPy arrays of uint64.
        """
        import numpy as np

        starts, ends, owners = map(np.asarray, self.native.owned_ranges())
        return starts, ends, owners
