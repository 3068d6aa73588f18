"""One packet from bytes, by the rows of `table`."""

from __future__ import annotations

import mmap
from collections.abc import Callable
from typing import Literal

from rtit.errors import PacketError
from rtit.packets.encode import Value
from rtit.packets.packet import Packet
from rtit.packets.table import (
    BLOCK_ITEM,
    BY_FIRST_BYTE,
    BY_SECOND_BYTE,
    CYC_MAX_BYTES,
    DECLARATION_BY_NAME,
    DECLARATIONS,
    ESCAPE,
    PacketDeclaration,
    PayloadCoding,
)

_PSB = DECLARATION_BY_NAME["PSB"]

Data = bytes | bytearray | mmap.mmap
"""What can be decoded without a copy."""

ItemSize = Literal[4, 8]
"""Bytes of the items of an open block (BBP.SZ)."""


class Truncated(PacketError):  # noqa: N818 - an end of stream, not a mistake
    """The data ends inside a packet: the end of a stream, not a malformed one."""


def decode_whole_packet(raw: bytes) -> Packet:
    """Return the packet that has these bytes. Raises as `decode`.

    Only a block item (BIP) has a first byte with these bits and is longer than a TNT.
    """
    is_item = len(raw) > 1 and raw[0] & BLOCK_ITEM.mask[0] == BLOCK_ITEM.header[0]
    return decode(raw, in_block=(4 if len(raw) == 5 else 8) if is_item else None)


def decode(data: Data, offset: int = 0, *, in_block: ItemSize | None = None) -> Packet:
    """Return the packet that begins at `offset` (bytes).

    in_block: between BBP and BEP the size of the items, else None; it decides between BIP and TNT.

    Raises Truncated if the data ends first, PacketError for bytes that the chapter leaves
    undefined. What is wrong with the bytes at hand is reported before their being too few.
    """
    row = _find_declaration(data, offset, in_block)
    here = len(data) - offset
    for rule in row.invalid:
        if data[offset + rule.byte] & rule.mask == rule.value:
            raise _packet_error(
                f"reserved {' and '.join(rule.fields)} in {row.name}", data, offset, row.size
            )
    if row.coding is PayloadCoding.CYC:
        size, value = _decode_cyc(data, offset)
        return Packet(row.name, {"cycles": value}, offset, bytes(data[offset : offset + size]))
    if here < row.size:
        raise _truncated_packet_error(row.name, offset)
    if row is _PSB and _psb_continues(data, offset):
        raise _packet_error("PSB within a longer run of its bytes", data, offset, row.size)
    size = row.size
    if row.payload is not None:
        more = _payload_size(row, data, offset, in_block)
        if here < size + more:
            raise _truncated_packet_error(row.name, offset)
        size += more
    raw = bytes(data[offset : offset + size])
    if row.coding is PayloadCoding.TNT:
        return Packet(row.name, {"bits": _decode_tnt(row, raw, offset)}, offset, raw)
    return Packet(row.name, _FIELD_DECODERS[row.name](raw, in_block), offset, raw)


def _find_declaration(data: Data, offset: int, in_block: ItemSize | None) -> PacketDeclaration:
    end = len(data)
    if not 0 <= offset < end:
        raise _truncated_packet_error("nothing", offset)
    first = data[offset]
    if in_block is not None and first & BLOCK_ITEM.mask[0] == BLOCK_ITEM.header[0]:
        return BLOCK_ITEM
    candidates = BY_FIRST_BYTE[first]
    if first == ESCAPE and offset + 1 < end:
        candidates = BY_SECOND_BYTE[data[offset + 1]]
    elif candidates and len(candidates[0].header) == 1:
        return candidates[0]
    for row in candidates:
        known = bytes(data[offset : offset + len(row.header)])
        if all(b & m == h for b, m, h in zip(known, row.mask, row.header, strict=False)):
            if len(known) < len(row.header):
                raise _truncated_packet_error(row.name, offset)
            return row
    raise _packet_error("undefined packet opcode", data, offset, 3)


def _psb_continues(data: Data, offset: int) -> bool:
    """A run of 02H 82H ends with its PSB (`scan.find_psb`): whether one that begins at `offset` is
    longer than that and no two.
    """
    pair, at = _PSB.header[:2], offset + _PSB.size
    end = at + _PSB.size
    while at < end and data[at : at + 2] == pair:
        at += 2
    # At the end of the data this is unknown.
    return offset + _PSB.size < at < end and not pair.startswith(data[at : at + 2])


def _payload_size(
    row: PacketDeclaration, data: Data, offset: int, in_block: ItemSize | None
) -> int:
    if row is BLOCK_ITEM:
        return in_block or 8
    selector, sizes = (row.payload.selector, row.payload.sizes) if row.payload else ("", {})
    field = next(field for field in row.fields if field.name == selector)
    value = data[offset + field.byte] >> field.bit & (1 << field.width) - 1
    size = sizes.get(value)
    if size is None:
        raise _packet_error(f"reserved {selector} in {row.name}", data, offset, row.size)
    return size


def _decode_tnt(row: PacketDeclaration, raw: bytes, offset: int) -> str:
    field = row.fields[0]
    code = int.from_bytes(raw, "little") >> field.byte * 8 + field.bit
    if code < 2:
        raise PacketError(f"{row.name} without results", offset=offset, value=raw.hex(" "))
    return f"{code:b}"[1:].translate(_TNT_LETTERS)


_TNT_LETTERS = str.maketrans("01", "NT")


def _decode_cyc(data: Data, offset: int) -> tuple[int, int]:
    first = data[offset]
    value, more, size = first >> 3, first & 4, 1
    while more:
        if size == CYC_MAX_BYTES:
            raise _packet_error(f"CYC of more than {CYC_MAX_BYTES} bytes", data, offset, size)
        if offset + size >= len(data):
            raise _truncated_packet_error("CYC", offset)
        byte = data[offset + size]
        value |= byte >> 1 << 7 * size - 2
        more, size = byte & 1, size + 1
    return size, value


def _compile_field_decoder(
    row: PacketDeclaration,
) -> Callable[[bytes, ItemSize | None], dict[str, Value]]:
    """Return a function from a packet's bytes to its fields."""
    places = [
        (f.name, f.byte * 8 + f.bit, (1 << f.width) - 1, f.shift, f.width, f.context)
        for f in row.fields
    ]

    def read_fields(raw: bytes, in_block: ItemSize | None) -> dict[str, Value]:
        word = int.from_bytes(raw, "little")
        fields: dict[str, Value] = {}
        for name, at, mask, shift, width, context in places:
            if context:
                fields[name] = int(in_block == 4)
            elif width:
                fields[name] = (word >> at & mask) << shift
            else:
                fields[name] = word >> at if len(raw) * 8 > at else None
        return fields

    return read_fields


_FIELD_DECODERS = {row.name: _compile_field_decoder(row) for row in DECLARATIONS}


def _truncated_packet_error(name: str, offset: int) -> Truncated:
    return Truncated(f"the data ends inside a packet ({name})", offset=offset)


def _packet_error(what: str, data: Data, offset: int, size: int) -> PacketError:
    return PacketError(what, offset=offset, value=bytes(data[offset : offset + size]).hex(" "))
