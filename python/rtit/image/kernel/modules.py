"""Code of kernel modules from their files.

A module file is a relocatable ELF object (`ModuleObject`; numbers are those of the System V ABI and
its AMD64 supplement). It is linked to the addresses at which it ran: kallsyms has the symbols of
the module, which give the address of each section. Like vmlinux, the file lacks what loading
patches in besides relocations; only calls of the function tracer are made no-ops. `ModuleLoader`
finds the file of each module and checks its build id.
"""

from __future__ import annotations

import gzip
import lzma
import os
import re
import stat
import struct
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from rtit.errors import ImageError, unreadable_image
from rtit.image.image import Image
from rtit.image.kernel.kallsyms import Kallsym
from rtit.image.kernel.kernel_files import KernelFiles
from rtit.image.kernel.vmlinux import NOP, TRACER
from rtit.image.mapped_files import Files, describe_build_id, is_same_build_id
from rtit.image.mappings import FOREVER, KERNEL_START, Mapping
from rtit.image.problems import Problem

_ELF_HEADER = struct.Struct("<4sBB10x HHI QQQ I HHHHHH")
_SECTION = struct.Struct("<II QQQQ II QQ")
_SYMBOL = struct.Struct("<I BBH QQ")
_RELOCATION = struct.Struct("<QQq")
_NOTE = struct.Struct("<III")
_RELOCATABLE, _EM_X86_64 = 1, 62
_NONE, _SYMTAB, _RELA, _NOTES, _NOBITS = 0, 2, 4, 7, 8
_ALLOC, _EXEC = 2, 4
_BUILD_ID = 3
_CALL_OPCODE = 0xE8
_RELATIVE_32 = (2, 4)
_ABSOLUTE_32 = (10, 11)
_ABSOLUTE_64, _RELATIVE_64 = 1, 24


class _ElfSection(NamedTuple):
    name: int
    kind: int
    flags: int
    address: int
    offset: int
    size: int
    link: int
    info: int
    align: int
    entry: int


class _ElfSymbol(NamedTuple):
    name: str
    section: int
    value: int


