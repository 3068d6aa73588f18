"""The program of a process: which files are loaded where, and what its memory holds for sure."""

from __future__ import annotations

import os
import struct
from dataclasses import dataclass
from pathlib import Path

from rtit.errors import ImageError
from rtit.image import Headers, Image, Images, Mapping, has_file, read_headers

_ALL = 1 << 64
_PAGE = 4096
_WRITABLE = 2
_MOST_READ = 1 << 20
_COMM = 15
"""Characters of a thread's name."""
# auxiliary vector: the type of each entry
_NULL, _PHDR, _PHENT, _PHNUM, _PAGESZ, _BASE, _ENTRY = 0, 3, 4, 5, 6, 7, 9


@dataclass(frozen=True, slots=True)
class Loaded:
    """A file: where it was recorded and where it is now, its headers, and by how much its addresses
    were moved.
    """

    recorded: str
    path: str
    headers: Headers
    bias: int

    def at(self, address: int) -> int:
        """Where it lies in memory what the file has at `address`."""
        return (address + self.bias) % _ALL


class Program:
    """What process `pid` had in its memory in the end. `name` is that of its first thread.

    `files` are loaded, in order of address, `main` is the program among them, None if none is
    known; `problems`: what is not known of others.
    """

    def __init__(self, images: Images, pid: int, name: str) -> None:
        self._image = images.image(pid)
        self.files: list[Loaded] = []
        self.problems: list[str] = []
        found: dict[tuple[str, int], Loaded] = {}
        for mapping in self._image.mappings.covering(0, _ALL - 1):
            self._take(images, mapping, found)
        self.files = list(found.values())
        self.main = max(self.files, key=lambda each: _rank(each, name), default=None)

    def _take(self, images: Images, mapping: Mapping, found: dict[tuple[str, int], Loaded]) -> None:
        if mapping.problem is not None or not has_file(mapping.path):
            return
        known = images.files.symbols(mapping.path, mapping.build_id)
        path = known.elf.path if known is not None else Path(images.files.locate(mapping.path))
        try:
            headers = read_headers(path)
        except (ImageError, OSError, ValueError) as error:
            self.problems.append(f"{mapping.path}: {error}")
            return
        bias = headers.bias(mapping.offset, mapping.end - mapping.start, mapping.start)
        if bias is not None:
            loaded = Loaded(mapping.path, os.path.realpath(path), headers, bias)
            found.setdefault((loaded.path, bias), loaded)

    @property
    def image(self) -> Image:
        """Its code over time."""
        return self._image

    @property
    def libraries(self) -> list[Loaded]:
        """The files beside the program."""
        return [each for each in self.files if each is not self.main]

    def auxv(self) -> bytes:
        """Its auxiliary vector, as far as it follows from where the program is."""
        entries = [(_PAGESZ, _PAGE)]
        if self.main is not None:
            headers = self.main.headers
            entries.append((_ENTRY, self.main.at(headers.entry)))
            if headers.table:
                table = self.main.at(headers.table)
                entries += [(_PHDR, table), (_PHENT, 56), (_PHNUM, headers.count)]
            loader = next((each for each in self.libraries if _is_loader(each)), None)
            if loader is not None:
                entries.append((_BASE, loader.bias % _ALL))
        return b"".join(struct.pack("<QQ", *entry) for entry in [*entries, (_NULL, 0)])

    def read(self, address: int, size: int) -> bytes:
        """What was at `address` in the end: `size` bytes, fewer up to the first that is not known.

        Code is known, and what the files say that nobody could write.
        """
        size = min(size, _MOST_READ, _ALL - address)
        data = b""
        while len(data) < size:
            more = self._read(address + len(data), size - len(data))
            if not more:
                break
            data += more
        return data

    def _read(self, address: int, size: int) -> bytes:
        if code := self._image.read(address, size):
            return code
        for each in self.files:
            for segment in each.headers.segments:
                # The kernel maps whole pages of the file.
                before = segment.address % _PAGE
                at = (address - each.at(segment.address) + before) % _ALL
                if segment.flags & _WRITABLE or at >= before + segment.size:
                    continue
                size = min(size, before + segment.size - at)
                return _part(each.path, segment.offset - before + at, size)
        return b""


def _part(path: str, offset: int, size: int) -> bytes:
    try:
        with Path(path).open("rb") as file:
            file.seek(offset)
            return file.read(size)
    except (OSError, ValueError, OverflowError):
        return b""


def _rank(file: Loaded, name: str) -> tuple[bool, bool, bool]:
    """How much speaks for a file to be the program."""
    base = os.path.basename(file.recorded)[:_COMM]  # noqa: PTH119 - a name, not a file
    return file.headers.is_program, base == name[:_COMM], file.headers.has_loader


def _is_loader(file: Loaded) -> bool:
    return not file.headers.has_loader and Path(file.recorded).name.startswith("ld")
