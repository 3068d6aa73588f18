"""Symbol names for addresses at a time.

An address is found in the mappings of its process at the time; the file of the mapping has the
function. `lookup_many` does this for columns.
"""

from __future__ import annotations

import os.path
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rtit.image.file_symbols import FileSymbols
from rtit.image.image import NO_MAPPING, MappingLookup
from rtit.image.images import Images
from rtit.image.kernel import KERNEL_PID
from rtit.image.mappings import FOREVER, KERNEL_START, Mapping

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import ArrayLike, NDArray

    from rtit import _core


@dataclass(frozen=True, slots=True)
class SymbolLocation:
    """The function and module of an address.

    `name` is that of the function, "" if unknown. `offset` is in bytes from the start of the
    function or, without one, from address 0 of the module. `module` is the recorded path, "" if
    nothing was mapped; `offset` is then the address.
    """

    name: str
    offset: int
    module: str

    def __str__(self) -> str:
        base = self.name or os.path.basename(self.module)  # noqa: PTH119 - a name, not a file
        if not base:
            return f"{self.offset:#x}"
        return f"{base}+{self.offset:#x}" if self.offset or not self.name else base


class Symbols:
    """Names for addresses in `images`, which must have had all events.

    Each function has a number, and each module has one for its addresses without a function:
    `table[number]` is its (name, module). Number 0 is ("", ""): unknown. `demangle` converts names
    of C++ and Rust. `source_files[number]` is the path of a source file.
    """

    def __init__(self, images: Images, *, demangle: bool = True) -> None:
        self._images = images
        self._demangle = demangle
        self.table: list[tuple[str, str]] = [("", "")]
        self._numbers: dict[tuple[str, str], int] = {("", ""): 0}
        self._lookups: dict[int, MappingLookup] = {}
        self._names: dict[int, _core.Names] = {}
        self._owners: dict[tuple[str, bytes | None], Any] = {}
        self.source_files: list[str] = [""]
        self._source_file_numbers: dict[str, int] = {"": 0}
        self._lines: dict[tuple[str, bytes | None], _KnownLines] = {}

    def lookup(self, tid: int, time: int, ip: int) -> SymbolLocation:
        """Return the location of `ip` in the thread's process at `time`."""
        mapping = self._mapping_at(tid, time, ip)
        if mapping is None:
            return SymbolLocation("", ip, "")
        at = ip - mapping.start + mapping.offset
        symbols = self._file_symbols_of(mapping)
        if symbols is None:
            return SymbolLocation("", at, mapping.path)
        function = symbols.find_function(at)
        if function is None:
            return SymbolLocation("", symbols.address(at), mapping.path)
        return SymbolLocation(
            self._demangled_name(function.name), at - function.offset, mapping.path
        )

    def lookup_many(
        self, tid: int, times: ArrayLike, ips: ArrayLike
    ) -> tuple[NDArray[np.uint32], NDArray[np.uint64]]:
        """Return `lookup` of each element: (numbers into `table`, offsets).

        The arrays have one length; times need not be sorted. Memory: a few arrays of this length.
        """
        import numpy as np

        addresses = np.asarray(ips, dtype=np.uint64)
        numbers, offsets = np.zeros(len(addresses), np.uint32), addresses.copy()
        for rows, mapping, at in self._rows_by_mapping(tid, times, addresses):
            numbers[rows], offsets[rows] = self._resolve_in_module(mapping, at)
        return numbers, offsets

    def source_lines(
        self, tid: int, times: ArrayLike, ips: ArrayLike
    ) -> tuple[NDArray[np.uint32], NDArray[np.uint32]]:
        """Return `source_line` of each element: (numbers into `source_files`, lines).

        Number 0 is "", with line 0: no DWARF has the instruction.
        """
        import numpy as np

        addresses = np.asarray(ips, dtype=np.uint64)
        files, lines = np.zeros((2, len(addresses)), np.uint32)
        for rows, mapping, at in self._rows_by_mapping(tid, times, addresses):
            symbols = self._file_symbols_of(mapping)
            if symbols is not None:
                key = mapping.path, mapping.build_id
                table = self._lines.setdefault(key, _KnownLines())
                files[rows], lines[rows] = table.look_up(symbols, at, self._number_of_source_file)
        return files, lines

    def _rows_by_mapping(
        self, tid: int, times: ArrayLike, addresses: NDArray[np.uint64]
    ) -> Iterator[tuple[NDArray[np.intp], Mapping, NDArray[np.uint64]]]:
        """Yield each mapping with addresses in it: which they are, and their file offsets."""
        import numpy as np

        when = np.asarray(times, dtype=np.uint64)
        upper = addresses >= np.uint64(KERNEL_START)
        # A pseudo pid has an upper half of its own.
        if tid > KERNEL_PID and self._images.kernel_image is not None and upper.any():
            halves = [(KERNEL_PID, np.flatnonzero(upper)), (tid, np.flatnonzero(~upper))]
        else:
            halves = [(tid, np.arange(len(addresses)))]
        for owner, half in halves:
            pid = self._images.pid(owner)
            if pid not in self._lookups:
                self._lookups[pid] = MappingLookup(self._images.mappings(owner), by_time=True)
            lookup = self._lookups[pid]
            found, offsets = lookup.find_mappings(addresses[half], when[half])
            for row in np.unique(found[found != NO_MAPPING]).tolist():
                here = np.flatnonzero(found == row)
                yield half[here], lookup.mappings[row], offsets[here]

    def location_text(self, number: int, offset: int) -> str:
        """Return the text of a `SymbolLocation` for a result of `lookup_many`."""
        name, module = self.table[number]
        return str(SymbolLocation(name, offset, module))

    def source_line(self, tid: int, time: int, ip: int) -> tuple[str, int] | None:
        """Return source file and line of the instruction at `ip`; None without DWARF for it."""
        mapping = self._mapping_at(tid, time, ip)
        symbols = self._file_symbols_of(mapping) if mapping is not None else None
        if mapping is None or symbols is None:
            return None
        return symbols.native.source_line(ip - mapping.start + mapping.offset)

    def names(self, tid: int) -> _core.Names:
        """Return the names of the thread's process at all times, for native code."""
        pid = self._images.pid(tid)
        if pid not in self._names:
            self._names[pid] = self._native_names(self._images.mappings(tid))
        return self._names[pid]

    def names_with_kernel(self, pids: Sequence[int]) -> tuple[list[_core.Names], list[int]]:
        """Return the names of processes together with those of the kernel, for native code.

        Processes without mappings of their own share an element. The second list has the index of
        each process in the first.
        """
        kernel = [*self._images.mappings(KERNEL_PID)]
        found = [self._native_names(kernel)]
        numbers: dict[int, int] = {}
        for pid in pids:
            if pid not in numbers:
                own = [each for each in self._images.mappings(pid) if each.start < KERNEL_START]
                numbers[pid] = len(found) if own else 0
                if own:
                    found.append(self._native_names([*kernel, *own]))
        return found, [numbers[pid] for pid in pids]

    def _native_names(self, mappings: Iterable[Mapping]) -> _core.Names:
        from rtit._core import Names

        rows = []
        for each in mappings:
            symbols = self._file_symbols_of(each)
            native = symbols.native if symbols is not None else None
            times = each.since, each.until
            offset = each.offset & FOREVER
            rows.append((each.start, each.end, *times, offset, each.path, native))
        return Names(rows)

    def _resolve_in_module(self, mapping: Mapping, at: Any) -> tuple[Any, Any]:
        """Return numbers and offsets for file offsets in a mapping."""
        import numpy as np

        module = self._number_of_location("", mapping.path)
        symbols = self._file_symbols_of(mapping)
        if symbols is None:
            return np.full(len(at), module, np.uint32), at
        starts, ends, owners = symbols.owned_range_columns
        if not len(starts):
            return np.full(len(at), module, np.uint32), symbols.addresses(at)
        found = np.searchsorted(starts, at, "right") - 1
        safe = np.maximum(found, 0)
        inside = (found >= 0) & (at < ends[safe])
        owner = owners[safe]
        with_name, offsets = self._functions_owned_by(mapping, symbols, owner[inside])
        numbers = np.where(inside, with_name[owner], np.uint32(module)).astype(np.uint32)
        return numbers, np.where(inside, at - offsets[owner], symbols.addresses(at))

    def _functions_owned_by(
        self, mapping: Mapping, symbols: FileSymbols, owners: Any
    ) -> tuple[Any, Any]:
        """Return number (only of those in `owners`) and offset of each function of a file."""
        import numpy as np

        key = (mapping.path, mapping.build_id)
        if key not in self._owners:
            self._owners[key] = np.zeros(len(symbols.offsets), np.uint32), symbols.offsets
        with_name, offsets = self._owners[key]
        for owner in np.unique(owners[with_name[owners] == 0]).tolist():
            with_name[owner] = self._number_of_location(
                self._demangled_name(symbols.name(owner)), mapping.path
            )
        return with_name, offsets

    def _mapping_at(self, tid: int, time: int, ip: int) -> Mapping | None:
        in_kernel = (
            tid >= KERNEL_PID and ip >= KERNEL_START and self._images.kernel_image is not None
        )
        for mapping in self._images.mappings(KERNEL_PID if in_kernel else tid):
            if mapping.start <= ip < mapping.end and mapping.since <= time < mapping.until:
                return mapping
        return None

    def _file_symbols_of(self, mapping: Mapping) -> FileSymbols | None:
        return self._images.files.symbols(mapping.path, mapping.build_id)

    def _demangled_name(self, name: str) -> str:
        if not self._demangle:
            return name
        from rtit._core import demangle

        return demangle(name)

    def _number_of_location(self, name: str, module: str) -> int:
        key = (name, module)
        if key not in self._numbers:
            self._numbers[key] = len(self.table)
            self.table.append(key)
        return self._numbers[key]

    def _number_of_source_file(self, path: str) -> int:
        if path not in self._source_file_numbers:
            self._source_file_numbers[path] = len(self.source_files)
            self.source_files.append(path)
        return self._source_file_numbers[path]


