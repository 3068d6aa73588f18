"""Coverage of code: DynamoRIO's drcov log and AFL's edge map.

drcov: version 2 with a module table of version 2. QEMU's plugin writes this format, and coverage
viewers of disassemblers read it. A text header is followed by 8 bytes per block, little-endian:
offset from the module's base (u32), size (u16), number of the module (u16).

AFL: 65,536 counters of a byte. A location is hashed from its offset and the build id (or name) of
its file, so it is the same in every run. An edge counts at the hash of its target xor half the hash
of its source. A counter stops at 255.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator, Sequence
from pathlib import PurePath
from typing import TYPE_CHECKING
from zlib import crc32

from rtit.profile.tables import iterate_rows
from rtit.text_escaping import escape_control_characters

if TYPE_CHECKING:
    from rtit.coverage.file_coverage import FileCoverage

_ENTRY = struct.Struct("<IHH")
_MAX_BLOCK_BYTES = 0xFFFF


def drcov_log(codes: Sequence[FileCoverage]) -> bytes:
    """Return the file. Overlapping blocks are all listed; blocks that are too long are split."""
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
        path = escape_control_characters(code.path)
        head.append(f"{number:3}, {low:#x}, {high:#x}, {entry:#x}, 0x0, 0x0, {path}")
        ats = code.symbols.addresses(code.range_start)
        for at, size in iterate_rows((ats, code.range_end - code.range_start)):
            for each in _split_block(at - low, size):
                entries += _ENTRY.pack(*each, number)
    head.append(f"BB Table: {len(entries) // _ENTRY.size} bbs\n")
    return "\n".join(head).encode(errors="replace") + entries


def _split_block(at: int, size: int) -> Iterator[tuple[int, int]]:
    while size > 0:
        yield at, min(size, _MAX_BLOCK_BYTES)
        at, size = at + _MAX_BLOCK_BYTES, size - _MAX_BLOCK_BYTES


SIZE = 1 << 16


def afl_map(codes: Sequence[FileCoverage]) -> bytes:
    """Return the map of edges within files."""
    counters = [0] * SIZE
    for code in codes:
        seed = crc32(code.build_id or os.fsencode(PurePath(code.path).name))
        for source, target, count in iterate_rows((code.source, code.target, code.transfer_count)):
            at = _hash_offset(target, seed) ^ _hash_offset(source, seed) >> 1
            counters[at] = min(255, counters[at] + count)
    return bytes(counters)


def _hash_offset(offset: int, seed: int) -> int:
    return crc32(offset.to_bytes(8, "little"), seed) & SIZE - 1
