"""A process at the end of its recording: loaded files, auxiliary vector, and known memory.

A trace has no data. Memory is known where code was recorded, and where a file is mapped that the
process cannot write.
"""

from __future__ import annotations

import os
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rtit.errors import ImageError
from rtit.image import Image, Images, Mapping, has_file, load_bias, open_program_file

if TYPE_CHECKING:
    from rtit._core import ElfFile

_ADDRESS_SPACE = 1 << 64
_PAGE = 4096
_WRITABLE = 2
_MAX_READ = 1 << 20
_MAX_COMM = 15
"""Characters of a thread's name."""
# types of auxiliary vector entries
_AT_NULL, _AT_PHDR, _AT_PHENT, _AT_PHNUM, _AT_PAGESZ, _AT_BASE, _AT_ENTRY = 0, 3, 4, 5, 6, 7, 9


@dataclass(frozen=True, slots=True)
class LoadedFile:
    """A mapped file: its recorded and its current path, its headers, and its load bias."""

    recorded_path: str
    path: str
    headers: ElfFile
    bias: int

    def address_of(self, address: int) -> int:
        """Return the memory address of an address in the file."""
        return (address + self.bias) % _ADDRESS_SPACE


class RecordedProgram:
    """The files and the memory of a process at the end of the recording."""

    def __init__(self, images: Images, pid: int, name: str) -> None:
        self._image = images.image(pid)
        self.files: list[LoadedFile] = []
        self.problems: list[str] = []
        found: dict[tuple[str, int], LoadedFile] = {}
        for mapping in self._image.mappings.mappings_overlapping(0, _ADDRESS_SPACE - 1):
            self._add_file(images, mapping, found)
        self.files = list(found.values())
        self.main = max(self.files, key=lambda each: _program_sort_key(each, name), default=None)

    def _add_file(
        self, images: Images, mapping: Mapping, found: dict[tuple[str, int], LoadedFile]
    ) -> None:
        if mapping.problem is not None or not has_file(mapping.path):
            return
        known = images.files.symbols(mapping.path, mapping.build_id)
        path = known.elf.path if known is not None else Path(images.files.local_path(mapping.path))
        try:
            headers = open_program_file(path)
        except (ImageError, OSError, ValueError) as error:
            self.problems.append(f"{mapping.path}: {error}")
            return
        size = mapping.end - mapping.start
        bias = load_bias(headers, mapping.offset, size, mapping.start)
        if bias is not None:
            loaded = LoadedFile(mapping.path, os.path.realpath(path), headers, bias)
            found.setdefault((loaded.path, bias), loaded)

    @property
    def image(self) -> Image:
        """The code of the process over time."""
        return self._image

    @property
    def libraries(self) -> list[LoadedFile]:
        """Files other than the program."""
        return [each for each in self.files if each is not self.main]

    def build_auxiliary_vector(self) -> bytes:
        """Return the auxiliary vector, as far as the load addresses determine it."""
        entries = [(_AT_PAGESZ, _PAGE)]
        if self.main is not None:
            headers = self.main.headers
            entries.append((_AT_ENTRY, self.main.address_of(headers.entry)))
            table, count = headers.program_headers
            if table:
                table = self.main.address_of(table)
                entries += [(_AT_PHDR, table), (_AT_PHENT, 56), (_AT_PHNUM, count)]
            loader = next((each for each in self.libraries if _is_dynamic_loader(each)), None)
            if loader is not None:
                entries.append((_AT_BASE, loader.bias % _ADDRESS_SPACE))
        return b"".join(struct.pack("<QQ", *entry) for entry in [*entries, (_AT_NULL, 0)])

    def read_memory(self, address: int, size: int) -> bytes:
        """Return up to `size` bytes at `address`, up to the first unknown byte."""
        size = min(size, _MAX_READ, _ADDRESS_SPACE - address)
        data = b""
        while len(data) < size:
            chunk = self._read_code_or_file(address + len(data), size - len(data))
            if not chunk:
                break
            data += chunk
        return data

    def _read_code_or_file(self, address: int, size: int) -> bytes:
        if code := self._image.read(address, size):
            return code
        for each in self.files:
            for offset, start, file_size, _, flags in each.headers.segments:
                # the kernel maps whole pages of the file
                before = start % _PAGE
                at = (address - each.address_of(start) + before) % _ADDRESS_SPACE
                if flags & _WRITABLE or at >= before + file_size:
                    continue
                size = min(size, before + file_size - at)
                return _read_file(each.path, offset - before + at, size)
        return b""


def _read_file(path: str, offset: int, size: int) -> bytes:
    try:
        with Path(path).open("rb") as file:
            file.seek(offset)
            return file.read(size)
    except (OSError, ValueError, OverflowError):
        return b""


def _program_sort_key(file: LoadedFile, name: str) -> tuple[bool, bool, bool]:
    """Return a sort key by which the program is the largest of the loaded files."""
    base = os.path.basename(file.recorded_path)[:_MAX_COMM]  # noqa: PTH119 - a name, not a file
    return file.headers.is_program, base == name[:_MAX_COMM], file.headers.has_loader


def _is_dynamic_loader(file: LoadedFile) -> bool:
    return not file.headers.has_loader and Path(file.recorded_path).name.startswith("ld")
