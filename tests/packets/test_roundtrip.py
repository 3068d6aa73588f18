"""Encoder and decoder are inverses; a scan accounts for every byte."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rtit.errors import PacketError
from rtit.packets import (
    NAMES,
    PSB,
    BadBytes,
    Packet,
    Truncated,
    decode,
    encode,
    encoder,
    iterate_packets,
    reencode,
    scan,
)
from rtit.packets.table import DECLARATION_BY_NAME, PayloadCoding


@st.composite
def fields_of(draw: Any, name: Any) -> Any:
    row = DECLARATION_BY_NAME[name]
    if row.coding is PayloadCoding.TNT:
        return {"bits": draw(st.text("TN", min_size=1, max_size=6 if row.size == 1 else 47))}
    if row.coding is PayloadCoding.CYC:
        return {"cycles": draw(st.integers(0, 61).flatmap(lambda n: st.integers(0, (1 << n) - 1)))}
    fields: dict[str, Any] = {}
    sizes, selector = (row.payload.sizes, row.payload.selector) if row.payload else ({}, "")
    for field in row.fields:
        if field.width == 0:
            size = sizes[fields[selector]]
            fields[field.name] = draw(st.integers(0, (1 << 8 * size) - 1)) if size else None
        elif field.name == selector:
            fields[field.name] = draw(st.sampled_from(sorted(sizes)))
        else:
            fields[field.name] = draw(st.integers(0, (1 << field.width) - 1)) << field.shift
    if row.invalid and all(fields[name] for name in row.invalid[0].fields):
        fields[draw(st.sampled_from(row.invalid[0].fields))] = 0
    return fields


def block_of(fields: Any) -> Any:
    return {0: 8, 1: 4}.get(fields.get("sz"))


packet = st.sampled_from(NAMES).flatmap(lambda name: st.tuples(st.just(name), fields_of(name)))


@pytest.mark.parametrize("name", NAMES)
@given(data=st.data(), before=st.binary(max_size=3), after=st.binary(max_size=3))
def test_decode_inverts_encode(name: Any, data: Any, before: Any, after: Any) -> None:
    fields = data.draw(fields_of(name))
    raw = encode(name, **fields)
    found = decode(
        before + raw + after, len(before), in_block=block_of(fields) if name == "BIP" else None
    )
    assert (found.name, dict(found.fields), found.raw) == (name, fields, raw)
    assert encoder(name)(*fields.values()) == raw
    assert reencode(found) == raw


@pytest.mark.spec("PKT-001")
@given(
    opcode=st.binary(min_size=1, max_size=2),
    escape=st.booleans(),
    rest=st.binary(min_size=16, max_size=16),
)
def test_reencode_returns_the_bytes_of_any_packet(opcode: Any, escape: Any, rest: Any) -> None:
    data = (b"\x02" if escape else b"") + opcode + rest
    for block in (None, 4, 8):
        try:
            found = decode(data, in_block=block)
        except PacketError:
            continue
        assert found.raw == data[: found.size]
        assert reencode(found) == found.raw


@given(item=packet, cut=st.integers(1, 15))
def test_truncated_packet_raises_truncated(item: Any, cut: Any) -> None:
    name, fields = item
    raw = encode(name, **fields)
    part = raw[: -(cut % len(raw)) or None]
    if part != raw:
        with pytest.raises(Truncated):
            decode(part, in_block=block_of(fields) if name == "BIP" else None)


piece = st.one_of(
    st.binary(max_size=6),
    packet.map(lambda item: encode(item[0], **item[1])),
    st.just(PSB),
    st.just(b"\x02\x82"),
    st.binary(min_size=1, max_size=1).map(lambda byte: b"\x02\x63" + byte),
)
stream = st.lists(piece, max_size=12).map(b"".join)


@given(data=stream, start=st.integers(0, 20))
def test_scan_covers_every_byte(data: Any, start: Any) -> None:
    offset = start
    for item in scan(data, start):
        assert item.offset == offset
        offset += item.size if isinstance(item, Packet) else item.length
        if isinstance(item, BadBytes):
            assert item.length > 0
            assert data.startswith(PSB, offset) or offset == len(data)
    assert offset == max(start, len(data))


outside = packet.filter(lambda item: item[0] not in ("BIP", "BBP")).map(lambda item: [item])
allowed = packet.filter(
    lambda item: (
        DECLARATION_BY_NAME[item[0]].in_block and item[0] not in ("BIP", "BBP", "BEP", "OVF")
    )
)


@st.composite
def block(draw: Any) -> Any:
    sz = draw(st.integers(0, 1))
    item = fields_of("BIP").map(
        lambda fields: (
            "BIP",
            {**fields, "sz": sz, "payload": fields["payload"] % (1 << (64 >> sz))},
        )
    )
    inside = draw(st.lists(st.one_of(item, allowed), max_size=4))
    begin = ("BBP", {"sz": sz, "type": draw(st.integers(0, 31))})
    return [begin, *inside, ("BEP", {"ip": draw(st.integers(0, 1))})]


@pytest.mark.spec("BIP-002", "TAB15-009")
@given(groups=st.lists(st.one_of(outside, block()), max_size=8))
def test_packets_of_a_stream_join_to_its_bytes(groups: Any) -> None:
    items = [item for group in groups for item in group]
    data = b"".join(encode(name, **fields) for name, fields in items)
    found = [(item.name, dict(item.fields)) for item in iterate_packets(data)]
    assert found == items
