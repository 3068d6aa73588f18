"""Symbol names for addresses at a time.

An address is found in the mappings of its process at the time; the file of the mapping has the
function. `lookup_many` does this for columns.
"""

from __future__ import annotations

import os.path
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
    of C++ and Rust.
    """

    def __init__(self, images: Images, *, demangle: bool = True) -> None:
        self._images = images
        self._demangle = demangle
        self.table: list[tuple[str, str]] = [("", "")]
        self._numbers: dict[tuple[str, str], int] = {("", ""): 0}
        self._lookups: dict[int, MappingLookup] = {}
        self._names: dict[int, _core.Names] = {}
        self._owners: dict[tuple[str, bytes | None], Any] = {}

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

        when = np.asarray(times, dtype=np.uint64)
        addresses = np.asarray(ips, dtype=np.uint64)
        upper = addresses >= np.uint64(KERNEL_START)
        # A pseudo pid has an upper half of its own.
        if tid > KERNEL_PID and self._images.kernel_image is not None and upper.any():
            numbers = np.zeros(len(addresses), dtype=np.uint32)
            offsets = addresses.copy()
            for owner, half in ((KERNEL_PID, upper), (tid, ~upper)):
                numbers[half], offsets[half] = self.lookup_many(owner, when[half], addresses[half])
            return numbers, offsets
        pid = self._images.pid(tid)
        if pid not in self._lookups:
            mappings = self._images.mappings(tid)
            self._lookups[pid] = MappingLookup(mappings, by_time=True)
        lookup = self._lookups[pid]
        rows, offsets = lookup.find_mappings(addresses, when)
        numbers = np.zeros(len(rows), dtype=np.uint32)
        for row in np.unique(rows[rows != NO_MAPPING]).tolist():
            here = rows == row
            numbers[here], offsets[here] = self._resolve_in_module(
                lookup.mappings[row], offsets[here]
            )
        return numbers, offsets

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
        from rtit._core import Names

        pid = self._images.pid(tid)
        if pid not in self._names:
            rows = []
            for each in self._images.mappings(tid):
                symbols = self._file_symbols_of(each)
                native = symbols.native if symbols is not None else None
                offset = each.offset & FOREVER
                times = each.since, each.until
                rows.append((each.start, each.end, *times, offset, each.path, native))
            self._names[pid] = Names(rows)
        return self._names[pid]

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
