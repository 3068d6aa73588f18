"""Kernel code that appeared, changed or disappeared during the recording.

TEXT_POKE records have the bytes before and after a change, so the bytes before the first change of
an address are certain, no matter when the kernel's files were copied. KSYMBOL records announce code
(BPF programs, trampolines) without its bytes. Its code comes from the BPF feature of the recording,
or from a copy of memory if that was made while the code was there; else it is unknown.

Pages of the copy whose content at some time is unknown are read at once (`pages_read_at_once`), so
that parts of them can be unmapped; all others are read when they are needed.
"""

from __future__ import annotations

from bisect import bisect_left
from functools import cached_property
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

from rtit.image.file_symbols import FileSymbols
from rtit.image.image import PAGE, Image
from rtit.image.kernel.kcore import Kcore
from rtit.image.mapped_files import Files
from rtit.image.mappings import FOREVER, KERNEL_START, MappedRanges, Mapping
from rtit.image.memory_budget import MemoryBudget

if TYPE_CHECKING:
    from rtit._core import Code

_UNREGISTER = 1
"""Flag of KSYMBOL: the code was removed."""
_MAX_PAGES = 1 << 14
"""Pages that are read at once."""


class _TextPokeChange(NamedTuple):
    time: int
    address: int
    old: bytes
    new: bytes


class _KernelSymbolChange(NamedTuple):
    time: int
    address: int
    size: int
    name: str
    is_removed: bool


