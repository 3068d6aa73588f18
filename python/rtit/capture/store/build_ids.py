"""Build ids of mapped files, by which a decoder detects that a file has changed."""

from __future__ import annotations

import struct

from rtit._core import ElfFile
from rtit.errors import ImageError

_HEADER = struct.Struct("<16x HHIQQQIHHHHHH")
_SEGMENT = struct.Struct("<IIQQQQQQ")
_NOTE = struct.Struct("<III")
_PT_NOTE = 4
_NT_GNU_BUILD_ID = 3


class BuildIds:
    """The build ids of files by path. Each file is read once, at its first mapping, because another
    file may take its path later.
    """

    def __init__(self) -> None:
        self._found: dict[str, bytes | None] = {}

    def read_from(self, path: str, descriptor: int) -> None:
        """Read the build id of the open file `descriptor`, unless `path` is known. Files that are
        not ELF files have none.
        """
        if path in self._found:
            return
        try:
            self._found[path] = ElfFile(f"/proc/self/fd/{descriptor}").build_id
        except ImageError:
            self._found[path] = None

    def add(self, path: str, build_id: bytes) -> None:
        """Set the build id of a mapped file, or a substitute, unless it has one."""
        self._found[path] = self._found.get(path) or build_id

    def by_path(self) -> dict[str, bytes]:
        """Return path -> build id."""
        return {path: build_id for path, build_id in self._found.items() if build_id}


def build_id_in(head: bytes) -> bytes | None:
    """Return the build id in the first bytes of a 64-bit ELF file; None if they do not have it."""
    if len(head) < _HEADER.size or head[:6] != b"\x7fELF\2\1":
        return None
    _, _, _, _, table, _, _, _, size, count, *_ = _HEADER.unpack_from(head)
    for index in range(count):
        at = table + index * size
        if at + _SEGMENT.size > len(head):
            break
        kind, _, offset, _, _, length, _, align = _SEGMENT.unpack_from(head, at)
        end = min(offset + length, len(head))
        while kind == _PT_NOTE and offset + _NOTE.size <= end:
            name, description, note = _NOTE.unpack_from(head, offset)
            start = offset + _NOTE.size
            data = start + (name + 3 & -4)
            if note == _NT_GNU_BUILD_ID and head[start : start + name] == b"GNU\0":
                return head[data : data + description] if data + description <= end else None
            offset = data + description
            offset += -offset % (8 if align == 8 else 4)
    return None
