"""Files that a program ran and that are gone before the recording ends.

What was mapped is kept open. If its name means another file in the end, or none, the code goes into
the recording as code without a file does, from when it was mapped.
"""

from __future__ import annotations

import os
import resource
import struct
import zlib
from collections.abc import Iterator

from rtit.capture.events import Mapping
from rtit.image import has_file
from rtit.values import astuple, dataclass, field

_PAGE = 4096
_MOST = 1 << 28
"""Bytes of code that are written for all of them together, and that are read for checksums."""
_MOST_FILES = 1024
_MOST_PLACES = 1 << 20
"""Places that are kept for all files together."""
_PLACE = struct.Struct("<IIQQQQ")
"""One of them, and the offset in the file."""
_RECORD = 64
"""What a record takes beside the code in it, of which it has up to `_PART` bytes."""
_PART = 1 << 15
_MOST_PARTS = 64
"""Of a file whose checksums are kept."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where and when (TSC) something was mapped."""

    pid: int
    tid: int
    time: int
    address: int
    size: int


@dataclass(slots=True)
class _File:
    """`descriptor` is None if it could not be kept open. `code` has the checksums of what was
    mapped, by offset and size, None if it was too much; `partly`: some of its places are not kept.
    """

    path: str
    descriptor: int | None
    stamp: tuple[int, int, int, int] | None
    places: bytearray = field(default_factory=bytearray)
    code: dict[tuple[int, int], int | None] = field(default_factory=dict)
    partly: bool = False

    def saw(self, offset: int, size: int, most: int) -> int:
        """That part of it is mapped. Up to `most` bytes are read, returns how many."""
        key = offset, size
        if self.descriptor is None or len(self.code) >= _MOST_PARTS or key in self.code:
            return 0
        there = max(0, self.stamp[2] - offset) if self.stamp is not None else size
        read = min(size, there)
        if read > most:
            self.code[key] = None
            return 0
        self.code[key] = _checksum(self.descriptor, offset, read)
        return read

    def is_as_it_was(self) -> bool:
        """Whether what was mapped of it has not changed, if perhaps the file was written to."""
        descriptor = self.descriptor
        if descriptor is None:
            return False
        if _stamp(descriptor) == self.stamp:
            return True
        return len(self.code) < _MOST_PARTS and all(
            code is not None and _checksum(descriptor, *part) == code
            for part, code in self.code.items()
        )


class Vanished:
    """Knows every mapped file until `close`."""

    def __init__(self) -> None:
        self._files: dict[tuple[str, int], _File] = {}
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        self._room = min(soft // 2, _MOST_FILES)
        self._places = _MOST_PLACES
        self._unread = _MOST
        self.lost: list[str] = []
        """Paths of files whose code could not be kept, once `pokes` has ended."""

    def saw(self, place: Place, mapping: Mapping) -> None:
        """A file was mapped there."""
        if not has_file(mapping.path):
            return
        key = (mapping.path, mapping.inode)
        file = self._files.get(key)
        if file is None:
            file = self._files[key] = self._opened(mapping)
        if file.descriptor is None or not self._places:
            file.partly = True
            return
        self._places -= 1
        file.places += _PLACE.pack(*astuple(place), mapping.pgoff)
        self._unread -= file.saw(mapping.pgoff, place.size, self._unread)

    def pokes(self, room: int | None = None) -> Iterator[tuple[Place, bytes]]:
        """The code of those that are gone: of each place the bytes, as far as the file went.

        They and their records are `room` bytes at most, `_MOST` if it is None.
        """
        left = _MOST if room is None else min(room, _MOST)
        for file in self._files.values():
            now = _stamp(file.path)
            if file.stamp is None or now == file.stamp:
                continue
            if not file.is_as_it_was():
                self.lost.append(file.path)
                continue
            if now is not None and now[:2] == file.stamp[:2]:
                continue  # it was touched, or written to elsewhere
            for *place, offset in _PLACE.iter_unpack(file.places):
                found = Place(*place)
                size = min(found.size, max(0, file.stamp[2] - offset) + _PAGE)
                most = max(0, left - _RECORD * (1 + left // _PART))
                file.partly = file.partly or size > most
                code = _read(file.descriptor, offset, min(size, most))
                if code:
                    left -= len(code) + _RECORD * (1 + len(code) // _PART)
                    yield found, code
            if file.partly:
                self.lost.append(file.path)

    def close(self) -> None:
        """Let go of all."""
        for file in self._files.values():
            if file.descriptor is not None:
                os.close(file.descriptor)
        self._files.clear()
        self.lost.clear()

    def _opened(self, mapping: Mapping) -> _File:
        stamp = _stamp(mapping.path)
        if stamp is None or not self._room:
            return _File(mapping.path, None, stamp)
        try:
            descriptor = os.open(mapping.path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY)
        except OSError:
            return _File(mapping.path, None, stamp)
        self._room -= 1
        return _File(mapping.path, descriptor, _stamp(descriptor))


def _stamp(file: str | int) -> tuple[int, int, int, int] | None:
    """What a file is, and whether it was written to; None if there is none."""
    try:
        found = os.stat(file)  # noqa: PTH116 - also of a descriptor
    except (OSError, ValueError):
        return None
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


def _checksum(descriptor: int, offset: int, size: int) -> int:
    code = 0
    for part in _parts(descriptor, offset, size):
        code = zlib.crc32(part, code)
    return code


def _read(descriptor: int | None, offset: int, size: int) -> bytes:
    """Up to `size` bytes; the last page is filled up with zeros as in memory."""
    code = b"".join(_parts(descriptor, offset, size))
    rest = min(size - len(code), -(offset + len(code)) % _PAGE)
    return code + bytes(rest if code else 0)


def _parts(descriptor: int | None, offset: int, size: int) -> Iterator[bytes]:
    end = offset + size
    while descriptor is not None and offset < end:
        try:
            part = os.pread(descriptor, min(end - offset, 1 << 20), offset)
        except OSError:
            return
        if not part:
            return
        yield part
        offset += len(part)
