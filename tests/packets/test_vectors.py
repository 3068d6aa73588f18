"""Every packet of section 33.4.2 byte by byte, from `vectors.txt`."""

from __future__ import annotations

from typing import Any

import pytest

from packets import native
from packets.vectors import NO_PACKET, READ, WRITTEN, Vector, vectors
from rtit.packets import NAMES, decode, describe, encode, encoder, reencode, to_json

SPEC = {
    "33-16": pytest.mark.spec("TNT-001", "TNT-002", "TNT-003", "TNT-004", "TNT-006"),
    "33-17": pytest.mark.spec("TIP-001"),
    "33-20": pytest.mark.spec("PGE-001"),
    "33-21": pytest.mark.spec("PGD-001"),
    "33-22": pytest.mark.spec("FUP-001"),
    "33-24": pytest.mark.spec("PIP-001"),
    "33-26": pytest.mark.spec("MODE-001", "MODE-002"),
    "33-27": pytest.mark.spec("MODE-001", "MTSX-001"),
    "33-28": pytest.mark.spec("TSP-001"),
    "33-29": pytest.mark.spec("CBR-001"),
    "33-30": pytest.mark.spec("TSC-001"),
    "33-31": pytest.mark.spec("MTC-001"),
    "33-32": pytest.mark.spec("TMA-001"),
    "33-33": pytest.mark.spec("CYCF-001", "CYCF-002"),
    "33-34": pytest.mark.spec("VMCS-001"),
    "33-35": pytest.mark.spec("OVFP-001"),
    "33-36": pytest.mark.spec("PSBP-001"),
    "33-37": pytest.mark.spec("PSBP-002"),
    "33-38": pytest.mark.spec("MNT-001"),
    "33-39": pytest.mark.spec("PAD-001"),
    "33-40": pytest.mark.spec("PTW-001"),
    "33-41": pytest.mark.spec("EXS-001"),
    "33-42": pytest.mark.spec("MWT-001"),
    "33-43": pytest.mark.spec("PWRE-001"),
    "33-44": pytest.mark.spec("PWRX-001", "PWRX-002"),
    "33-45": pytest.mark.spec("BBP-001", "BBP-002"),
    "33-46": pytest.mark.spec("BIP-001"),
    "33-48": pytest.mark.spec("BEP-001"),
    "33-49": pytest.mark.spec("CFE-001"),
    "33-51": pytest.mark.spec("EVD-001", "EVD-002"),
}
CASES = [
    pytest.param(vector, marks=SPEC[vector.source], id=vector.raw.hex())
    for vector in vectors(WRITTEN)
]


@pytest.mark.parametrize("vector", CASES)
def test_golden_vector_decodes_and_encodes(vector: Vector) -> None:
    raw, name, fields = vector.raw, vector.name, vector.fields
    packet = vector.decode(b"\xaa" + raw + b"\xaa", 1)
    assert (packet.name, dict(packet.fields)) == (name, fields)
    assert (packet.offset, packet.size, packet.raw) == (1, len(raw), raw)
    block = packet.size - 1 if name == "BIP" else None
    assert native.first(raw + b"\xaa", block) == (name, fields)
    assert encode(name, **fields) == raw
    assert encoder(name)(*fields.values()) == raw
    assert reencode(packet) == raw
    assert describe(packet) == vector.line
    assert to_json(packet) == {
        "offset": 1,
        "size": len(raw),
        "name": name,
        "fields": fields,
        "raw": raw.hex(),
    }


def test_every_packet_has_an_unambiguous_golden_vector() -> None:
    assert {vector.name for vector in vectors(WRITTEN)} == set(NAMES)
    lines = vectors(WRITTEN, READ, NO_PACKET)
    assert len({vector.raw for vector in lines}) == len(lines)


@pytest.mark.spec("BIP-001", "BIP-002")
@pytest.mark.parametrize("item_id", range(32))
def test_golden_vector_of_a_block_item_decodes_and_encodes(item_id: Any) -> None:
    header = bytes((item_id << 3 | 4,))
    eight, four = header + bytes(range(1, 9)), header + bytes(range(1, 5))
    long, short = decode(eight, in_block=8), decode(eight, in_block=4)
    assert (long.name, long.raw) == ("BIP", eight)
    assert dict(long.fields) == {"id": item_id, "sz": 0, "payload": 0x0807060504030201}
    assert (short.name, short.raw) == ("BIP", four)
    assert dict(short.fields) == {"id": item_id, "sz": 1, "payload": 0x04030201}
    assert encode("BIP", **long.fields) == reencode(long) == eight
    assert encode("BIP", **short.fields) == reencode(short) == four
    assert decode(eight).name == "TNT"
    assert native.first(eight, 8) == native.said(long)
    assert native.first(eight, 4) == native.said(short)
    assert native.first(eight) == native.said(decode(eight))


def test_enable_sequence_of_a_real_processor_decodes() -> None:
    """PSB TSC TMA CBR PSBEND MODE.Exec TIP.PGE, the start of a hardware trace."""
    data = bytes.fromhex(
        "0282" * 8 + "19 01020304050607 0273 5764001c00 0203 2700 0223 9901 71 001040000000"
    )
    offset, names = 0, []
    while offset < len(data):
        packet = decode(data, offset)
        names.append(packet.name)
        offset += packet.size
    assert names == ["PSB", "TSC", "TMA", "CBR", "PSBEND", "MODE.Exec", "TIP.PGE"]
