"""The kernel as it was linked, moved to where it ran.

What boot patches in (alternatives, static keys, paravirtual calls) is not in the file; calls of
the function tracer are no-ops in a kernel that runs, and are made so here.
"""

from __future__ import annotations

import struct
from array import array
from typing import TYPE_CHECKING

from rtit.errors import ImageError
from rtit.image.files import Files, Unusable

if TYPE_CHECKING:
    from rtit._core import Code, ElfFile

_EXECUTABLE = 1
_CALL = 0xE8
_CALL_SIZE = 5
_ENDBR64 = b"\xf3\x0f\x1e\xfa"
NOP = b"\x0f\x1f\x44\x00\x00"
TRACER = "__fentry__"
"""What compilers call at the start of each function for the kernel's function tracer."""


class Vmlinux:
    """`pieces` are (address as linked, code, file offset), `symbols` address by name, as linked.

    Raises ImageError for what is no ELF file, has no code, or is too large.
    """

    def __init__(self, path: str, reader: Files) -> None:
        from rtit._core import Code, ElfFile

        self.elf: ElfFile = ElfFile(path)
        values, _, names, _ = self.elf.symbols()
        addresses = array("Q", values)
        self.symbols = dict(zip(reversed(names), reversed(addresses), strict=True))
        tracer = self.symbols.get(TRACER)
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
            self.pieces.append((address, Code(bytes(code)), offset))
        if not self.pieces:
            raise ImageError("no code is in it", source=path)

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