class ModuleObject:
    """A relocatable object. Raises ImageError, with the offset, if `data` is not one."""

    def __init__(self, data: bytes, source: str) -> None:
        self._data = data
        self._source = source
        if len(data) < _ELF_HEADER.size:
            raise self._module_error("too short for an ELF file", 0, len(data))
        magic, width, order, kind, machine, *_, table, _, _, _, _, entry, count, _ = (
            _ELF_HEADER.unpack_from(data)
        )
        if (magic, width, order) != (b"\x7fELF", 2, 1) or (kind, machine) != (
            _RELOCATABLE,
            _EM_X86_64,
        ):
            raise self._module_error("not a relocatable object of x86-64", 0, kind)
        if entry != _SECTION.size or table + entry * count > len(data):
            raise self._module_error("its sections are outside of the file", 0x28, table)
        rows = _SECTION.iter_unpack(data[table : table + entry * count])
        self._sections = [_ElfSection(*row) for row in rows]
        size = sum(each.size for each in self._sections if each.kind not in (_NONE, _NOBITS))
        if size > len(data):
            raise self._module_error("its sections overlap", table, size)
        self._symbols = list(self._read_symbols())

    @property
    def build_id(self) -> bytes | None:
        """The GNU build id; None if the object has none."""
        for section in self._sections:
            if section.kind != _NOTES:
                continue
            content = self._section_bytes(section)
            if len(content) < _NOTE.size:
                continue
            name, size, kind = _NOTE.unpack_from(content)
            start = _NOTE.size + (name + 3 & ~3)
            if kind == _BUILD_ID and start + size <= len(content):
                return content[start : start + size]
        return None

    def link_code(
        self, start: int, symbols: Iterable[Kallsym], addresses: dict[str, int]
    ) -> list[tuple[int, bytes]]:
        """Return the code of each executable section, with its address.

        `symbols` are those of the module, `addresses` those of all symbols of the kernel. Without
        `symbols`, the first executable section is at `start`.
        """
        module_addresses: dict[str, int | None] = {}
        for row in symbols:
            # A name with two addresses is ambiguous.
            is_new = row.name not in module_addresses
            module_addresses[row.name] = row.address if is_new else None
        bases = self._section_bases(module_addresses, start)
        sections = []
        for number, base in bases.items():
            code = bytearray(self._section_bytes(self._sections[number]))
            for relocation in self._section_relocations(number):
                self._apply_relocation(code, base, relocation, bases, addresses)
            if KERNEL_START <= base <= FOREVER - len(code):
                sections.append((base, bytes(code)))
        return sections

    def _section_bases(self, addresses: dict[str, int | None], start: int) -> dict[int, int]:
        bases: dict[int, int] = {}
        for symbol in self._symbols:
            at = addresses.get(symbol.name)
            if at is not None and self._is_code_section(symbol.section):
                bases.setdefault(symbol.section, at - symbol.value)
        if not bases:
            first = next((n for n in range(len(self._sections)) if self._is_code_section(n)), None)
            if first is not None:
                bases[first] = start
        return bases

    def _is_code_section(self, number: int) -> bool:
        if not 0 < number < len(self._sections):
            return False
        section = self._sections[number]
        return section.flags & (_ALLOC | _EXEC) == _ALLOC | _EXEC and section.size > 0

    def _section_relocations(self, number: int) -> Iterator[tuple[int, int, int]]:
        for section in self._sections:
            if section.kind == _RELA and section.info == number:
                content = self._section_bytes(section)
                whole = len(content) // _RELOCATION.size * _RELOCATION.size
                yield from _RELOCATION.iter_unpack(content[:whole])

    def _apply_relocation(
        self,
        code: bytearray,
        base: int,
        relocation: tuple[int, int, int],
        bases: dict[int, int],
        addresses: dict[str, int],
    ) -> None:
        at, info, addend = relocation
        kind, index = info & 0xFFFF_FFFF, info >> 32
        if index >= len(self._symbols):
            return
        symbol = self._symbols[index]
        if symbol.section == 0:
            if symbol.name == TRACER and 0 < at <= len(code) - 4 and code[at - 1] == _CALL_OPCODE:
                code[at - 1 : at + 4] = NOP
                return
            target = addresses.get(symbol.name)
        else:
            section = bases.get(symbol.section)
            target = None if section is None else section + symbol.value
        if target is None:
            return
        value = target + addend
        if kind in (*_RELATIVE_32, _RELATIVE_64):
            value -= base + at
        if kind in (*_RELATIVE_32, *_ABSOLUTE_32):
            size = 4
        elif kind in (_ABSOLUTE_64, _RELATIVE_64):
            size = 8
        else:
            return
        if at + size <= len(code):
            code[at : at + size] = (value & (1 << 8 * size) - 1).to_bytes(size, "little")

    def _read_symbols(self) -> Iterable[_ElfSymbol]:
        for section in self._sections:
            if section.kind != _SYMTAB:
                continue
            content = self._section_bytes(section)
            if section.link >= len(self._sections):
                raise self._module_error("its symbols have no names", section.offset, section.link)
            names = self._section_bytes(self._sections[section.link])
            whole = len(content) // _SYMBOL.size * _SYMBOL.size
            for name, _, _, where, value, _ in _SYMBOL.iter_unpack(content[:whole]):
                end = names.find(b"\0", name)
                text = names[name:end] if 0 <= name < end and end - name < 1 << 12 else b""
                yield _ElfSymbol(text.decode(errors="replace"), where, value)
            return

    def _section_bytes(self, section: _ElfSection) -> bytes:
        if section.offset + section.size > len(self._data):
            raise self._module_error(
                "a section is outside of the file", section.offset, section.size
            )
        return self._data[section.offset : section.offset + section.size]

    def _module_error(self, message: str, offset: int, value: int) -> ImageError:
        return ImageError(message, source=self._source, offset=offset, value=value)


_SUFFIX = re.compile(r"\.ko(\.(gz|xz|zst))?$")
UNKNOWN = "the module's code is not known"
_MAX_FILE_SIZE = 1 << 26
_MAX_FILES = 1 << 15
_MAX_LOADS = 16
"""A recording can load one module this often."""
_MAX_CODE = 1 << 28
"""Bytes of code of all modules."""
_TOO_OFTEN = "modules are loaded more often than real ones are: the code of later ones is not known"
_BLOCK_SIZE = 1 << 20
_COMPRESSED: dict[str, Callable[[str, str], Any]] = {".gz": gzip.open, ".xz": lzma.open}


