"""The kernel's code from vmlinux, the file as it was linked.

The file lacks what boot patches in for the processor and its settings (alternatives, thunks,
paravirtual calls, static keys). One patch is the same in every kernel: calls of the function tracer
are no-ops, so they are made no-ops here. See docs/decisions/0027.
"""

from __future__ import annotations

import struct
from array import array
from typing import TYPE_CHECKING

from rtit.errors import ImageError
from rtit.image.mapped_files import Files, UnusableFile

if TYPE_CHECKING:
    from rtit._core import Code, ElfFile


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
        self._tables = self.elf.symbol_values([*_TRACER_CALLS, *_STATIC_KEYS])
        tracer_calls = array("Q", self._read_table(*_TRACER_CALLS))
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

    def _read_table(self, start: str, end: str) -> bytes:
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

    def load_offset_of_symbol(self, name: str, address: int) -> int:
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