class _KnownLines:
    """The source lines of a file's instructions that were looked up before.

    A table asks for the same few instructions again and again, and reading DWARF is slow.
    """

    def __init__(self) -> None:
        import numpy as np

        self._offsets = np.zeros(0, np.uint64)
        """Sorted."""
        self._files, self._lines = np.zeros((2, 0), np.uint32)

    def look_up(
        self,
        symbols: FileSymbols,
        offsets: NDArray[np.uint64],
        number_of_file: Callable[[str], int],
    ) -> tuple[NDArray[np.uint32], NDArray[np.uint32]]:
        """Return the number of the source file, and the line, of each file offset."""
        import numpy as np

        wanted, rows = np.unique(offsets, return_inverse=True)
        new = np.setdiff1d(wanted, self._offsets, assume_unique=True)
        if len(new):
            from rtit.image.source_lines import source_lines_at

            files, file, line = source_lines_at(symbols, new)
            numbers = np.array([*map(number_of_file, files), 0], np.uint32)
            known = np.append(self._offsets, new)
            order = np.argsort(known)
            self._offsets = known[order]
            self._files = np.append(self._files, numbers[file])[order]
            self._lines = np.append(self._lines, line.astype(np.uint32))[order]
        at = np.searchsorted(self._offsets, wanted)[rows]
        return self._files[at], self._lines[at]
