"""What the chapter leaves undefined: opcodes, encodings, reserved bits; data that ends too soon."""

from __future__ import annotations

from typing import Any

import pytest

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
    0xD9: "unknown",
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
    try:
        return decode(data).name
    except Truncated:
        return "truncated"
    except PacketError:
        return None


@pytest.mark.spec("PKT-002", "TNT-002", "IPC-007")
@pytest.mark.parametrize("first", [byte for byte in range(256) if byte != 2])
def test_first_byte(first: Any) -> None:
    assert name_of(bytes((first,)) + LONG) == FIRST.get(first)


@pytest.mark.spec("PKT-002", "PTW-001")
@pytest.mark.parametrize("second", range(256))
def test_second_byte(second: Any) -> None:
    rest = {0x82: b"\x02\x82" * 7, 0xC3: b"\x88", 0xA3: b"\x02"}.get(second, b"")
    expected = {**SECOND, 0x82: "PSB", 0xC3: "MNT", 0xA3: "TNT.64"}.get(second)
    assert name_of(bytes((2, second)) + rest + LONG) == expected


REJECTED = [
    "02 a3 00 00 00 00 00 00",
    "02 a3 01 00 00 00 00 00",
    "ad 01 02 03 04 05 06 07 08",
    "ed 01 02 03 04 05 06 07 08",
    "b1",
    "e1",
    "bd",
    "99 40",
    "99 e0",
    "99 03",
    "99 07",
    "99 23",
    "02 82 02 83 02 82 02 82 02 82 02 82 02 82 02 82",
    "02 82 00",
    "02 c3 00 01 02 03 04 05 06 07 08",
    "02 52 01 02 03 04 05 06 07 08",
    "02 72 01 02 03 04 05 06 07 08",
    "02 d2",
    "02 f2",
    "07 01 01 01 01 01 01 01 01 00",
]


@pytest.mark.spec("TNT-005", "IPC-007", "MODE-001", "MODE-002", "MTSX-001")
@pytest.mark.spec("PSBP-001", "MNT-001", "PTW-001", "CYCF-003")
@pytest.mark.parametrize("raw", REJECTED)
def test_rejected_with_offset_and_bytes(raw: Any) -> None:
    data = bytes.fromhex(raw)
    with pytest.raises(PacketError) as caught:
        decode(b"\x00\x00" + data, 2)
    assert not isinstance(caught.value, Truncated)
    assert caught.value.offset == 2
    assert str(caught.value.value).startswith(data[:1].hex())


# A packet with all its reserved bits set, and what must be read from it all the same.
RESERVED_BITS = [
    ("02 03 27 ff", {"ratio": 0x27}),
    ("02 73 57 64 ff 1c fe", {"ctc": 0x6457, "fast_counter": 0x1C}),
    ("99 19", {"csl": 1, "csd": 0, "iflag": 0}),
    ("99 3d", {"in_tx": 1, "tx_abort": 0}),
    ("02 c2 20 ff ff ff fd ff ff ff", {"hints": 0x20, "ext": 1}),
    ("02 22 ff 21", {"hw": 1, "state": 2, "sub_state": 1}),
    ("02 22 7f 21", {"hw": 0, "state": 2, "sub_state": 1}),
    ("02 a2 23 f4 ff ff ff", {"last": 2, "deepest": 3, "wake": 4}),
    ("02 63 e4", {"sz": 1, "type": 4}),
    ("02 13 e1 20", {"ip": 1, "type": 1, "vector": 0x20}),
    ("02 53 c2 01 00 00 00 00 00 00 00", {"type": 2, "payload": 1}),
]


@pytest.mark.spec("PKT-001", "CBR-001")
@pytest.mark.parametrize(("raw", "fields"), RESERVED_BITS)
def test_reserved_bits_are_ignored_and_kept(raw: Any, fields: Any) -> None:
    data = bytes.fromhex(raw)
    packet = decode(data)
    assert dict(packet.fields) == fields
    assert packet.raw == reencode(packet) == data


TRUNCATED = [
    "02 a3 ff ff ff ff ff ff",
    "2d 01 02",
    "51 01 02 03 04",
    "61 01 02 03 04 05 06",
    "dd 01 02 03 04 05 06 07 08",
    "02 43 01 45 23 01 00 00",
    "99 01",
    "99 22",
    "02 83",
    "02 03 27 00",
    "19 01 02 03 04 05 06 07",
    "59 8b",
    "02 73 57 64 00 1c 00",
    "17 01 04",
    "02 c8 56 34 12 00 00",
    "02 f3",
    "02 82 " * 8,
    "02 23",
    "02 c3 88 01 02 03 04 05 06 07 08",
    "02 12 01 02 03 04",
    "02 b2 01 02 03 04 05 06 07 08",
    "02 e2",
    "02 c2 20 00 00 00 01 00 00 00",
    "02 22 80 20",
    "02 a2 22 01 00 00 00",
    "02 63 84",
    "02 33",
    "02 13 81 20",
    "02 53 00 01 02 03 04 05 06 07 08",
    "d9 20 a1",
    "d9 40 a1 17 00",
]


@pytest.mark.parametrize("raw", TRUNCATED)
def test_cut_short_at_every_byte(raw: Any) -> None:
    data = bytes.fromhex(raw)
    assert decode(data).size == len(data)
    for end in range(1, len(data)):
        with pytest.raises(Truncated) as caught:
            decode(data[:end])
        assert caught.value.offset == 0


@pytest.mark.parametrize("size", [4, 8])
def test_block_item_cut_short(size: Any) -> None:
    data = b"\x0c" + bytes(size)
    assert decode(data, in_block=size).size == size + 1
    for end in range(1, size + 1):
        with pytest.raises(Truncated):
            decode(data[:end], in_block=size)


@pytest.mark.parametrize("offset", [-1, 1, 2])
def test_nothing_there(offset: Any) -> None:
    with pytest.raises(Truncated):
        decode(b"\x00", offset)


@pytest.mark.spec("PKT-002")
@pytest.mark.parametrize("raw", ["d9 20 a1", "d9 40 a1 17 00", "d9 e0 a1 17 00"])
def test_unknown_packet_with_known_length(raw: Any) -> None:
    data = bytes.fromhex(raw)
    packet = decode(data + b"\x00")
    assert (packet.name, packet.raw, packet.fields["opcode"]) == ("unknown", data, 0xD9)
    assert reencode(packet) == data
