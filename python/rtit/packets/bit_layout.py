"""The meaning of every bit of a packet: header, field, reserved, and a few more."""

from __future__ import annotations

from itertools import groupby
from typing import NamedTuple

from rtit.packets.packet import Packet
from rtit.packets.table import DECLARATION_BY_NAME, PacketDeclaration, PayloadCoding

HEADER, RESERVED = "header", "reserved"
STOP_BIT, UNUSED, EXP = "stop bit", "unused", "Exp"


class BitSpan(NamedTuple):
    """Neighbouring bits of one byte that belong together.

    `name`: a field, `header`, `reserved`, `stop bit` and the `unused` bits above it (TNT), or `Exp`
    (CYC). `value`: the bits, the highest first. `high` and `low`: the bits of the field's value
    that these are; in a TNT, bit 0 is the youngest result. Both are 0 if `name` is no field.
    """

    name: str
    value: str
    high: int = 0
    low: int = 0


def bit_spans(packet: Packet) -> list[list[BitSpan]]:
    """Return the spans of each byte, from bit 7 down to bit 0."""
    meanings = _bit_meanings(DECLARATION_BY_NAME[packet.name], packet)
    return [
        _spans_of_byte(byte, meanings[8 * number : 8 * number + 8])
        for number, byte in enumerate(packet.raw)
    ]


def _spans_of_byte(byte: int, meanings: list[tuple[str, int]]) -> list[BitSpan]:
    spans = []
    for name, group in groupby(range(7, -1, -1), key=lambda bit: meanings[bit][0]):
        bits = list(group)
        value = "".join(str(byte >> bit & 1) for bit in bits)
        spans.append(BitSpan(name, value, meanings[bits[0]][1], meanings[bits[-1]][1]))
    return spans


def _bit_meanings(row: PacketDeclaration, packet: Packet) -> list[tuple[str, int]]:
    """Return, for each bit from bit 0 of the first byte on, its name and its bit of the value."""
    found = [(RESERVED, 0)] * (packet.size * 8)
    for number, byte in enumerate(row.mask):
        for bit in range(8):
            if byte >> bit & 1:
                found[number * 8 + bit] = HEADER, 0
    if row.coding is PayloadCoding.CYC:
        at = [2, *range(8, len(found), 8)]
        cycles = [bit for bit in range(3, len(found)) if bit not in at]
        for number, bit in enumerate(cycles):
            found[bit] = "cycles", number
        for bit in at:
            found[bit] = EXP, 0
        return found
    for field in row.fields:
        if field.context:
            continue
        start = field.byte * 8 + field.bit
        end = start + field.width if field.width else len(found)
        for bit in range(start, end):
            found[bit] = field.name, field.shift + bit - start
        if row.coding is PayloadCoding.TNT:
            stop = start + len(str(packet.fields[field.name]))
            found[stop] = STOP_BIT, 0
            found[stop + 1 : end] = [(UNUSED, 0)] * (end - stop - 1)
    return found
