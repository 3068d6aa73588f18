"""Entries of a Table of Physical Addresses (section 33.2.7.2, Table 33-3)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from rtit.registers.fields import Field, Register
from rtit.registers.hexadecimal import hexadecimal_repr
from rtit.unit.output.memory import Memory

ENTRY = Register(
    "ToPA entry",
    "section 33.2.7.2",
    (
        Field("END", 0, 0, "Table 33-3", "the address is a table's, not a region's"),
        Field("INT", 2, 2, "Table 33-3", "signal a PMI when the region is filled"),
        Field("STOP", 4, 4, "Table 33-3", "stop tracing when the region is filled"),
        Field("Size", 9, 6, "Table 33-3", "4 KB << Size; ignored if END"),
        Field("Base", 63, 12, "Table 33-3", "address bits 63:12", limit="maxphyaddr"),
    ),
)

LAST_OFFSET = 0xFFFFFF8
"""Offset of the last entry that the table pointer can name: a table has at most 256 MB."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry: `base` and `size` in bytes (4 KB to 128 MB); `end`: a table is there."""

    __repr__ = hexadecimal_repr("base", "size")

    base: int
    size: int = 4096
    end: bool = False
    interrupt: bool = False
    stop: bool = False

    def encode(self) -> int:
        """The entry as a 64-bit number; ValueError for a size or base that has no encoding."""
        code = self.size.bit_length() - 13
        if self.size != 4096 << max(code, 0) or code > 15:
            raise ValueError(f"a ToPA region has 4 KB << 0..15 bytes, not {self.size:#x}")
        if self.base % 4096:
            raise ValueError(f"a ToPA address is a multiple of 4 KB, not {self.base:#x}")
        return ENTRY.encode(
            END=self.end,
            INT=self.interrupt,
            STOP=self.stop,
            Size=0 if self.end else code,
            Base=self.base >> 12,
        )

    @classmethod
    def decode(cls, value: int) -> Entry:
        """The entry that `value` holds; reserved bits are ignored (see `entry_error`)."""
        fields = ENTRY.decode(value)
        return cls(
            fields.Base << 12,
            4096 << fields.Size,
            bool(fields.END),
            bool(fields.INT),
            bool(fields.STOP),
        )


def entry_error(
    value: int, index: int, table_base: int, *, maxphyaddr: int, multi_entry: bool
) -> str | None:
    """Why entry `index` of a table is malformed, or None ("ToPA Errors", section 33.2.7.2)."""
    if table_base % 4096:
        return f"ToPA table base {table_base:#x} is not 4 KB aligned"
    if reserved := value & ENTRY.reserved_mask:
        return f"ToPA entry {index} sets reserved bits {reserved:#x}"
    entry = Entry.decode(value)
    if entry.base >> maxphyaddr:
        return f"ToPA entry {index} has address {entry.base:#x}, beyond MAXPHYADDR"
    if not multi_entry and index > 1:
        return f"ToPA entry {index} on a processor with one output region"
    if entry.end:
        if entry.interrupt or entry.stop:
            return f"ToPA entry {index} has END with INT or STOP"
        if index == 0:
            return "ToPA entry 0 has END"
        if not multi_entry and entry.base != table_base:
            return f"ToPA END entry points to {entry.base:#x}, not to its table {table_base:#x}"
        return None
    if not multi_entry and index > 0:
        return f"ToPA entry {index} has no END, on a processor with one output region"
    if entry.base % entry.size:
        return f"ToPA region {entry.base:#x} is not aligned to its size {entry.size:#x}"
    return None


def write_table(memory: Memory, base: int, entries: Iterable[Entry | int]) -> None:
    """Store a table at `base`; a number is stored as it is, to build malformed tables."""
    for index, entry in enumerate(entries):
        value = entry if isinstance(entry, int) else entry.encode()
        memory.write_u64(base + 8 * index, value)
