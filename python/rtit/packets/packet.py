"""A decoded packet as a value, and how it is shown."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from rtit.packets.encode import Value, stretch_cyc
from rtit.packets.encode import encode as _encode
from rtit.packets.table import DECLARATION_BY_NAME, PacketDeclaration, PayloadCoding


@dataclass(frozen=True, slots=True)
class Packet:
    """One packet of a stream.

    name: as in the chapter (`TIP.PGE`), `TNT.64` for the long TNT; `TRIG` is later than the
    chapter. fields: values by name in declared order; not to be changed. offset:
    of its first byte, in bytes. raw: its bytes, reserved bits included.
    """

    name: str
    fields: Mapping[str, Value]
    offset: int
    raw: bytes

    @property
    def size(self) -> int:
        """Bytes, header included."""
        return len(self.raw)

    def __hash__(self) -> int:
        return hash((self.name, self.offset, self.raw))


def reencode(packet: Packet) -> bytes:
    """Return the bytes for the packet's fields; reserved bits and the length of a CYC stay.

    Equals `packet.raw` for a packet that came from `decode`. Raises ValueError as `encode` does.
    """
    row = DECLARATION_BY_NAME[packet.name]
    if not row.defined:
        return packet.raw
    if row.coding is PayloadCoding.CYC:
        cycles = packet.fields["cycles"]
        if not isinstance(cycles, int):
            raise ValueError(f"CYC: cycles = {cycles!r} is no count")
        return stretch_cyc(cycles, packet.size)
    raw = _encode(packet.name, **packet.fields)
    if len(raw) != packet.size:
        return raw
    kept = reserved_mask(row, packet.size)
    return bytes(new | old & mask for new, old, mask in zip(raw, packet.raw, kept, strict=True))


def reserved_mask(row: PacketDeclaration, size: int) -> bytes:
    """Return the bits of a packet of `size` bytes that are neither header nor field."""
    used = int.from_bytes(row.mask, "little")
    for field in row.fields:
        if not field.context:
            width = field.width or (size - field.byte) * 8
            used |= ((1 << width) - 1) << field.byte * 8 + field.bit
    return (((1 << size * 8) - 1) & ~used).to_bytes(size, "little")


def has_reserved_bits(packet: Packet) -> bool:
    """Return whether a reserved bit of the packet is 1."""
    mask = reserved_mask(DECLARATION_BY_NAME[packet.name], packet.size)
    return any(byte & reserved for byte, reserved in zip(packet.raw, mask, strict=True))


def describe(packet: Packet) -> str:
    """Return a line: the name, then `field=value`, with the name of a value in parentheses.

    A TMA with reserved bits that are set is marked: its values may be wrong (erratum SKZ84).
    """
    row = DECLARATION_BY_NAME[packet.name]
    parts = [packet.name]
    for field in row.fields:
        value = packet.fields.get(field.name)
        if value is None:
            continue
        if isinstance(value, int):
            shown = f"{value:#x}" if field.hexadecimal else str(value)
            if field.values:
                shown += f"({field.values.get(value, 'reserved')})"
        else:
            shown = value
        parts.append(f"{field.name}={shown}")
    if packet.name == "TMA" and has_reserved_bits(packet):
        parts.append("(reserved bits set)")
    return " ".join(parts)


def to_json(packet: Packet) -> dict[str, object]:
    """Return a dict for JSON: offset, size, name, fields (plain numbers), raw (hexadecimal)."""
    return {
        "offset": packet.offset,
        "size": packet.size,
        "name": packet.name,
        "fields": dict(packet.fields),
        "raw": packet.raw.hex(),
    }
