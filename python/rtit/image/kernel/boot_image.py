"""The symbols and structures of a Linux kernel, from its boot image (bzImage) alone.

The boot image holds a compressed ELF file. Its section .rodata has the tables of kallsyms, which
the kernel itself prints in /proc/kallsyms: names are sequences of tokens, and addresses are offsets
from a base. Its section .BTF describes the structures.
"""

from __future__ import annotations

import bz2
import lzma
import os
import struct
import zlib
from collections.abc import Iterable
from pathlib import Path

from rtit.errors import ImageError

_MAX_SIZE = 1 << 29
_SETUP_SECTORS, _MAGIC_OFFSET, _PAYLOAD_OFFSET = 0x1F1, 0x202, 0x248
_SECTOR = 512
_DIGITS = b"\0".join(bytes([digit]) for digit in b"0123456789") + b"\0"
_TOKENS = 256
_SYMBOLS_PER_MARKER = 256
_MAX_NAME_BYTES = 40_000
"""Bytes of the names between two markers, at most."""

Symbol = tuple[int, str, str]
"""Address as linked, type as in /proc/kallsyms, name."""


class BootImage:
    """Reads the kernel in a boot image. Raises ImageError if it is no bzImage of a known form."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = os.fspath(path)
        self._elf = self._decompress_kernel()
        self._sections = self._read_sections()

    def symbols(self) -> list[Symbol]:
        """Return all symbols of the kernel, in order of address. Raises ImageError."""
        try:
            return _read_kallsyms_tables(self._sections[".rodata"])
        except (IndexError, KeyError, ValueError, struct.error) as error:
            raise ImageError("has no tables of kallsyms", source=self._path) from error

    def field_offsets(self, fields: Iterable[tuple[str, str]]) -> dict[tuple[str, str], int]:
        """Return the offsets in bytes of fields, (structure, field), as far as BTF has them."""
        try:
            return _read_btf_offsets(self._sections[".BTF"], set(fields))
        except (IndexError, KeyError, ValueError, struct.error):
            return {}

    def _decompress_kernel(self) -> bytes:
        try:
            image = Path(self._path).read_bytes()
        except OSError as error:
            raise ImageError(str(error.strerror), source=self._path) from error
        if image[_MAGIC_OFFSET : _MAGIC_OFFSET + 4] != b"HdrS" or len(image) < 1024:
            raise ImageError("not a Linux boot image (bzImage)", source=self._path)
        offset, size = struct.unpack_from("<II", image, _PAYLOAD_OFFSET)
        start = (image[_SETUP_SECTORS] + 1) * _SECTOR + offset
        kernel = decompress(image[start : start + size], self._path)
        if kernel[:4] != b"\x7fELF":
            raise ImageError("its kernel has an unknown compression", source=self._path)
        return kernel

    def _read_sections(self) -> dict[str, memoryview]:
        elf = memoryview(self._elf)
        try:
            (headers,) = struct.unpack_from("<Q", elf, 40)
            count, names_at = struct.unpack_from("<HH", elf, 60)
            rows = [struct.unpack_from("<IIQQQQ", elf, headers + 64 * n) for n in range(count)]
            names = bytes(elf[rows[names_at][4] :][: rows[names_at][5]])
        except (IndexError, struct.error) as error:
            raise ImageError("its kernel is not a whole ELF file", source=self._path) from error
        return {
            names[row[0] : names.find(b"\0", row[0])].decode(): elf[row[4] : row[4] + row[5]]
            for row in rows
        }


def decompress(data: bytes, source: str) -> bytes:
    """Return the content of data that is compressed in a way that the kernel knows, else b"".

    Raises ImageError, which names `source`, if the data is damaged or the content too large.
    """
    from rtit._core import unlz4, unzstd

    try:
        if data[:4] == bytes.fromhex("02214c18"):
            return unlz4(data, _MAX_SIZE)
        if data[:4] == bytes.fromhex("28b52ffd"):
            found = bytearray()
            unzstd(iter([data]), found.extend, _MAX_SIZE)
            return bytes(found)
        if data[:2] == b"\x1f\x8b":
            return zlib.decompressobj(31).decompress(data, _MAX_SIZE)
        if data[:6] == b"\xfd7zXZ\0" or data[:3] == b"\x5d\0\0":
            return lzma.LZMADecompressor().decompress(data, _MAX_SIZE)
        if data[:3] == b"BZh":
            return bz2.BZ2Decompressor().decompress(data, _MAX_SIZE)
    except (ValueError, OSError, zlib.error, lzma.LZMAError) as error:
        raise ImageError(f"cannot be decompressed: {error}", source=source) from error
    return b""


def _read_kallsyms_tables(rodata: memoryview) -> list[Symbol]:
    data = bytes(rodata)
    tokens, tokens_at = _find_tokens(data)
    markers, markers_at = _find_markers(data, tokens_at)
    names_at, count = _find_names(data, markers, markers_at)
    names, _ = _read_names(data, names_at, count, tokens)
    (base,) = struct.unpack_from("<Q", data, names_at - 16)
    offsets_at = names_at - 16 - ((count * 4 + 7) & ~7)
    offsets = struct.unpack_from(f"<{count}i", data, offsets_at)
    # A negative offset is from the base, downwards; others are absolute (per-CPU data).
    symbols = [
        (base - 1 - offset if offset < 0 else offset, name[0], name[1:])
        for offset, name in zip(offsets, names, strict=True)
    ]
    return sorted(symbols, key=lambda symbol: symbol[0])


def _find_tokens(data: bytes) -> tuple[list[str], int]:
    """Return the tokens and the position of their table. The tokens of the digits are in a row."""
    at = -1
    while True:
        at = data.index(_DIGITS, at + 1)
        start = at
        for _ in range(ord("0")):
            start = data.rindex(b"\0", 0, start - 1) + 1
        tokens = data[start : start + (1 << 14)].split(b"\0")[:_TOKENS]
        end = start + sum(len(token) + 1 for token in tokens)
        index = struct.unpack_from("<2H", data, (end + 7) & ~7)
        if index == (0, len(tokens[0]) + 1):
            return [token.decode("latin1") for token in tokens], start


def _find_markers(data: bytes, tokens_at: int) -> tuple[list[int], int]:
    """Return the offsets of every 256th name, and the position of this table."""
    at = tokens_at & ~7
    while True:
        at -= 4
        zero, first, second = struct.unpack_from("<3I", data, at)
        if zero == 0 and 0 < first < _MAX_NAME_BYTES // 2 and first < second:
            break
    markers = [0]
    for position in range(at + 4, tokens_at - 3, 4):
        (marker,) = struct.unpack_from("<I", data, position)
        if not 0 < marker - markers[-1] < _MAX_NAME_BYTES:
            break
        markers.append(marker)
    return markers, at


def _find_names(data: bytes, markers: list[int], markers_at: int) -> tuple[int, int]:
    """Return the position of the names and their number, which precedes them."""
    last_names = _SYMBOLS_PER_MARKER * 300
    for at in range((markers_at - markers[-1] - last_names) & ~7, markers_at - markers[-1] + 8, 8):
        (count,) = struct.unpack_from("<I", data, at)
        if len(markers) - 1 <= count / _SYMBOLS_PER_MARKER <= len(markers):
            _, end = _read_names(data, at + 8, _SYMBOLS_PER_MARKER, None)
            if end - at - 8 == markers[1]:
                return at + 8, count
    raise ValueError("no names")


def _read_names(
    data: bytes, at: int, count: int, tokens: list[str] | None
) -> tuple[list[str], int]:
    """Return names, none without tokens, and the position after them."""
    names = []
    for _ in range(count):
        size = data[at]
        at += 1
        if size & 128:
            size = size & 127 | data[at] << 7
            at += 1
        if tokens is not None:
            names.append("".join([tokens[each] for each in data[at : at + size]]))
        at += size
    return names, at


_TRAILING_BYTES = {1: 4, 3: 12, 14: 4, 17: 4}
"""BTF kind -> bytes after its header: INT, ARRAY, VAR, DECL_TAG."""
_BYTES_PER_MEMBER = {4: 12, 5: 12, 6: 8, 13: 8, 15: 12, 19: 12}
"""The same for each member: STRUCT, UNION, ENUM, FUNC_PROTO, DATASEC, ENUM64."""
_STRUCT = 4


def _read_btf_offsets(btf: memoryview, wanted: set[tuple[str, str]]) -> dict[tuple[str, str], int]:
    header_size, types_at, types_size, strings_at, _ = struct.unpack_from("<5I", btf, 4)
    types = btf[header_size + types_at :][:types_size]
    strings = bytes(btf[header_size + strings_at :])

    def text(at: int) -> str:
        return strings[at : strings.index(b"\0", at)].decode()

    rows = []
    at = 0
    while at < len(types):
        name, info, _ = struct.unpack_from("<3I", types, at)
        kind, members = info >> 24 & 31, info & 0xFFFF
        rows.append((name, info, at + 12))
        at += 12 + _TRAILING_BYTES.get(kind, 0) + _BYTES_PER_MEMBER.get(kind, 0) * members
    found: dict[tuple[str, str], int] = {}

    def add_members(number: int, structure: str, base: int) -> None:
        _, info, start = rows[number - 1]
        for index in range(info & 0xFFFF):
            name, of_type, offset = struct.unpack_from("<3I", types, start + 12 * index)
            offset = base + (offset & 0xFFFFFF if info >> 31 else offset)
            if name == 0:
                add_members(of_type, structure, offset)
            elif (structure, text(name)) in wanted:
                found.setdefault((structure, text(name)), offset // 8)

    structures = {structure for structure, _ in wanted}
    for number, (name, info, _) in enumerate(rows, 1):
        if info >> 24 & 31 == _STRUCT and name and text(name) in structures:
            add_members(number, text(name), 0)
    return found