class KernelChanges:
    """Takes records in order of time; `apply` then applies them to the kernel's image.

    Symbol names go to `files`. `early`: the copy of memory was made before the recording started,
    else after its end. If the memory budget is used up, all changes are dropped and
    `is_out_of_memory` is True.
    """

    def __init__(self, files: Files, budget: MemoryBudget, *, early: bool) -> None:
        self._files = files
        self._budget = budget
        self._early = early
        self.is_out_of_memory = False
        self._pokes: list[_TextPokeChange] = []
        self._symbols: list[_KernelSymbolChange] = []
        self._code: dict[int, Code] = {}
        """Code of BPF programs by address."""
        self._pages: list[tuple[int, bytes]] = []
        """The result of `pages_read_at_once`, sorted."""

    def text_poke(self, time: int, address: int, old: bytes, new: bytes) -> None:
        """Code changed, appeared (no `old`) or disappeared (no `new`)."""
        if self.reserve_memory(self._budget.limits.kernel_poke + 2 * (len(old) + len(new))):
            self._pokes.append(_TextPokeChange(time, address, old, new))

    @property
    def has_first_code(self) -> bool:
        """Whether records have the code with which the recording began."""
        return any(poke.time == 0 and not poke.old for poke in self._pokes)

    def ksymbol(self, time: int, address: int, size: int, name: str, flags: int) -> None:
        """Named code appeared or, according to `flags`, disappeared."""
        is_in_kernel = size > 0 and KERNEL_START <= address <= FOREVER - size
        limits = self._budget.limits
        if is_in_kernel and self.reserve_memory(limits.kernel_symbol + limits.size_of_name(name)):
            removed = bool(flags & _UNREGISTER)
            self._symbols.append(_KernelSymbolChange(time, address, size, name, removed))

    def add_code(self, address: int, code: bytes) -> None:
        """Add the code of a BPF program, which KSYMBOL announces at any time."""
        from rtit._core import Code

        if self.reserve_memory(self._budget.limits.kernel_code + len(code)):
            self._code[address] = Code(code)

    def reserve_memory(self, size: int) -> bool:
        """Reserve memory for a record about the kernel; if there is none, drop all changes."""
        if not self.is_out_of_memory and not self._budget.reserve_memory(size):
            self.is_out_of_memory = True
            self._pokes.clear()
            self._symbols.clear()
            self._code.clear()
        return not self.is_out_of_memory

    def pages_read_at_once(self, kcore: Kcore | None) -> dict[int, bytes]:
        """Return the pages of a copy of memory with code that is unknown at some time."""
        pages: dict[int, bytes] = {}
        if kcore is None:
            return pages
        at = 0
        unknown = [
            each
            for each in self._symbols
            if each.is_removed or id(each) not in self._symbols_in_memory_copy
        ]
        for each in sorted(unknown, key=lambda each: each.address):
            at = max(at, each.address & -PAGE)  # not again what the one before covers
            while at < each.address + each.size and len(pages) < _MAX_PAGES:
                pages[at] = kcore.read_page(at) or b""
                at += PAGE
        self._pages = sorted(pages.items())
        return pages

    def apply_to_image(self, image: Image) -> None:
        """Apply all changes to the kernel's image."""
        # Of several pokes of an address, the first has the original bytes.
        for poke in reversed(self._pokes):
            if poke.old and poke.address <= FOREVER - len(poke.old):
                image.native.map(0, poke.address, poke.old)
        events: list[_TextPokeChange | _KernelSymbolChange] = [*self._symbols, *self._pokes]
        events.sort(key=lambda each: each.time)
        self._list_symbols()
        if not self._early:
            # A late copy does not have code that was removed during the recording.
            for symbol in self._symbols:
                if symbol.is_removed:
                    image.native.unmap(0, symbol.address, symbol.size)
        for each in events:
            if isinstance(each, _KernelSymbolChange):
                self._apply_symbol(image, each)
            elif each.address + max(len(each.old), len(each.new)) > FOREVER:
                continue
            elif each.new:
                image.native.poke(each.time, each.address, each.new)
            else:
                image.native.unmap(each.time, each.address, len(each.old))

    def _list_symbols(self) -> None:
        """List symbols by name: several functions can have one name, such as trampolines."""
        addresses: dict[str, dict[int, int]] = {}
        for each in self._symbols:
            if not each.is_removed:
                addresses.setdefault(each.name, {})[each.address] = each.size
        for name, sizes in addresses.items():
            rows = [(address, size, name) for address, size in sizes.items()]
            end = max(address + size for address, size, _ in rows)
            self._files.set_symbols(
                _mapping_path_of_symbol(name), FileSymbols.from_rows(min(sizes), end, rows)
            )

    def _apply_symbol(self, image: Image, each: _KernelSymbolChange) -> None:
        path, end = _mapping_path_of_symbol(each.name), each.address + each.size
        code = self._code.get(each.address)
        if each.is_removed:
            image.mappings.remove(each.address, end, each.time)
        else:
            image.mappings.add(Mapping(each.address, end, each.address, path, None, each.time))
        if not each.is_removed and code is not None and self._is_code_of_symbol(each, code):
            image.native.map(each.time, each.address, code)
        elif id(each) not in self._symbols_in_memory_copy:
            image.native.unmap(each.time, each.address, each.size)
        else:
            self._map_copied_bytes(image, each)

    def _map_copied_bytes(self, image: Image, each: _KernelSymbolChange) -> None:
        """Map the bytes of the copy from now on, which were unknown before."""
        first = bisect_left(self._pages, (each.address & -PAGE, b""))
        for page, content in islice(self._pages, first, None):
            if page >= each.address + each.size:
                break
            start = max(page, each.address)
            code = content[start - page : each.address + each.size - page]
            image.native.map(each.time, start, code)

    def _is_code_of_symbol(self, each: _KernelSymbolChange, code: Code) -> bool:
        return len(code) == each.size and len(self._symbols_by_address[each.address]) == 1

    @cached_property
    def _symbols_by_address(self) -> dict[int, set[tuple[int, str]]]:
        """Address -> (size, name) of all symbols there. If there are several, it is unknown which
        of them the code in the recording is of.
        """
        found: dict[int, set[tuple[int, str]]] = {}
        for each in self._symbols:
            if not each.is_removed:
                found.setdefault(each.address, set()).add((each.size, each.name))
        return found

    @cached_property
    def _symbols_in_memory_copy(self) -> set[int]:
        """The ids of the `_symbols` whose code the copy of memory has: those at the start of the
        recording (`early`), or those at its end.
        """
        if self._early:
            return {id(each) for each in self._symbols if not each.time and not each.is_removed}
        later = MappedRanges()
        backwards = sorted(self._symbols, key=lambda each: each.time)[::-1]
        return {
            id(each)
            for each in backwards
            if not later.add_range(each.address, each.address + each.size) and not each.is_removed
        }


def _mapping_path_of_symbol(name: str) -> str:
    """Return the path of mappings of code that KSYMBOL announced."""
    return f"[{name}]"
