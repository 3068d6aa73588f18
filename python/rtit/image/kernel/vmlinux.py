"""Addresses that an ELF file's symbol table has for names of anything, code or not.

The kernel as it was linked, moved to where it ran.

What boot patches in by the processor and by its settings (alternatives, thunks, paravirtual calls,
static keys) is not in the file; calls of the function tracer are no-ops in every kernel that runs,
and are made so here. See docs/decisions/0027.
"""

from __future__ import annotations

import re
import struct
from array import array
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from rtit.errors import ImageError
from rtit.image.files import Files, Unusable

if TYPE_CHECKING:
    from rtit._core import Code, ElfFile


_HEADER = struct.Struct("<4s2B34xQ10x3H")
_SECTION = struct.Struct("<4xI16xQQI4xQQ")
_SYMBOL = struct.Struct("<I4xQ8x")
_SYMTAB = 2
_MAX_LABELS = 1 << 27


def labels(path: str, names: Iterable[str]) -> dict[str, int]:
    """Those of a file of 64 bits that are there; none where it has no symbol table, or one that
    cannot be read. (System V ABI, chapter 4: ELF header, section header, symbol table.)
    """
    try:
        with Path(path).open("rb") as file:
            return dict(_labels(file, names))
    except (OSError, struct.error):
        return {}


def _labels(file: BinaryIO, names: Iterable[str]) -> Iterator[tuple[str, int]]:
    magic, width, order, table, entry, count, _ = _HEADER.unpack(file.read(_HEADER.size))
    if (magic, width, order, entry) != (b"\x7fELF", 2, 1, _SECTION.size):
        return
    sections = list(_SECTION.iter_unpack(_at(file, table, count * entry)))
    for kind, offset, size, link, _, each in sections:
        if kind != _SYMTAB or each != _SYMBOL.size or link >= len(sections):
            continue
        _, place, length, *_ = sections[link]
        text = _at(file, place, length)
        wanted = {
            found.start(): name
            for name in names
            for found in re.finditer(re.escape(name.encode()) + b"\0", text)
        }
        for number, value in _SYMBOL.iter_unpack(_at(file, offset, size // each * each)):
            if number in wanted:
                yield wanted[number], value
        return


def _at(file: BinaryIO, offset: int, size: int) -> bytes:
    if size > _MAX_LABELS or offset >= 1 << 63:
        return b""
    file.seek(offset)
    return file.read(size)


_EXECUTABLE = 1
_CALL = 0xE8
_CALL_SIZE = 5
_ENDBR64 = b"\xf3\x0f\x1e\xfa"
NOP = b"\x0f\x1f\x44\x00\x00"
TRACER = "__fentry__"
"""What compilers call at the start of each function for the kernel's function tracer."""
_TRACED = "__start_mcount_loc", "__stop_mcount_loc"
"""Around the addresses of all these calls."""
_KEYS = "__start___jump_table", "__stop___jump_table"
_KEY_SIZE = 16
_MOST_TABLE = 1 << 24


class Vmlinux:
    """`pieces` are (address as linked, code, file offset), `symbols` address by name, as linked;
    `keys`: the number of places that static keys change.

    Raises ImageError for what is no ELF file, has no code, or is too large.
    """

    def __init__(self, path: str, reader: Files) -> None:
        from rtit._core import Code, ElfFile

        self.elf: ElfFile = ElfFile(path)
        values, _, names, _ = self.elf.symbols()
        addresses = array("Q", values)
        self.symbols = dict(zip(reversed(names), reversed(addresses), strict=True))
        tracer = self.symbols.get(TRACER)
        self._reader = reader
        self._labels = labels(path, (*_TRACED, *_KEYS))
        traced = array("Q", self._table(*_TRACED))
        first, last = (self._labels.get(name, 0) for name in _KEYS)
        self.keys = max(0, last - first) // _KEY_SIZE
        self.pieces: list[tuple[int, Code, int]] = []
        for offset, address, size, _, flags in self.elf.segments:
            if not size or not flags & _EXECUTABLE:
                continue
            try:
                code = bytearray(bytes(reader.code(path, offset, size)))
            except Unusable as error:
                raise ImageError(error.problem.message, source=path) from error
            if tracer is not None:
                _without_tracer(code, address, addresses, tracer)
            _without_calls(code, address, traced)
            self.pieces.append((address, Code(bytes(code)), offset))
        if not self.pieces:
            raise ImageError("no code is in it", source=path)

    def _table(self, start: str, end: str) -> bytes:
        """Whole numbers of 64 bits between two symbols; nothing if they are not there."""
        first, last = self._labels.get(start), self._labels.get(end)
        if first is None or last is None or not 0 < last - first <= _MOST_TABLE:
            return b""
        for offset, address, size, _, _ in self.elf.segments:
            if address <= first and last <= address + size:
                place, wanted = offset + first - address, last - first
                try:
                    table = bytes(self._reader.code(str(self.elf.path), place, wanted))[:wanted]
                except Unusable:
                    return b""
                # a file that is cut ends anywhere
                return table[: len(table) // 8 * 8]
        return b""

    def move(self, name: str, address: int) -> int:
        """By how much everything is moved if the symbol `name` is at `address`; 0 without it."""
        linked = self.symbols.get(name)
        return 0 if linked is None else address - linked


def _without_tracer(code: bytearray, start: int, functions: array[int], tracer: int) -> None:
    end = start + len(code)
    for function in functions:
        if not start <= function < end:
            continue
        at = function - start
        if code[at : at + len(_ENDBR64)] == _ENDBR64:
            at += len(_ENDBR64)
        if at + _CALL_SIZE > len(code) or code[at] != _CALL:
            continue
        (distance,) = struct.unpack_from("<i", code, at + 1)
        if start + at + _CALL_SIZE + distance == tracer:
            code[at : at + _CALL_SIZE] = NOP


def _without_calls(code: bytearray, start: int, calls: array[int]) -> None:
    for call in calls:
        at = call - start
        if 0 <= at <= len(code) - _CALL_SIZE and code[at] == _CALL:
            code[at : at + _CALL_SIZE] = NOP
