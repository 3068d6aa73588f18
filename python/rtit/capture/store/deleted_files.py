"""Copies of the code that a program maps, kept until the recording ends.

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

from rtit.capture.events import MmapEvent
from rtit.capture.store.build_ids import BuildIds
from rtit.image import has_file

_PAGE = 4096
_MAX_COPIED = 1 << 28
"""Bytes of code that are copied, and that are written, for all files together."""
_MAX_PLACES = 1 << 20
"""Places that are kept for all files together."""
_PLACE = struct.Struct("<IIQQQ")
"""A `Place` as it is kept."""
_RECORD = 64
"""What a record takes beside the code in it, of which it has up to `_PART` bytes."""
_RANGE_OVERHEAD = 1 << 15
_CHUNK = 1 << 20
_CLOCKS_ARE_LATE = 1_000_000_000
"""Nanoseconds by which clocks of file systems may lag; less than what the tracers allow for."""

_FileIdentity = tuple[int, int, int, int, int]


class MappedAt(NamedTuple):
    """Place and time (TSC) of a mapping."""

    pid: int
    tid: int
    time: int
    address: int
    size: int


@dataclass(slots=True)
class _CopiedRange:
    """What was mapped of a file from `offset` on: `size` bytes from `start` on of the copies; -1 if
    there are none. `stamp` is that of the file they were read from; `partly`: some of its places
    are not kept.
    """

    offset: int
    start: int
    size: int
    stamp: _FileIdentity | None
    places: bytearray = field(default_factory=bytearray)
    partly: bool = False


@dataclass(slots=True)
class _IncomingContents:
    """A mapping, and the contents received so far from the tracer."""

    place: MappedAt
    mapping: MmapEvent
    build_id: bytes | None
    code: bytearray


class DeletedFiles:
    """Tracks all mapped files until `close`."""

    def __init__(self) -> None:
        self._began = time_ns() - _CLOCKS_ARE_LATE
        self._copies = -1
        self._copied = 0
        self._parts: dict[str, dict[tuple[object, ...], _CopiedRange]] = {}
        self._places = _MAX_PLACES
        self._coming: dict[int, _IncomingContents] = {}
        self.build_ids = BuildIds()
        """Of all files that were mapped."""
        self.lost: list[str] = []
        """Paths of files whose code could not be kept, once `pokes` has ended."""

    def saw(self, place: MappedAt, mapping: MmapEvent) -> None:
        """Register a mapping of a file that has not changed since the recording began."""
        if not has_file(mapping.path):
            return
        key = mapping.inode, mapping.pgoff, place.size
        parts = self._parts.setdefault(mapping.path, {})
        if key not in parts:
            parts[key] = self._read(mapping, place.size)
        self._note(parts[key], place)

    def sent(self, place: MappedAt, mapping: MmapEvent, build_id: bytes | None) -> None:
        """A file was mapped there. `take` receives the contents."""
        self._came(place.pid)
        if has_file(mapping.path):
            self._coming[place.pid] = _IncomingContents(place, mapping, build_id, bytearray())

    def take(self, pid: int, address: int, code: bytes) -> bool:
        """Receive contents of the last mapping of `pid`. False if they belong to no file."""
        sent = self._coming.get(pid)
        if sent is None or sent.place.address + len(sent.code) != address:
            return False
        sent.code += code
        if len(sent.code) >= sent.place.size:
            self._came(pid)
        return True

    def pokes(self, room: int | None = None) -> Iterator[tuple[MappedAt, bytes]]:
        """The code of those that are gone or show something else: of each place the bytes, as far
        as the file went.

        They and their records are `room` bytes at most, `_MOST` if it is None.
        """
        for pid in list(self._coming):
            self._came(pid)
        left = _MAX_COPIED if room is None else min(room, _MAX_COPIED)
        for path, found in self._parts.items():
            parts = list(found.values())
            if all(self._is_still_there(path, part) for part in parts):
                continue
            self.build_ids.add(path, self._identity(parts))
            lost = False
            for part in parts:
                lost = lost or part.size < 0 or part.partly
                for values in _PLACE.iter_unpack(part.places):
                    most = max(0, left - _RECORD * (1 + left // _RANGE_OVERHEAD))
                    lost = lost or part.size > most
                    code = self._copy(part, most)
                    if code:
                        left -= len(code) + _RECORD * (1 + len(code) // _RANGE_OVERHEAD)
                        yield MappedAt(*values), code
            if lost:
                self.lost.append(path)

    def close(self) -> None:
        """Release all copies."""
        if self._copies >= 0:
            os.close(self._copies)
            self._copies = -1
        self._parts.clear()
        self._coming.clear()
        self.lost.clear()

    def _came(self, pid: int) -> None:
        """Store the contents of the last mapping of a process, which are complete."""
        sent = self._coming.pop(pid, None)
        if sent is None:
            return
        import hashlib  # of few recordings

        code, mapping = bytes(sent.code), sent.mapping
        key = hashlib.sha1(code, usedforsecurity=False).digest(), mapping.pgoff
        parts = self._parts.setdefault(mapping.path, {})
        if key not in parts:
            parts[key] = self._keep(mapping.pgoff, iter((code,)), len(code), None)
        self._note(parts[key], sent.place)
        if sent.build_id:
            self.build_ids.add(mapping.path, sent.build_id)

    def _note(self, part: _CopiedRange, place: MappedAt) -> None:
        if not self._places:
            part.partly = True
            return
        self._places -= 1
        part.places += _PLACE.pack(*place)

    def _read(self, mapping: MmapEvent, size: int) -> _CopiedRange:
        """Copy a mapping from its file, unless the file is another one or has changed."""
        nothing = _CopiedRange(mapping.pgoff, 0, -1, None)
        try:
            file = os.open(mapping.path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY)
        except (OSError, ValueError):
            return nothing
        try:
            found = os.fstat(file)
            if found.st_ino != mapping.inode or found.st_ctime_ns >= self._began:
                return nothing
            self.build_ids.saw(mapping.path, file)
            stamp, there = _identify_file(file), max(0, found.st_size - mapping.pgoff)
            size = min(size, there + -found.st_size % _PAGE if there else 0)
            part = self._keep(mapping.pgoff, _read_padded(file, mapping.pgoff, size), size, stamp)
            if _identify_file(file) != stamp:
                part.size = -1
            return part
        finally:
            os.close(file)

    def _keep(
        self, offset: int, pieces: Iterator[bytes], size: int, stamp: _FileIdentity | None
    ) -> _CopiedRange:
        """A copy, if there is room for it."""
        part = _CopiedRange(offset, self._copied, -1, stamp)
        if self._copied + size > _MAX_COPIED:
            return part
        try:
            if self._copies < 0:
                self._copies = _open_unnamed_file()
            for piece in pieces:
                if os.pwrite(self._copies, piece, self._copied) != len(piece):
                    return part
                self._copied += len(piece)
        except OSError:
            return part
        part.size = self._copied - part.start
        return part

    def _copy(self, part: _CopiedRange, most: int = _MAX_COPIED) -> bytes:
        size = min(part.size, most)
        return b"".join(_read_padded(self._copies, part.start, size)) if size > 0 else b""

    def _is_still_there(self, path: str, part: _CopiedRange) -> bool:
        """Whether the file at `path` still has the copied code."""
        if part.stamp is not None and _identify_file(path) == part.stamp:
            return True
        if part.size < 0:
            return False
        try:
            file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY)
        except (OSError, ValueError):
            return False
        try:
            mapped = _read_padded(self._copies, part.start, part.size)
            return all(
                now == copy
                for now, copy in zip(
                    _read_padded(file, part.offset, part.size), mapped, strict=True
                )
            )
        finally:
            os.close(file)

    def _identity(self, parts: list[_CopiedRange]) -> bytes:
        """A hash in place of the build id of a file without one: no other file matches it."""
        import hashlib

        code = b"".join(self._copy(part, _CHUNK) for part in parts)
        return hashlib.sha1(code, usedforsecurity=False).digest()


def _identify_file(file: str | int) -> _FileIdentity | None:
    """What a file is, and whether it was written to; None if there is none."""
    try:
        found = os.stat(file)  # noqa: PTH116 - also of a descriptor
    except (OSError, ValueError):
        return None
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


def _open_unnamed_file() -> int:
    """A file without a name to keep copies in, on a disk if that can be. Raises OSError."""
    folder = os.environ.get("TMPDIR") or "/tmp"
    try:
        return os.open(folder, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
    except OSError:
        return os.memfd_create("rtit", os.MFD_CLOEXEC)


def _read_padded(file: int, offset: int, size: int) -> Iterator[bytes]:
    """`size` bytes of a file from `offset` on; after its end there are zeros, as in memory."""
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
