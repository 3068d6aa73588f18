"""A relocatable ELF object of x86-64, linked to addresses that are known.

Numbers are those of the System V ABI and its AMD64 supplement.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from rtit.errors import ImageError
from rtit.image.kernel.kallsyms import Kallsym
from rtit.image.kernel.vmlinux import NOP, TRACER
from rtit.image.mappings import FOREVER, UPPER

_HEADER = struct.Struct("<4sBB10x HHI QQQ I HHHHHH")
_SECTION = struct.Struct("<II QQQQ II QQ")
_SYMBOL = struct.Struct("<I BBH QQ")
_RELOCATION = struct.Struct("<QQq")
_NOTE = struct.Struct("<III")
_RELOCATABLE, _X86_64 = 1, 62
_NONE, _SYMTAB, _RELA, _NOTES, _NOBITS = 0, 2, 4, 7, 8
_ALLOC, _EXEC = 2, 4
_BUILD_ID = 3
_CALL = 0xE8
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
        if len(data) < _HEADER.size:
            raise self._bad("too short for an ELF file", 0, len(data))
        magic, width, order, kind, machine, *_, table, _, _, _, _, entry, count, _ = (
            _HEADER.unpack_from(data)
        )
        if (magic, width, order) != (b"\x7fELF", 2, 1) or (kind, machine) != (
            _RELOCATABLE,
            _X86_64,
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
        self, start: int, symbols: Iterable[Kallsym], known: Mapping[str, int]
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
        known: Mapping[str, int],
    ) -> None:
        at, info, addend = relocation
        kind, index = info & 0xFFFF_FFFF, info >> 32
        if index >= len(self._symbols):
            return
        symbol = self._symbols[index]
        if symbol.section == 0:
            if symbol.name == TRACER and 0 < at <= len(code) - 4 and code[at - 1] == _CALL:
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