def module_name(path: str) -> str:
    """Return the kernel's name of the module with this path, which can be a name in brackets."""
    base = path.rpartition("/")[2].removeprefix("[").removesuffix("]")
    return _SUFFIX.sub("", base).replace("-", "_")


class ModuleLoader:
    """Loads modules from the folder in `sources`, else from their recorded paths by `files`.

    `files` is None for guests. `symbols` are those of the kernel and of all modules.
    """

    def __init__(
        self, sources: KernelFiles, files: Files | None, symbols: Sequence[Kallsym]
    ) -> None:
        self._folder = sources.modules
        self._packed_problems = {each.path: each for each in sources.problems}
        self._files = files
        self._symbols = symbols
        self._loads: Counter[str] = Counter()
        self._code_size = 0
        self.used: dict[str, str] = {}
        """modules/NAME -> path of each loaded file."""

    def load_module(
        self, image: Image, mapping: Mapping, module_symbols: Sequence[Kallsym]
    ) -> Problem | None:
        """Map the code of a module into the image; return a problem if its code is unknown."""
        path = mapping.path
        file = self._find_module_file(path)
        if file is None:
            return self._packed_problems.get(path) or Problem("missing", path, UNKNOWN)
        self._loads[file] += 1
        if self._loads[file] > _MAX_LOADS or self._code_size > _MAX_CODE:
            return Problem("unreadable", path, _TOO_OFTEN)
        try:
            module = ModuleObject(_read_module(file), file)
            recorded = mapping.build_id
            if recorded is None and self._files is not None:
                recorded = self._files.build_id(path)
            actual = module.build_id
            if recorded and any(recorded) and not is_same_build_id(actual or b"", recorded):
                message = f"{file} {describe_build_id(actual)}, recorded was {recorded.hex()}"
                return Problem("changed", path, message)
            sections = module.link_code(mapping.start, module_symbols, self._address_of_symbol)
        except ImageError as error:
            return Problem("unreadable", path, str(error))
        for address, code in sections:
            image.native.map(mapping.since, address, code)
            self._code_size += len(code)
        suffix = _SUFFIX.search(file)
        name = module_name(path) + (suffix[0] if suffix is not None else ".ko")
        self.used[f"modules/{name}"] = file
        return None

    def _find_module_file(self, path: str) -> str | None:
        if self._folder is not None:
            return self._folder_files.get(module_name(path))
        if self._files is None or not path.startswith("/"):
            return None
        real = self._files.path_outside_pack(path)
        return real if real is not None and Path(real).is_file() else None

    @cached_property
    def _address_of_symbol(self) -> dict[str, int]:
        """Symbol -> address; the first one if a name has several."""
        return {row.name: row.address for row in reversed(self._symbols)}

    @cached_property
    def _folder_files(self) -> dict[str, str]:
        """Module name -> path, in the folder."""
        return _module_paths_in_folder(self._folder) if self._folder is not None else {}


def _module_paths_in_folder(folder: str) -> dict[str, str]:
    found: dict[str, str] = {}
    seen = 0
    for directory, _, names in os.walk(folder):
        for name in names:
            seen += 1
            if _SUFFIX.search(name):
                found.setdefault(module_name(name), os.path.join(directory, name))  # noqa: PTH118
        if seen > _MAX_FILES:
            break
    return found


def _read_module(path: str) -> bytes:
    """Return the decompressed bytes of a module file. Raises ImageError."""
    try:
        if not stat.S_ISREG(Path(path).stat().st_mode):
            raise ImageError("not a regular file", source=path)
        if path.endswith(".zst"):
            return _decompress_zstd_file(path)
        opened = _COMPRESSED.get(Path(path).suffix, open)
        with opened(path, "rb") as file:
            data: bytes = file.read(_MAX_FILE_SIZE + 1)
    except (OSError, EOFError, ValueError, lzma.LZMAError, zlib.error) as error:
        raise unreadable_image(error, path) from error
    if len(data) > _MAX_FILE_SIZE:
        raise ImageError(f"more than {_MAX_FILE_SIZE:,} bytes of a module", source=path)
    return data


def _decompress_zstd_file(path: str) -> bytes:
    """Decompress. Raises ValueError if the file is not Zstandard or too large."""
    from rtit._core import unzstd

    data = bytearray()
    with Path(path).open("rb") as file:
        unzstd(iter(lambda: file.read(_BLOCK_SIZE), b""), data.extend, _MAX_FILE_SIZE)
    return bytes(data)
