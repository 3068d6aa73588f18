"""DynamoRIO's drcov log, version 2 with a module table of version 2, as QEMU's plugin writes it and
coverage viewers of disassemblers read it: a head in text, then 8 bytes a block: where it starts
from its module's base (u32), its size (u16) and the number of the module (u16), little-endian.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from rtit.profile.tables import values
from rtit.readable import readable

if TYPE_CHECKING:
    from rtit.coverage.gather import Code


_ENTRY = struct.Struct("<IHH")
_LARGEST = 0xFFFF


def drcov(codes: Sequence[Code]) -> bytes:
    """The whole file. Of blocks that overlap each is there; one that is too long is cut."""
    head = [
        "DRCOV VERSION: 2",
        "DRCOV FLAVOR: rtit",
        f"Module Table: version 2, count {len(codes)}",
        "Columns: id, base, end, entry, checksum, timestamp, path",
    ]
    entries = bytearray()
    for number, code in enumerate(codes):
        segments = code.symbols.elf.segments
        low = min((row[1] for row in segments), default=0) & ~0xFFF
        high = max((row[1] + row[3] for row in segments), default=0)
        entry = code.symbols.elf.entry
        fields = f"{number:3}, {low:#x}, {high:#x}, {entry:#x}, 0x0, 0x0, {readable(code.path)}"
        head.append(fields)
        ats = code.symbols.addresses(code.begin)
        for at, size in values((ats, code.end - code.begin)):
            for each in _pieces(at - low, size):
                entries += _ENTRY.pack(*each, number)
    head.append(f"BB Table: {len(entries) // _ENTRY.size} bbs\n")
    return "\n".join(head).encode(errors="replace") + entries


def _pieces(at: int, size: int) -> Iterator[tuple[int, int]]:
    while size > 0:
        yield at, min(size, _LARGEST)
        at, size = at + _LARGEST, size - _LARGEST
