"""A relocatable ELF object of x86-64, linked to addresses that are known.

Numbers are those of the System V ABI and its AMD64 supplement.

Kernel modules from their files: relocatable objects, linked here to where they ran.

The places of a module's sections are taken from its names in kallsyms. As with the kernel's own
file, what loading patches in beside relocations is not there, but for the function tracer.
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
from rtit.image.files import Files, Problem
from rtit.image.image import Image
from rtit.image.kernel.kallsyms import Kallsym
from rtit.image.kernel.sources import KernelFiles
from rtit.image.kernel.vmlinux import NOP, TRACER
from rtit.image.mappings import FOREVER, UPPER, Mapping

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


class _Section(NamedTuple):
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


class _Symbol(NamedTuple):
    name: str
    section: int
    value: int


class Module:
    """The object `data`; raises ImageError, with the offset, where it is none."""

    def __init__(self, data: bytes, source: str) -> None:
        self._data = data
        self._source = source
        if len(data) < _ELF_HEADER.size:
            raise self._bad("too short for an ELF file", 0, len(data))
        magic, width, order, kind, machine, *_, table, _, _, _, _, entry, count, _ = (
            _ELF_HEADER.unpack_from(data)
        )
        if (magic, width, order) != (b"\x7fELF", 2, 1) or (kind, machine) != (
            _RELOCATABLE,
            _EM_X86_64,
        ):
            raise self._bad("no relocatable object of x86-64", 0, kind)
        if entry != _SECTION.size or table + entry * count > len(data):
            raise self._bad("its sections are outside of it", 0x28, table)
        rows = _SECTION.iter_unpack(data[table : table + entry * count])
        self._sections = [_Section(*row) for row in rows]
        size = sum(each.size for each in self._sections if each.kind not in (_NONE, _NOBITS))
        if size > len(data):
            raise self._bad("its sections lie over each other", table, size)
        self._symbols = list(self._read_symbols())

    @property
    def build_id(self) -> bytes | None:
        """The GNU build id, if it has one."""
        for section in self._sections:
            if section.kind != _NOTES:
                continue
            content = self._content(section)
            if len(content) < _NOTE.size:
                continue
            name, size, kind = _NOTE.unpack_from(content)
            start = _NOTE.size + (name + 3 & ~3)
            if kind == _BUILD_ID and start + size <= len(content):
                return content[start : start + size]
        return None

    def linked(
        self, start: int, symbols: Iterable[Kallsym], known: dict[str, int]
    ) -> list[tuple[int, bytes]]:
        """Its code by address. `symbols` are its own, where it ran, and `known` the addresses of
        all names; its section .text is at `start` where no symbol says otherwise.
        """
        own: dict[str, int | None] = {}
        for row in symbols:
            # a name that is there twice says nothing
            own[row.name] = None if row.name in own else row.address
        bases = self._bases(own, start)
        pieces = []
        for number, base in bases.items():
            code = bytearray(self._content(self._sections[number]))
            for relocation in self._relocations(number):
                self._apply(code, base, relocation, bases, known)
            if UPPER <= base <= FOREVER - len(code):
                pieces.append((base, bytes(code)))
        return pieces

    def _bases(self, own: dict[str, int | None], start: int) -> dict[int, int]:
        bases: dict[int, int] = {}
        for symbol in self._symbols:
            at = own.get(symbol.name)
            if at is not None and self._is_code(symbol.section):
                bases.setdefault(symbol.section, at - symbol.value)
        if not bases:
            first = next((n for n in range(len(self._sections)) if self._is_code(n)), None)
            if first is not None:
                bases[first] = start
        return bases

    def _is_code(self, number: int) -> bool:
        if not 0 < number < len(self._sections):
            return False
        section = self._sections[number]
        return section.flags & (_ALLOC | _EXEC) == _ALLOC | _EXEC and section.size > 0

    def _relocations(self, number: int) -> Iterator[tuple[int, int, int]]:
        for section in self._sections:
            if section.kind == _RELA and section.info == number:
                content = self._content(section)
                whole = len(content) // _RELOCATION.size * _RELOCATION.size
                yield from _RELOCATION.iter_unpack(content[:whole])

    def _apply(
        self,
        code: bytearray,
        base: int,
        relocation: tuple[int, int, int],
        bases: dict[int, int],
        known: dict[str, int],
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
            target = known.get(symbol.name)
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

    def _read_symbols(self) -> Iterable[_Symbol]:
        for section in self._sections:
            if section.kind != _SYMTAB:
                continue
            content = self._content(section)
            if section.link >= len(self._sections):
                raise self._bad("its symbols have no names", section.offset, section.link)
            names = self._content(self._sections[section.link])
            whole = len(content) // _SYMBOL.size * _SYMBOL.size
            for name, _, _, where, value, _ in _SYMBOL.iter_unpack(content[:whole]):
                end = names.find(b"\0", name)
                text = names[name:end] if 0 <= name < end and end - name < 1 << 12 else b""
                yield _Symbol(text.decode(errors="replace"), where, value)
            return

    def _content(self, section: _Section) -> bytes:
        if section.offset + section.size > len(self._data):
            raise self._bad("a section is outside of it", section.offset, section.size)
        return self._data[section.offset : section.offset + section.size]

    def _bad(self, message: str, offset: int, value: int) -> ImageError:
        return ImageError(message, source=self._source, offset=offset, value=value)


_SUFFIX = re.compile(r"\.ko(\.(gz|xz|zst))?$")
UNKNOWN = "the module's code is not known"
_MAX_MODULES = 1 << 26
_MOST_FILES = 1 << 15
_MOST_TIMES = 16
_MOST_CODE = 1 << 28
"""So often a module is loaded anew, and bytes of code of all: a file can tell of any number."""
_TOO_OFTEN = "modules are loaded more often than real ones are: the code of later ones is not known"
_PART = 1 << 20
_COMPRESSED: dict[str, Callable[[str, str], Any]] = {".gz": gzip.open, ".xz": lzma.open}


def module_name(path: str) -> str:
    """As the kernel calls the module in a file, or in brackets."""
    base = path.rpartition("/")[2].removeprefix("[").removesuffix("]")
    return _SUFFIX.sub("", base).replace("-", "_")


class Modules:
    """Modules in the folder of `sources`; without one where they were recorded, by the rules of
    `files`, which has none of guests. `symbols` are those of the kernel and all modules.
    """

    def __init__(
        self, sources: KernelFiles, files: Files | None, symbols: Sequence[Kallsym]
    ) -> None:
        self._folder = sources.modules
        self._known = {each.path: each for each in sources.problems}
        self._files = files
        self._symbols = symbols
        self._times: Counter[str] = Counter()
        self._code = 0
        self.used: dict[str, str] = {}
        """Files that have been loaded, by how they are to be called in a folder like this."""

    def load(self, image: Image, mapping: Mapping, own: Sequence[Kallsym]) -> Problem | None:
        """Put the code of what is mapped, with its `own` symbols, into the image; why it is not
        known if it is not.
        """
        path = mapping.path
        real = self._find(path)
        if real is None:
            return self._known.get(path) or Problem("missing", path, UNKNOWN)
        self._times[real] += 1
        if self._times[real] > _MOST_TIMES or self._code > _MOST_CODE:
            return Problem("unreadable", path, _TOO_OFTEN)
        try:
            module = Module(_read_modules(real), real)
            wanted = mapping.build_id
            if wanted is None and self._files is not None:
                wanted = self._files.build_id(path)
            has = module.build_id
            if wanted and any(wanted) and wanted.ljust(20, b"\0") != (has or b"").ljust(20, b"\0"):
                text = f"has build id {has.hex()}" if has else "has no build id"
                return Problem("changed", path, f"{real} {text}, recorded was {wanted.hex()}")
            pieces = module.linked(mapping.start, own, self._addresses)
        except ImageError as error:
            return Problem("unreadable", path, str(error))
        for address, code in pieces:
            image.native.map(mapping.since, address, code)
            self._code += len(code)
        suffix = _SUFFIX.search(real)
        name = module_name(path) + (suffix[0] if suffix is not None else ".ko")
        self.used[f"modules/{name}"] = real
        return None

    def _find(self, path: str) -> str | None:
        if self._folder is not None:
            return self._there.get(module_name(path))
        if self._files is None or not path.startswith("/"):
            return None
        real = self._files.place(path)
        return real if real is not None and Path(real).is_file() else None

    @cached_property
    def _addresses(self) -> dict[str, int]:
        """Of all symbols; of several of a name that of the first."""
        return {row.name: row.address for row in reversed(self._symbols)}

    @cached_property
    def _there(self) -> dict[str, str]:
        """The files of the folder, by the names of modules."""
        return _modules_in(self._folder) if self._folder is not None else {}


def _modules_in(folder: str) -> dict[str, str]:
    found: dict[str, str] = {}
    looked = 0
    for place, _, names in os.walk(folder):
        for name in names:
            looked += 1
            if _SUFFIX.search(name):
                found.setdefault(module_name(name), os.path.join(place, name))  # noqa: PTH118
        if looked > _MOST_FILES:
            break
    return found


def _read_modules(path: str) -> bytes:
    """A module's bytes, unpacked. Raises ImageError."""
    try:
        if not stat.S_ISREG(Path(path).stat().st_mode):
            raise ImageError("not a regular file", source=path)
        if path.endswith(".zst"):
            return _unzstd(path)
        opened = _COMPRESSED.get(Path(path).suffix, open)
        with opened(path, "rb") as file:
            data: bytes = file.read(_MAX_MODULES + 1)
    except (OSError, EOFError, ValueError, lzma.LZMAError, zlib.error) as error:
        raise unreadable_image(error, path) from error
    if len(data) > _MAX_MODULES:
        raise ImageError(f"more than {_MAX_MODULES:,} bytes of a module", source=path)
    return data


def _unzstd(path: str) -> bytes:
    """Raises ValueError for what is no Zstandard, or more than a module."""
    from rtit._core import unzstd

    data = bytearray()
    with Path(path).open("rb") as file:
        unzstd(iter(lambda: file.read(_PART), b""), data.extend, _MAX_MODULES)
    return bytes(data)
