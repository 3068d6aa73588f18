"""Physical memory as the trace output sees it (section 33.2.7.4)."""

from __future__ import annotations

from collections.abc import Callable, Iterable

PAGE = 4096

PhysicalRange = tuple[int, int]
"""Physical addresses [start, end)."""

StoreObserver = Callable[[int, bytes], None]
"""Called with (physical address, bytes) of every trace store, in order."""


class Memory:
    """Sparse physical memory in pages of 4 KB; what was never written reads as zero.

    `smrr` are restricted ranges: stores to them are dropped and they read as all ones (Table 33-5).
    `mmio` are ranges without memory, as a debug port or the APIC page: stores reach only the
    observer. `observer` gets every trace store. The output may notice a change of the three
    late, at the latest at the next enable (section 33.2.7.4).
    """

    def __init__(
        self,
        *,
        smrr: Iterable[PhysicalRange] = (),
        mmio: Iterable[PhysicalRange] = (),
        observer: StoreObserver | None = None,
    ) -> None:
        self.smrr: tuple[PhysicalRange, ...] = tuple(smrr)
        self.mmio: tuple[PhysicalRange, ...] = tuple(mmio)
        self.observer = observer
        self._pages: dict[int, bytearray] = {}

    def read(self, address: int, size: int) -> bytes:
        """Return `size` bytes from `address`; restricted bytes read as FFH."""
        out = bytearray(size)
        position = 0
        while position < size:
            at = address + position
            offset = at % PAGE
            count = min(PAGE - offset, size - position)
            page = self._pages.get(at // PAGE)
            if page is not None:
                out[position : position + count] = page[offset : offset + count]
            position += count
        for start, end in self.smrr:
            low, high = max(start, address), min(end, address + size)
            if low < high:
                out[low - address : high - address] = b"\xff" * (high - low)
        return bytes(out)

    def write(self, address: int, data: bytes) -> None:
        """Store bytes of software, unseen by the observer; restricted bytes are dropped."""
        for at, part in self._split_allowed(address, data, (*self.smrr, *self.mmio)):
            self._store_pages(at, part)

    def store(self, address: int, data: bytes) -> None:
        """Store bytes of the trace unit, which the observer sees; restricted bytes are dropped."""
        offset = address & (PAGE - 1)
        end = offset + len(data)
        if end <= PAGE and not self.smrr and not self.mmio:
            page = self._pages.get(address >> 12)
            if page is None:
                page = self._pages[address >> 12] = bytearray(PAGE)
            page[offset:end] = data
            if self.observer is not None:
                self.observer(address, data)
            return
        for at, part in self._split_allowed(address, data, self.smrr):
            self.write(at, part)
            if self.observer is not None:
                self.observer(at, part)

    def page_for_direct_stores(self, address: int) -> bytearray | None:
        """Return the page of `address`, or None if a store to it has other effects."""
        if self.smrr or self.mmio or self.observer is not None:
            return None
        return self._pages.setdefault(address // PAGE, bytearray(PAGE))

    def read_u64(self, address: int) -> int:
        """Return the 8 bytes at `address` as a little-endian number."""
        return int.from_bytes(self.read(address, 8), "little")

    def write_u64(self, address: int, value: int) -> None:
        """Store `value` (64 bits, little endian) at `address`, as software."""
        self.write(address, value.to_bytes(8, "little"))

    def first_restricted_address(self, start: int, end: int) -> int:
        """Return the lowest address of [start, end) that is restricted, or `end`."""
        hits = [max(low, start) for low, high in self.smrr if low < end and high > start]
        return min(hits, default=end)

    def snapshot(self) -> dict[int, bytes]:
        """Return comparable content by page number, without pages that are all zero."""
        return {number: bytes(page) for number, page in self._pages.items() if any(page)}

    def _store_pages(self, address: int, data: bytes) -> None:
        position = 0
        while position < len(data):
            number, offset = divmod(address + position, PAGE)
            count = min(PAGE - offset, len(data) - position)
            page = self._pages.setdefault(number, bytearray(PAGE))
            page[offset : offset + count] = data[position : position + count]
            position += count

    @staticmethod
    def _split_allowed(
        address: int, data: bytes, forbidden: tuple[PhysicalRange, ...]
    ) -> list[tuple[int, bytes]]:
        """Return the parts of a store outside the forbidden ranges, ascending."""
        parts = [(address, address + len(data))]
        for low, high in forbidden:
            parts = [
                piece
                for start, end in parts
                for piece in ((start, min(end, low)), (max(start, high), end))
                if piece[0] < piece[1]
            ]
        return [(start, data[start - address : end - address]) for start, end in sorted(parts)]
