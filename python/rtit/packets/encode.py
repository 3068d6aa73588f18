"""Packets from values to bytes, by the rows of `table`.

`encode` takes a name and named fields. `encoder(name)` compiles a row once into a function of the
fields in declared order, for callers that write millions of packets; `encode_tnt` is the same for
branch results.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache
from typing import NoReturn

from rtit.packets.table import (
    CYC_MAX_BYTES,
    DECLARATION_BY_NAME,
    NAMES,
    Field,
    PacketDeclaration,
    PayloadCoding,
)

Value = int | str | None
"""A field's value: an int, a TNT's results ("TNT", oldest first), or None for a suppressed IP."""

_SHORT_TNT = [bytes((code << 1,)) for code in range(128)]
_SHORT_CYC = [bytes((cycles << 3 | 3,)) for cycles in range(32)]
_CYC_LIMIT = 5 + 7 * (CYC_MAX_BYTES - 1)


def encode(name: str, /, **fields: Value | Iterable[object]) -> bytes:
    """Return the bytes of one packet.

    name: one of `NAMES`. fields: all fields of its declaration; `payload` may be left out (or
    None) where `ip_bytes` is 0. TNT and TNT.64 take `bits`, a string of T and N, oldest first, or
    an iterable of truth values.

    Raises ValueError, with field and value, for a field that is unknown, missing, out of range or
    reserved.
    """
    row = _declaration_of(name)
    if row.coding is PayloadCoding.TNT:
        bits = fields.pop("bits", None)
        _refuse_unknown_fields(row, fields)
        return _encode_tnt_fields(row, bits)
    if row.payload and row.payload.selector == "ip_bytes":
        fields.setdefault("payload", None)
    missing = [field.name for field in row.fields if field.name not in fields]
    if missing:
        raise ValueError(f"{name}: field {missing[0]} is missing")
    values = [fields.pop(field.name) for field in row.fields]
    _refuse_unknown_fields(row, fields)
    return encoder(name)(*values)


@cache
def encoder(name: str) -> Callable[..., bytes]:
    """Return a function from the fields of packet `name`, in declared order, to its bytes.

    Raises ValueError (now) for an unknown name; the function raises it for values as `encode` does.
    """
    row = _declaration_of(name)
    if row.coding is PayloadCoding.TNT:
        return lambda bits: _encode_tnt_fields(row, bits)
    if row.coding is PayloadCoding.CYC:
        return encode_cyc
    if row.payload is None:
        return _fixed_encoder(row)
    if row.payload.selector == "ip_bytes":
        return _ip_encoder(row)
    return _payload_encoder(row)


def encode_tnt(count: int, bits: int, long: bool = False) -> bytes:
    """Return a short TNT (1..6 results) or, with `long`, a long one (1..47).

    Result i of `bits` is bit count-1-i, 0 being the oldest; 1 = taken.

    Raises ValueError for a count out of range or bits that do not fit it. Table 33-16.
    """
    if bits >> count or count < 1 or count > (47 if long else 6):
        name = "TNT.64" if long else "TNT"
        raise ValueError(f"{name}: {count} results, bits {bits:#x}, do not fit a packet")
    if long:
        return b"\x02\xa3" + (1 << count | bits).to_bytes(6, "little")
    return _SHORT_TNT[1 << count | bits]


def encode_cyc(cycles: int) -> bytes:
    """Return a CYC in its shortest form: 1 byte below 32 cycles, then 7 bits more a byte, up to 9.

    Raises ValueError for a negative count or one of more than 61 bits. Table 33-33.
    """
    if 0 <= cycles < 32:
        return _SHORT_CYC[cycles]
    if 0 <= cycles < 4096:
        return bytes((cycles << 3 & 0xF8 | 7, cycles >> 4 & 0xFE))
    if cycles >> _CYC_LIMIT:
        raise _out_of_range_error("CYC", "cycles", cycles)
    size = 2 + (cycles.bit_length() - 6) // 7
    return stretch_cyc(cycles, size)


def stretch_cyc(cycles: int, size: int) -> bytes:
    """Return a CYC of exactly `size` bytes, which may be more than the count needs."""
    raw = bytearray((cycles << 3 & 0xF8 | (size > 1) << 2 | 3,))
    rest = cycles >> 5
    for left in range(size - 2, -1, -1):
        raw.append(rest << 1 & 0xFE | (left > 0))
        rest >>= 7
    if rest:
        raise _out_of_range_error("CYC", "cycles", cycles)
    return bytes(raw)


def _declaration_of(name: str) -> PacketDeclaration:
    if name not in NAMES:
        raise ValueError(f"no packet is called {name!r}; valid are {', '.join(NAMES)}")
    return DECLARATION_BY_NAME[name]


def _refuse_unknown_fields(
    row: PacketDeclaration, fields: dict[str, Value | Iterable[object]]
) -> None:
    if fields:
        raise ValueError(f"{row.name} has no field {next(iter(fields))}")


def _out_of_range_error(name: str, field: str, value: object) -> ValueError:
    shown = hex(value) if isinstance(value, int) else repr(value)
    return ValueError(f"{name}: {field} = {shown} is out of range")


def _encode_tnt_fields(row: PacketDeclaration, bits: object) -> bytes:
    if isinstance(bits, str):
        if bits.strip("TN"):
            raise ValueError(f"{row.name}: bits = {bits!r} hold more than T and N")
        results = [letter == "T" for letter in bits]
    elif isinstance(bits, Iterable):
        results = [bool(bit) for bit in bits]
    else:
        raise ValueError(f"{row.name}: bits = {bits!r} are no branch results")
    value = 0
    for taken in results:
        value = value << 1 | taken
    return encode_tnt(len(results), value, long=row.size > 1)


def _position_bits(row: PacketDeclaration, field: Field, value: int) -> int:
    """Return the field's bits at their position, as an integer over the whole packet."""
    low = value >> field.shift
    if low >> field.width or low << field.shift != value:
        raise _out_of_range_error(row.name, field.name, value)
    return 0 if field.context else low << field.byte * 8 + field.bit


