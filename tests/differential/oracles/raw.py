"""Just enough of perf.data and of ELF to hand a recording to another decoder.

It shares nothing with rtit, so that one mistake cannot hide in both.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path

PERF_RECORD_AUXTRACE = 71
PT_LOAD = 1
PF_X = 1


@dataclass(frozen=True)
class Section:
    """`size` bytes of `path` from `offset` on are the code at `address`."""

    path: Path
    offset: int
    size: int
    address: int


@dataclass(frozen=True)
class Trace:
    """The data of the AUXTRACE records of one queue, in file order."""

    index: int
    tid: int
    cpu: int
    data: bytes


def auxtrace(path: Path) -> list[Trace]:
    """The PT streams of a perf.data file, by queue. Raises ValueError for other files."""
    content = path.read_bytes()
    if content[:8] != b"PERFILE2":
        raise ValueError(f"{path} is no perf.data file")
    at, size = struct.unpack_from("<QQ", content, 40)
    end = min(at + size, len(content)) if size else len(content)
    queues: dict[int, tuple[int, int, bytearray]] = {}
    while at + 8 <= end:
        kind, _, length = struct.unpack_from("<IHH", content, at)
        if length < 8:
            raise ValueError(f"{path}: record of {length} bytes at offset {at:#x}")
        if kind == PERF_RECORD_AUXTRACE:
            amount, _, _, index, tid, cpu = struct.unpack_from("<QQQIiI", content, at + 8)
            queue = queues.setdefault(index, (tid, cpu, bytearray()))
            queue[2].extend(content[at + length : at + length + amount])
            length += amount
        at += length
    return [Trace(index, tid, cpu, bytes(data)) for index, (tid, cpu, data) in queues.items()]


def code_sections(path: Path, bias: int = 0) -> list[Section]:
    """The executable segments of a 64-bit ELF file loaded at its addresses plus `bias`."""
    content = path.read_bytes()
    if content[:5] != b"\x7fELF\x02":
        raise ValueError(f"{path} is no 64-bit ELF file")
    (table,) = struct.unpack_from("<Q", content, 32)
    entry_size, count = struct.unpack_from("<HH", content, 54)
    sections = []
    for i in range(count):
        kind, flags, offset, address, _, size = struct.unpack_from(
            "<IIQQQQ", content, table + i * entry_size
        )
        if kind == PT_LOAD and flags & PF_X:
            sections.append(Section(path, offset, size, address + bias))
    return sections
