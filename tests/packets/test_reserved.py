"""Undefined opcodes and encodings, reserved bits, and truncated data."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from packets import native
from packets.vectors import NO_PACKET, READ, WRITTEN, Vector, vectors
from rtit.errors import PacketError
from rtit.packets import Truncated, decode, reencode

LONG = bytes(16)

# By hand from the tables' headers. All other even bytes are TNTs, all bytes xxxxxx11 CYCs.
FIRST = {
    0x00: "PAD",
    **dict.fromkeys((0x0D, 0x2D, 0x4D, 0x6D, 0x8D, 0xCD), "TIP"),
    **dict.fromkeys((0x11, 0x31, 0x51, 0x71, 0x91, 0xD1), "TIP.PGE"),
    **dict.fromkeys((0x01, 0x21, 0x41, 0x61, 0x81, 0xC1), "TIP.PGD"),
    **dict.fromkeys((0x1D, 0x3D, 0x5D, 0x7D, 0x9D, 0xDD), "FUP"),
    0x19: "TSC",
    0x59: "MTC",
    0x99: "MODE.Exec",
    0xD9: "TRIG",
    **dict.fromkeys(range(4, 256, 2), "TNT"),
    **dict.fromkeys(range(3, 256, 4), "CYC"),
}
SECOND = {
    0x03: "CBR",
    0x12: "PTW",
    0x13: "CFE",
    0x22: "PWRE",
    0x23: "PSBEND",
    0x32: "PTW",
    0x33: "BEP",
    0x43: "PIP",
    0x53: "EVD",
    0x62: "EXSTOP",
    0x63: "BBP",
    0x73: "TMA",
    0x83: "TraceStop",
    0x92: "PTW",
    0xA2: "PWRX",
    0xB2: "PTW",
    0xB3: "BEP",
    0xC2: "MWAIT",
    0xC8: "VMCS",
    0xE2: "EXSTOP",
    0xF3: "OVF",
}


def name_of(data: Any) -> Any:
    """Return the packet name, which must be the same in both scanners."""
    natively = native.first(data)
    try:
        packet = decode(data)
    except Truncated:
        assert natively == "truncated"
        return "truncated"
    except PacketError:
        assert natively is None
        return None
    assert natively == native.said(packet)
    return packet.name


@pytest.mark.spec("PKT-002", "TNT-002", "IPC-007")
@pytest.mark.parametrize("first", [byte for byte in range(256) if byte != 2])
def test_first_byte_selects_the_packet(first: Any) -> None:
    assert name_of(bytes((first,)) + LONG) == FIRST.get(first)


@pytest.mark.spec("PKT-002", "PTW-001")
@pytest.mark.parametrize("second", range(256))
def test_second_byte_selects_the_packet(second: Any) -> None:
    rest = {0x82: b"\x02\x82" * 7, 0xC3: b"\x88", 0xA3: b"\x02"}.get(second, b"")
    expected = {**SECOND, 0x82: "PSB", 0xC3: "MNT", 0xA3: "TNT.64"}.get(second)
    assert name_of(bytes((2, second)) + rest + LONG) == expected


NOT_DEFINED = {
    "33-16": pytest.mark.spec("TNT-005"),
    "33-18": pytest.mark.spec("IPC-007"),
    "33-25": pytest.mark.spec("MODE-001"),
    "33-26": pytest.mark.spec("MODE-001", "MODE-002"),
    "33-27": pytest.mark.spec("MODE-001", "MTSX-001"),
    "33-33": pytest.mark.spec("CYCF-003"),
    "33-36": pytest.mark.spec("PSBP-001"),
    "33-38": pytest.mark.spec("MNT-001"),
    "33-40": pytest.mark.spec("PTW-001"),
    "33.4.2": pytest.mark.spec("PKT-002"),
}
REJECTED = [
    pytest.param(vector, marks=NOT_DEFINED[vector.source], id=vector.raw.hex())
    for vector in vectors(NO_PACKET)
]


@pytest.mark.parametrize("vector", REJECTED)
def test_illegal_encoding_is_rejected_with_offset_and_bytes(vector: Vector) -> None:
    with pytest.raises(PacketError) as caught:
        decode(b"\x00\x00" + vector.raw, 2)
    assert not isinstance(caught.value, Truncated)
    assert caught.value.offset == 2
    assert str(caught.value.value).startswith(vector.raw[:1].hex())
    assert native.first(vector.raw + LONG) is None


IGNORED = {
    "33-29": pytest.mark.spec("PKT-001", "CBR-001"),
    "33-33": pytest.mark.spec("CYCF-003"),
    "33.4.2": pytest.mark.spec("PKT-002"),
}
READ_SO = [
    pytest.param(
        vector,
        marks=IGNORED.get(vector.source, pytest.mark.spec("PKT-001")),
        id=vector.raw.hex(),
    )
    for vector in vectors(READ)
]


@pytest.mark.parametrize("vector", READ_SO)
def test_ignored_reserved_bits_are_kept(vector: Vector) -> None:
    """Reserved bits, a CYC longer than needed, and a packet newer than the chapter."""
    packet = decode(vector.raw + b"\x00")
    assert (packet.name, dict(packet.fields)) == (vector.name, vector.fields)
    assert packet.raw == reencode(packet) == vector.raw
    assert native.first(vector.raw + b"\x00") == native.said(packet)


CHANGED = [
    ("02a21ff1ffffff", None, {"last": 2, "deepest": 4, "wake": 8}, "02a224f8ffffff"),
    ("0222ff11", None, {"hw": 0, "state": 2, "sub_state": 2}, "02227f22"),
    ("0203ffff", None, {"ratio": 10}, "02030aff"),
    ("0273ffffffffff", None, {"ctc": 2, "fast_counter": 4}, "02730200ff04fe"),
    ("2dffff", None, {"payload": 0x1000}, "2d0010"),
    ("0232ffffffffffffffff", None, {"payload": 2}, "02320200000000000000"),
    ("fcffffffff", 4, {"id": 2, "payload": 2}, "1402000000"),
]
"""Bytes with all reserved bits set, and the other fields (Tables 33-16 to 33-43)."""


@pytest.mark.parametrize(("raw", "in_block", "fields", "expected"), CHANGED)
def test_reserved_bits_do_not_change_other_fields(
    raw: str, in_block: Any, fields: Any, expected: str
) -> None:
    packet = decode(bytes.fromhex(raw), in_block=in_block)
    changed = replace(packet, fields={**packet.fields, **fields})
    assert reencode(changed).hex() == expected


LONGER = [vector for vector in vectors(WRITTEN, READ) if len(vector.raw) > 1]


@pytest.mark.spec("DEC-011")
@pytest.mark.parametrize("vector", LONGER, ids=[vector.raw.hex() for vector in LONGER])
def test_packet_truncated_at_any_byte_raises(vector: Vector) -> None:
    assert vector.decode(vector.raw, 0).size == len(vector.raw)
    for end in range(1, len(vector.raw)):
        with pytest.raises(Truncated) as caught:
            vector.decode(vector.raw[:end], 0)
        assert caught.value.offset == 0


@pytest.mark.spec("DEC-011")
@pytest.mark.parametrize("size", [4, 8])
def test_truncated_block_item_raises(size: Any) -> None:
    data = b"\x0c" + bytes(size)
    assert decode(data, in_block=size).size == size + 1
    for end in range(1, size + 1):
        with pytest.raises(Truncated):
            decode(data[:end], in_block=size)


@pytest.mark.parametrize("offset", [-1, 1, 2])
def test_empty_data_raises_truncated(offset: Any) -> None:
    with pytest.raises(Truncated):
        decode(b"\x00", offset)
