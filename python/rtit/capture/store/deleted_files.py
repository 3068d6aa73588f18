"""Copies of the code that a program maps, kept until the recording ends, and build ids of files.

A decoder detects by the build id that a file has changed.

The recorder copies each mapping: from the file, or from the program's memory if the file may change
or the recorder's path leads to another file. At the end it compares the copies with the files. If a
file still has the same code, readers of the recording read the file. If not, the copy goes into the
recording as code without a file does, from the time of the mapping on.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from time import time_ns
from typing import NamedTuple

from rtit._core import ElfFile
from rtit.capture.events import MmapEvent
from rtit.errors import ImageError
from rtit.image import has_file

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

    def set_build_id(self, path: str, build_id: bytes) -> None:
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


_PAGE = 4096
_MAX_COPIED = 1 << 28
"""Limit on the bytes of code that are copied, and that are written, for all files together."""
_MAX_LOCATIONS = 1 << 20
"""Limit on the locations that are kept, for all files together."""
_LOCATION = struct.Struct("<IIQQQ")
"""A packed `MappingLocation`."""
_RECORD_OVERHEAD = 64
"""Bytes of a record besides the code in it, which is at most `_RANGE_OVERHEAD` bytes."""
_RANGE_OVERHEAD = 1 << 15
_CHUNK = 1 << 20
_CLOCKS_ARE_LATE = 1_000_000_000
"""Nanoseconds by which the clock of a file system may lag; less than the tracers allow for."""

_FileIdentity = tuple[int, int, int, int, int]


class MappingLocation(NamedTuple):
    """Place and time (TSC) of a mapping."""

    pid: int
    tid: int
    time: int
    address: int
    size: int


@dataclass(slots=True)
class _CopiedRange:
    """A copied range of a file: `size` bytes at `offset` of the file and at `start` of the copies.

    `size` is -1 if the range could not be copied. `stamp` identifies the file that was read. With
    `has_unlisted_locations` the limit on locations left some out.
    """

    offset: int
    start: int
    size: int
    stamp: _FileIdentity | None
    locations: bytearray = field(default_factory=bytearray)
    has_unlisted_locations: bool = False


@dataclass(slots=True)
class _IncomingContents:
    """A mapping, and the contents received so far from the tracer."""

    location: MappingLocation
    mapping: MmapEvent
    build_id: bytes | None
    code: bytearray


class DeletedFiles:
    """Tracks all mapped files until `close`."""

    def __init__(self) -> None:
        self.start_time = time_ns() - _CLOCKS_ARE_LATE
        """The start of the recording in nanoseconds since 1970, by the clock of a file system."""
        self._copy_file = -1
        self._copied_bytes = 0
        self._ranges: dict[str, dict[tuple[object, ...], _CopiedRange]] = {}
        self._locations_left = _MAX_LOCATIONS
        self._incoming: dict[int, _IncomingContents] = {}
        self.build_ids = BuildIds()
        """The build ids of all mapped files."""
        self.lost_paths: list[str] = []
        """Files with code that could not be kept; complete after `code_of_changed_files`."""

    def add_from_file(self, location: MappingLocation, mapping: MmapEvent) -> None:
        """Copy a mapping from its file, unless the file has changed since the recording began."""
        if not has_file(mapping.path):
            return
        key = mapping.inode, mapping.pgoff, location.size
        ranges = self._ranges.setdefault(mapping.path, {})
        if key not in ranges:
            ranges[key] = self._copy_from_file(mapping, location.size)
        self._add_location(ranges[key], location)

    def register_expected_contents(
        self, location: MappingLocation, mapping: MmapEvent, build_id: bytes | None
    ) -> None:
        """Register a mapping with contents that the tracer sends; `add_contents` receives them."""
        self._store_contents(location.pid)
        if has_file(mapping.path):
            self._incoming[location.pid] = _IncomingContents(
                location, mapping, build_id, bytearray()
            )

    def add_contents(self, pid: int, address: int, code: bytes) -> bool:
        """Add contents of the last mapping of `pid`. Returns False if they belong to no file."""
        incoming = self._incoming.get(pid)
        if incoming is None or incoming.location.address + len(incoming.code) != address:
            return False
        incoming.code += code
        if len(incoming.code) >= incoming.location.size:
            self._store_contents(pid)
        return True

    def code_of_changed_files(
        self, max_bytes: int | None = None
    ) -> Iterator[tuple[MappingLocation, bytes]]:
        """Yield the code of files that were deleted or changed, for each location it was mapped at.

        The code and its records take at most `max_bytes` bytes (None: `_MAX_COPIED`).
        """
        for pid in list(self._incoming):
            self._store_contents(pid)
        left = _MAX_COPIED if max_bytes is None else min(max_bytes, _MAX_COPIED)
        for path, status in self._ranges.items():
            ranges = list(status.values())
            if all(self._is_still_there(path, copied) for copied in ranges):
                continue
            self.build_ids.set_build_id(path, self._hash_copies(ranges))
            lost = False
            for copied in ranges:
                lost = lost or copied.size < 0 or copied.has_unlisted_locations
                for values in _LOCATION.iter_unpack(copied.locations):
                    limit = max(0, left - _RECORD_OVERHEAD * (1 + left // _RANGE_OVERHEAD))
                    lost = lost or copied.size > limit
                    code = self._read_copy(copied, limit)
                    if code:
                        left -= len(code) + _RECORD_OVERHEAD * (1 + len(code) // _RANGE_OVERHEAD)
                        yield MappingLocation(*values), code
            if lost:
                self.lost_paths.append(path)

    def close(self) -> None:
        """Release all copies."""
        if self._copy_file >= 0:
            os.close(self._copy_file)
            self._copy_file = -1
        self._ranges.clear()
        self._incoming.clear()
        self.lost_paths.clear()

    def _store_contents(self, pid: int) -> None:
        """Store the contents of the last mapping of a process."""
        incoming = self._incoming.pop(pid, None)
        if incoming is None:
            return
        import hashlib  # few recordings need it

        code, mapping = bytes(incoming.code), incoming.mapping
        key = hashlib.sha1(code, usedforsecurity=False).digest(), mapping.pgoff
        ranges = self._ranges.setdefault(mapping.path, {})
        if key not in ranges:
            ranges[key] = self._append_copy(mapping.pgoff, iter((code,)), len(code), None)
        self._add_location(ranges[key], incoming.location)
        if incoming.build_id:
            self.build_ids.set_build_id(mapping.path, incoming.build_id)

    def _add_location(self, copied: _CopiedRange, location: MappingLocation) -> None:
        if not self._locations_left:
            copied.has_unlisted_locations = True
            return
        self._locations_left -= 1
        copied.locations += _LOCATION.pack(*location)

    def _copy_from_file(self, mapping: MmapEvent, size: int) -> _CopiedRange:
        """Copy a mapping from its file, unless the path leads to another or a changed file."""
        nothing = _CopiedRange(mapping.pgoff, 0, -1, None)
        try:
            file = os.open(mapping.path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY)
        except (OSError, ValueError):
            return nothing
        try:
            status = os.fstat(file)
            if status.st_ino != mapping.inode or status.st_ctime_ns >= self.start_time:
                return nothing
            self.build_ids.read_from(mapping.path, file)
            stamp, there = _identify_file(file), max(0, status.st_size - mapping.pgoff)
            size = min(size, there + -status.st_size % _PAGE if there else 0)
            copied = self._append_copy(
                mapping.pgoff, _read_padded(file, mapping.pgoff, size), size, stamp
            )
            if _identify_file(file) != stamp:
                copied.size = -1
            return copied
        finally:
            os.close(file)

    def _append_copy(
        self, offset: int, pieces: Iterator[bytes], size: int, stamp: _FileIdentity | None
    ) -> _CopiedRange:
        """Append code to the copies, unless the limit is reached or the disk is full."""
        copied = _CopiedRange(offset, self._copied_bytes, -1, stamp)
        if self._copied_bytes + size > _MAX_COPIED:
            return copied
        try:
            if self._copy_file < 0:
                self._copy_file = _open_unnamed_file()
            for piece in pieces:
                if os.pwrite(self._copy_file, piece, self._copied_bytes) != len(piece):
                    return copied
                self._copied_bytes += len(piece)
        except OSError:
            return copied
        copied.size = self._copied_bytes - copied.start
        return copied

    def _read_copy(self, copied: _CopiedRange, limit: int = _MAX_COPIED) -> bytes:
        size = min(copied.size, limit)
        return b"".join(_read_padded(self._copy_file, copied.start, size)) if size > 0 else b""

    def _is_still_there(self, path: str, copied: _CopiedRange) -> bool:
        """Return whether the file at `path` still has the copied code."""
        if copied.stamp is not None and _identify_file(path) == copied.stamp:
            return True
        if copied.size < 0:
            return False
        try:
            file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY)
        except (OSError, ValueError):
            return False
        try:
            mapped = _read_padded(self._copy_file, copied.start, copied.size)
            return all(
                now == copy
                for now, copy in zip(
                    _read_padded(file, copied.offset, copied.size), mapped, strict=True
                )
            )
        finally:
            os.close(file)

    def _hash_copies(self, ranges: list[_CopiedRange]) -> bytes:
        """Return a hash of the code, as the build id of a file without one: no file matches it."""
        import hashlib

        code = b"".join(self._read_copy(copied, _CHUNK) for copied in ranges)
        return hashlib.sha1(code, usedforsecurity=False).digest()


def _identify_file(file: str | int) -> _FileIdentity | None:
    """Return device, inode, size and times of a file, which change with it; None for no file."""
    try:
        status = os.stat(file)  # noqa: PTH116 - also of a descriptor
    except (OSError, ValueError):
        return None
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def _open_unnamed_file() -> int:
    """Open a file without a name for the copies, on disk if possible, else in memory.

    Raises OSError.
    """
    folder = os.environ.get("TMPDIR") or "/tmp"
    try:
        return os.open(folder, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
    except OSError:
        return os.memfd_create("rtit", os.MFD_CLOEXEC)


def _read_padded(file: int, offset: int, size: int) -> Iterator[bytes]:
    """Yield `size` bytes of a file from `offset` on. After its end they are zeros, as in memory."""
    end = offset + size
    while offset < end:
        size = min(end - offset, _CHUNK)
        piece = b""
        while len(piece) < size:
            try:
                more = os.pread(file, size - len(piece), offset + len(piece))
            except OSError:
                more = b""
            if not more:
                break
            piece += more
        yield piece.ljust(size, b"\0")
        offset += size
