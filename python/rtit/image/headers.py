"""What an ELF file says of how it is loaded: more than the code, as a debugger needs it."""

from __future__ import annotations

import os
import struct
from dataclasses import dataclass
from pathlib import Path

from rtit.errors import ImageError

PAGE = 4096
_HEADER = struct.Struct("<4sBBB9xHHIQQQIHHH")
_SEGMENT = struct.Struct("<IIQQQQQQ")
_MOST = 65536 // _SEGMENT.size
"""The kernel takes no more than 64 KiB of program headers."""
_LOAD, _DYNAMIC, _INTERP = 1, 2, 3
_EXECUTABLE_KIND = 2
_FLAGS_1, _PIE = 0x6FFFFFFB, 0x08000000
_MOST_DYNAMIC = 1 << 16


@dataclass(frozen=True, slots=True)
class Segment:
    """`size` bytes of the file from `offset` on are at `address`, and zeros behind them up to
    `memory` bytes. `flags`: 1 executable, 2 writable, 4 readable.
    """

    offset: int
    address: int
    size: int
    memory: int
    flags: int


@dataclass(frozen=True, slots=True)
class Headers:
    """Addresses are those that the file gives. `table` is where its program headers are loaded, 0
    if they are not, `count` how many of 56 bytes each; `dynamic` where its dynamic section is, 0
    without one. `is_program`: it says itself that it is one and no library; `has_loader`: it names
    an interpreter.
    """

    entry: int
    table: int
    count: int
    dynamic: int
    is_program: bool
    has_loader: bool
    segments: tuple[Segment, ...]

    def bias(self, offset: int, size: int, start: int) -> int | None:
        """By how much it was moved, if `size` bytes of the file from `offset` on, with code in
        them, are at `start`; None if no code of it is there.
        """
        for each in self.segments:
            begin = each.offset & -PAGE
            if each.flags & 1 and begin < offset + size and offset < each.offset + each.size:
                return start - offset + each.offset - each.address
        return None


def read_headers(path: str | os.PathLike[str]) -> Headers:
    """Those of a 64-bit little-endian file. Raises ImageError, OSError."""
    source = os.fspath(path)
    with Path(path).open("rb") as file:

        def part(offset: int, size: int) -> bytes:
            if offset >= os.fstat(file.fileno()).st_size:
                return b""
            file.seek(offset)
            return file.read(size)

        head = part(0, _HEADER.size)
        if len(head) < _HEADER.size or head[:6] != b"\x7fELF\2\1":
            raise ImageError("no 64-bit little-endian ELF file", source=source)
        (*_, kind, _machine, _version, entry, at, _, _, _, size, count) = _HEADER.unpack(head)
        if size != _SEGMENT.size or count > _MOST:
            raise ImageError("bad program headers", source=source, offset=54, value=count)
        table = part(at, count * size)
        if len(table) < count * size:
            raise ImageError("program headers that are cut off", source=source, offset=at)
        rows = list(_SEGMENT.iter_unpack(table))
        segments = tuple(
            Segment(offset, address, length, memory, flags)
            for kind_, flags, offset, address, _, length, memory, _ in rows
            if kind_ == _LOAD
        )
        dynamic = next((row for row in rows if row[0] == _DYNAMIC), None)
        flags_1 = 0
        if dynamic is not None:
            entries = part(dynamic[2], min(dynamic[5], _MOST_DYNAMIC))
            pairs = struct.iter_unpack("<QQ", entries[: len(entries) & -16])
            flags_1 = next((value for tag, value in pairs if tag == _FLAGS_1), 0)
    loaded = [
        each.address + at - each.offset
        for each in segments
        if each.offset <= at and at + count * size <= each.offset + each.size
    ]
    return Headers(
        entry=entry,
        table=loaded[0] if loaded else 0,
        count=count,
        dynamic=dynamic[3] if dynamic is not None else 0,
        is_program=kind == _EXECUTABLE_KIND or bool(flags_1 & _PIE),
        has_loader=any(row[0] == _INTERP for row in rows),
        segments=segments,
    )