def _refuse_invalid(row: PacketDeclaration, raw: bytes, values: tuple[int, ...]) -> None:
    for rule in row.invalid:
        if raw[rule.byte] & rule.mask == rule.value:
            named = zip(row.fields, values, strict=True)
            shown = ", ".join(f"{f.name} = {v}" for f, v in named if f.name in rule.fields)
            raise ValueError(f"{row.name}: {shown} is reserved")


def _fixed_encoder(row: PacketDeclaration) -> Callable[..., bytes]:
    size, fields = row.size, row.fields
    header = int.from_bytes(row.header, "little")
    if not fields:
        raw = row.header.ljust(size, b"\0")
        return lambda: raw
    if len(fields) == 1 and fields[0].shift == 0:
        only, at = fields[0], fields[0].byte * 8 + fields[0].bit
        width = only.width

        def encode_one(value: int) -> bytes:
            if value >> width:
                raise _out_of_range_error(row.name, only.name, value)
            return (header | value << at).to_bytes(size, "little")

        return encode_one

    def encode_all(*values: int) -> bytes:
        word = header
        for field, value in zip(fields, values, strict=True):
            word |= _position_bits(row, field, value)
        raw = word.to_bytes(size, "little")
        _refuse_invalid(row, raw, values)
        return raw

    return encode_all


def _ip_encoder(row: PacketDeclaration) -> Callable[..., bytes]:
    sizes = row.payload.sizes if row.payload else {}
    forms = [(bytes((row.header[0] | n << 5,)), sizes[n]) if n in sizes else None for n in range(8)]

    def reject_payload(ip_bytes: int, payload: object) -> NoReturn:
        if not 0 <= ip_bytes < 8 or forms[ip_bytes] is None:
            raise _out_of_range_error(row.name, "ip_bytes", ip_bytes)
        raise _out_of_range_error(row.name, "payload", payload)

    def encode_ip(ip_bytes: int, payload: int | None = None) -> bytes:
        form = forms[ip_bytes] if 0 <= ip_bytes < 8 else None
        if form is None:
            reject_payload(ip_bytes, payload)
        header, size = form
        if size == 0:
            if payload is not None:
                reject_payload(ip_bytes, payload)
            return header
        if payload is None or payload >> size * 8:
            reject_payload(ip_bytes, payload)
        return header + payload.to_bytes(size, "little")

    return encode_ip


def _payload_encoder(row: PacketDeclaration) -> Callable[..., bytes]:
    selector, sizes = (row.payload.selector, row.payload.sizes) if row.payload else ("", {})
    names = [field.name for field in row.fields]
    which, header = names.index(selector), int.from_bytes(row.header, "little")
    *fixed, last = row.fields

    def encode_all(*values: int) -> bytes:
        *rest, payload = values
        word = header
        for field, value in zip(fixed, rest, strict=True):
            word |= _position_bits(row, field, value)
        size = sizes.get(rest[which])
        if size is None:
            raise _out_of_range_error(row.name, selector, rest[which])
        if payload >> size * 8:
            raise _out_of_range_error(row.name, last.name, payload)
        return word.to_bytes(row.size, "little") + payload.to_bytes(size, "little")

    return encode_all
