"""Just enough of perf.data and of ELF to hand a recording to another decoder.

It shares nothing with rtit, so that one mistake cannot hide in both.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path

PERF_RECORD_AUXTRACE = 71
PERF_RECORD_TEXT_POKE = 20
CPUMODE_MASK, CPUMODE_KERNEL = 7, 1
SAMPLE_TIME = 1 << 2
SAMPLE_ID_FIELDS = (1 << 1, SAMPLE_TIME, 1 << 6, 1 << 9, 1 << 7, 1 << 16)
"""TID, TIME, ID, STREAM_ID, CPU and IDENTIFIER at the end of a record, 8 bytes each."""
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


@dataclass(frozen=True)
class CodeChange:
    """From `time` (ns; 0: the start) on, `code` is at `address` of a process; None: the kernel."""

    time: int
    pid: int | None
    address: int
    code: bytes


def auxtrace(path: Path) -> list[Trace]:
    """The PT streams of a perf.data file, by queue. Raises ValueError for other files."""
    queues: dict[int, tuple[int, int, bytearray]] = {}
    content = path.read_bytes()
    for kind, _, at, length in _records(path, content):
        if kind == PERF_RECORD_AUXTRACE:
            amount, _, _, index, tid, cpu = struct.unpack_from("<QQQIiI", content, at + 8)
            queue = queues.setdefault(index, (tid, cpu, bytearray()))
            queue[2].extend(content[at + length : at + length + amount])
    return [Trace(index, tid, cpu, bytes(data)) for index, (tid, cpu, data) in queues.items()]


def code_changes(path: Path) -> list[CodeChange]:
    """The TEXT_POKE records of a perf.data file, sorted by time, and in file order at equal times.

    Raises ValueError for other files.
    """
    content = path.read_bytes()
    (attributes,) = struct.unpack_from("<Q", content, 24)
    (sample_type,) = struct.unpack_from("<Q", content, attributes + 24)
    fields = [field for field in SAMPLE_ID_FIELDS if sample_type & field]
    changes = []
    for kind, misc, at, length in _records(path, content):
        if kind != PERF_RECORD_TEXT_POKE:
            continue
        address, old, new = struct.unpack_from("<QHH", content, at + 8)
        sample_id = at + length - 8 * len(fields)
        pid, _ = struct.unpack_from("<ii", content, sample_id)
        (time,) = struct.unpack_from("<Q", content, sample_id + 8 * fields.index(SAMPLE_TIME))
        is_kernel = misc & CPUMODE_MASK == CPUMODE_KERNEL
        code = content[at + 20 + old : at + 20 + old + new]
        changes.append(CodeChange(time, None if is_kernel else pid, address, code))
    return sorted(changes, key=attrgetter("time"))


def _records(path: Path, content: bytes) -> Iterator[tuple[int, int, int, int]]:
    """Yield type, misc, offset and size of each record, without the data of AUXTRACE."""
    if content[:8] != b"PERFILE2":
        raise ValueError(f"{path} is no perf.data file")
    at, size = struct.unpack_from("<QQ", content, 40)
    end = min(at + size, len(content)) if size else len(content)
    while at + 8 <= end:
        kind, misc, length = struct.unpack_from("<IHH", content, at)
        if length < 8:
            raise ValueError(f"{path}: record of {length} bytes at offset {at:#x}")
        yield kind, misc, at, length
        if kind == PERF_RECORD_AUXTRACE:
            (amount,) = struct.unpack_from("<Q", content, at + 8)
            at += amount
        at += length


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
