"""Addresses that an ELF file's symbol table has for names of anything, code or not."""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

_HEADER = struct.Struct("<4s2B34xQ10x3H")
_SECTION = struct.Struct("<4xI16xQQI4xQQ")
_SYMBOL = struct.Struct("<I4xQ8x")
_SYMTAB = 2
_MOST = 1 << 27


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
    if size > _MOST or offset >= 1 << 63:
        return b""
    file.seek(offset)
    return file.read(size)
