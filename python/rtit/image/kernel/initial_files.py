"""The regular files of an initial file system of Linux (initramfs).

It is a sequence of cpio archives (`newc`), as `cpio -H newc` writes them. The last one may be
compressed.
"""

from __future__ import annotations

import os
import posixpath
from collections.abc import Iterator
from pathlib import Path

from rtit.errors import ImageError
from rtit.image.kernel.boot_image import decompress

_MAGIC = b"07070"
_HEADER = 110
_FIELDS = 13
"""Fields of a header, eight hexadecimal digits each."""
_INODE, _MODE, _LINKS, _SIZE, _NAME_SIZE = 0, 1, 4, 6, 11
_TYPE, _REGULAR = 0o170000, 0o100000
_TRAILER = "TRAILER!!!"


def read_initial_files(path: str | os.PathLike[str]) -> dict[str, memoryview]:
    """Return the contents of the regular files by absolute path. Raises ImageError."""
    name = os.fspath(path)
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise ImageError(str(error.strerror), source=name) from error
    found: dict[str, memoryview] = {}
    while rest := data.lstrip(b"\0"):
        if rest.startswith(_MAGIC):
            end = _read_archive(rest, found, name)
            data = rest[end:]
        else:
            data = decompress(rest, name)
            if not data.startswith(_MAGIC):
                raise ImageError("not a cpio archive (newc) of a known compression", source=name)
    return found


def _read_archive(data: bytes, found: dict[str, memoryview], source: str) -> int:
    """Add the files of the first archive to `found`; return where the archive ends."""
    names_of_inode: dict[int, list[str]] = {}
    end = 0
    for fields, name, content, after in _entries(data, source):
        end = after
        if name == _TRAILER:
            break
        if fields[_MODE] & _TYPE != _REGULAR:
            continue
        names = [posixpath.normpath(f"/{name}")]
        if fields[_LINKS] > 1:
            # Only the last one of the names of a file has the content.
            names = names_of_inode.setdefault(fields[_INODE], []) + names
            names_of_inode[fields[_INODE]] = names
        found |= dict.fromkeys(names, content)
    return end


def _entries(data: bytes, source: str) -> Iterator[tuple[list[int], str, memoryview, int]]:
    """Yield fields, name and content of each entry, and where it ends."""
    view, at = memoryview(data), 0
    while data.startswith(_MAGIC, at):
        try:
            fields = [int(data[at + 6 + 8 * n : at + 14 + 8 * n], 16) for n in range(_FIELDS)]
        except ValueError as error:
            raise ImageError("a damaged header", source=source, offset=at) from error
        start = at + _HEADER
        name = os.fsdecode(data[start : start + fields[_NAME_SIZE] - 1])
        start = start + fields[_NAME_SIZE] + 3 & -4
        end = start + fields[_SIZE]
        if end > len(data):
            raise ImageError("ends within a file", source=source, offset=at)
        at = end + 3 & -4
        yield fields, name, view[start:end], at
