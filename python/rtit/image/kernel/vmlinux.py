"""The kernel's code from vmlinux, the file as it was linked.

The file lacks what boot patches in for the processor and its settings (alternatives, thunks,
paravirtual calls, static keys). One patch is the same in every kernel: calls of the function tracer
are no-ops, so they are made no-ops here. See docs/decisions/0027.
"""

from __future__ import annotations

import re
import struct
from array import array
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from rtit.errors import ImageError
from rtit.image.files import Files, UnusableFile

if TYPE_CHECKING:
    from rtit._core import Code, ElfFile


_HEADER = struct.Struct("<4s2B34xQ10x3H")
_SECTION = struct.Struct("<4xI16xQQI4xQQ")
_SYMBOL = struct.Struct("<I4xQ8x")
_SYMTAB = 2
_MAX_SECTION = 1 << 27


def symbol_addresses(path: str, names: Iterable[str]) -> dict[str, int]:
    """Return the addresses of symbols of any type in a 64-bit ELF file, as far as it has them.

    Empty if the file has no readable symbol table. (System V ABI, chapter 4: ELF header, section
    header, symbol table.)
    """
    try:
        with Path(path).open("rb") as file:
            return dict(_find_symbols(file, names))
    except (OSError, struct.error):
        return {}


def _find_symbols(file: BinaryIO, names: Iterable[str]) -> Iterator[tuple[str, int]]:
    magic, width, order, table, entry, count, _ = _HEADER.unpack(file.read(_HEADER.size))
    if (magic, width, order, entry) != (b"\x7fELF", 2, 1, _SECTION.size):
        return
    sections = list(_SECTION.iter_unpack(_read_at(file, table, count * entry)))
    for kind, offset, size, link, _, each in sections:
        if kind != _SYMTAB or each != _SYMBOL.size or link >= len(sections):
            continue
        _, names_offset, length, *_ = sections[link]
        text = _read_at(file, names_offset, length)
        name_of = {
            found.start(): name
            for name in names
            for found in re.finditer(re.escape(name.encode()) + b"\0", text)
        }
        for number, value in _SYMBOL.iter_unpack(_read_at(file, offset, size // each * each)):
            if number in name_of:
                yield name_of[number], value
        return


def _read_at(file: BinaryIO, offset: int, size: int) -> bytes:
    if size > _MAX_SECTION or offset >= 1 << 63:
        return b""
    file.seek(offset)
    return file.read(size)


_EXECUTABLE = 1
_CALL = 0xE8
_CALL_SIZE = 5
_ENDBR64 = b"\xf3\x0f\x1e\xfa"
NOP = b"\x0f\x1f\x44\x00\x00"
TRACER = "__fentry__"
"""The function tracer, which compiled code calls at the start of each function."""
_TRACER_CALLS = "__start_mcount_loc", "__stop_mcount_loc"
"""Start and end of the table of these calls."""
_STATIC_KEYS = "__start___jump_table", "__stop___jump_table"
_STATIC_KEY_SIZE = 16
_MAX_TABLE = 1 << 24


class Vmlinux:
    """The code and symbols of a vmlinux file, at the addresses as linked.

    Raises ImageError if it is not an ELF file, has no code, or is too large.
    """

    def __init__(self, path: str, reader: Files) -> None:
        from rtit._core import Code, ElfFile

        self.elf: ElfFile = ElfFile(path)
        values, _, names, _ = self.elf.symbols()
        addresses = array("Q", values)
        self.symbols = dict(zip(reversed(names), reversed(addresses), strict=True))
        tracer = self.symbols.get(TRACER)
        self._reader = reader
        self._tables = symbol_addresses(path, (*_TRACER_CALLS, *_STATIC_KEYS))
        tracer_calls = array("Q", self._table(*_TRACER_CALLS))
        first, last = (self._tables.get(name, 0) for name in _STATIC_KEYS)
        self.static_keys = max(0, last - first) // _STATIC_KEY_SIZE
        """Number of instructions that static keys change."""
        self.segments: list[tuple[int, Code, int]] = []
        """(address, code, file offset) of each executable segment."""
        for offset, address, size, _, flags in self.elf.segments:
            if not size or not flags & _EXECUTABLE:
                continue
            try:
                code = bytearray(bytes(reader.read_code(path, offset, size)))
            except UnusableFile as error:
                raise ImageError(error.problem.message, source=path) from error
            if tracer is not None:
                _remove_calls_of_functions(code, address, addresses, tracer)
            _remove_calls(code, address, tracer_calls)
            self.segments.append((address, Code(bytes(code)), offset))
        if not self.segments:
            raise ImageError("it has no code", source=path)

    def _table(self, start: str, end: str) -> bytes:
        """Return the 64-bit numbers between two symbols; empty if they do not exist."""
        first, last = self._tables.get(start), self._tables.get(end)
        if first is None or last is None or not 0 < last - first <= _MAX_TABLE:
            return b""
        for offset, address, size, _, _ in self.elf.segments:
            if address <= first and last <= address + size:
                table_offset, table_size = offset + first - address, last - first
                path = str(self.elf.path)
                try:
                    table = bytes(self._reader.read_code(path, table_offset, table_size))
                except UnusableFile:
                    return b""
                # A cut file can end anywhere.
                return table[: min(table_size, len(table)) // 8 * 8]
        return b""

    def shift(self, name: str, address: int) -> int:
        """Return how far the kernel was moved if a symbol is at `address`; 0 if unknown."""
        linked = self.symbols.get(name)
        return 0 if linked is None else address - linked


def _remove_calls_of_functions(
    code: bytearray, start: int, functions: array[int], tracer: int
) -> None:
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


def _remove_calls(code: bytearray, start: int, calls: array[int]) -> None:
    for call in calls:
        at = call - start
        if 0 <= at <= len(code) - _CALL_SIZE and code[at] == _CALL:
            code[at : at + _CALL_SIZE] = NOP
