"""Files that a program ran and that are gone before the recording ends.

What was mapped is kept open. If its name means another file in the end, or none, the code goes into
the recording as code without a file does, from when it was mapped.
"""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from dataclasses import dataclass, field

from rtit.capture.events import Mapping
from rtit.image import has_file

_PAGE = 4096
_MOST = 1 << 28
"""Bytes of code that are written for all of them together."""
_MOST_FILES = 1024


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
    """`descriptor` is None if it could not be kept open."""

    path: str
    descriptor: int | None
    stamp: tuple[int, int, int, int] | None
    places: list[tuple[Place, int]] = field(default_factory=list)


class Vanished:
    """Knows every mapped file until `close`."""

    def __init__(self) -> None:
        self._files: dict[tuple[str, int], _File] = {}
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        self._room = min(soft // 2, _MOST_FILES)
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
        file.places.append((place, mapping.pgoff))

    def pokes(self) -> Iterator[tuple[Place, bytes]]:
        """The code of those that are gone: of each place the bytes, as far as the file went."""
        left = _MOST
        for file in self._files.values():
            if _stamp(file.path) == file.stamp is not None:
                continue
            descriptor = file.descriptor
            if descriptor is None or _stamp(descriptor) != file.stamp:
                if file.stamp is not None:
                    self.lost.append(file.path)
                continue
            for place, offset in file.places:
                code = _read(descriptor, offset, min(place.size, left))
                left -= len(code)
                if code:
                    yield place, code
                if not left:
                    self.lost.append(file.path)
                    break

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


def _read(descriptor: int, offset: int, size: int) -> bytes:
    """Up to `size` bytes; the last page is filled up with zeros as in memory."""
    parts = []
    while size > 0:
        try:
            part = os.pread(descriptor, min(size, 1 << 20), offset)
        except OSError:
            break
        if not part:
            break
        parts.append(part)
        offset += len(part)
        size -= len(part)
    rest = min(size, -offset % _PAGE)
    return b"".join(parts) + bytes(rest if parts else 0)
