"""Streams: bad bytes, the end of the data, and the search for a PSB."""

from __future__ import annotations

import mmap
from typing import Any

import pytest

from rtit.errors import PacketError
from rtit.packets import PSB, BadBytes, Packet, encode, find_psb, iterate_packets, scan, scan_chunks


def scan_to_pairs(data: Any, start: int = 0) -> Any:
    return [
        (item.offset, item.name if isinstance(item, Packet) else f"bad {item.length}")
        for item in scan(data, start)
    ]


def test_scan_continues_at_the_next_psb() -> None:
    data = b"\x06\x09\x04\x04" + PSB + b"\x06"
    assert scan_to_pairs(data) == [(0, "TNT"), (1, "bad 3"), (4, "PSB"), (20, "TNT")]


@pytest.mark.spec("DEC-013")
def test_scan_without_another_psb_ends_in_bad_bytes() -> None:
    assert scan_to_pairs(b"\x06\x09\x04\x04") == [(0, "TNT"), (1, "bad 3")]


@pytest.mark.spec("DEC-013")
def test_bad_bytes_end_a_block() -> None:
    data = encode("BBP", sz=0, type=4) + b"\x09" + PSB + b"\x0c"
    assert scan_to_pairs(data)[-1] == (20, "TNT")


@pytest.mark.spec("DEC-011")
def test_truncated_packet_is_reported() -> None:
    *_, last = scan(b"\x06\x2d\x01")
    assert isinstance(last, BadBytes)
    assert (last.offset, last.length, last.truncated) == (1, 2, True)


def test_packets_raises_once_at_bad_bytes() -> None:
    stream = iterate_packets(b"\x06\x09" + PSB)
    assert next(stream).name == "TNT"
    with pytest.raises(PacketError) as caught:
        next(stream)
    assert caught.value.offset == 1
    assert list(stream) == []


@pytest.mark.spec("DEC-011")
def test_packets_ends_quietly_inside_a_packet() -> None:
    assert [packet.name for packet in iterate_packets(b"\x06\x2d\x01")] == ["TNT"]


@pytest.mark.spec("PSB-020")
def test_payload_like_the_start_of_a_psb_is_a_payload() -> None:
    data = encode("PTW", ip=0, payload_bytes=1, payload=0x8202820282028202) + PSB + b"\x06"
    assert find_psb(data) == 10
    assert scan_to_pairs(data) == [(0, "PTW"), (10, "PSB"), (26, "TNT")]
    assert scan_to_pairs(b"\x09" + data)[1:] == [(11, "PSB"), (27, "TNT")]


@pytest.mark.spec("PSB-020")
@pytest.mark.parametrize("pairs", range(10))
def test_run_of_psb_bytes_ends_with_its_psb(pairs: int) -> None:
    """`extra` pairs more than one PSB: the last eight are the PSB, unless there are two whole
    ones.
    """
    run = PSB + PSB[:2] * pairs + b"\x06"
    begin = 2 * pairs
    before = {0: [], 8: [(0, "PSB")], 9: [(0, "PSB"), (16, "bad 2")]}
    expected = before.get(pairs, [(0, f"bad {begin}")])
    assert scan_to_pairs(run) == [*expected, (begin, "PSB"), (begin + 16, "TNT")]


WHOLE = (
    encode("TIP", ip_bytes=6, payload=0x1122334455667788),
    encode("TSC", tsc=0x11223344556677),
    encode("MTC", ctc=5),
    encode("PTW", ip=0, payload_bytes=1, payload=0x1122334455667788),
    encode("VMCS", pointer=0x123000),
)


@pytest.mark.parametrize("packet", WHOLE, ids=lambda packet: packet[:2].hex())
def test_psb_that_truncates_a_packet_is_found(packet: bytes) -> None:
    """The start of the PSB looks like the rest of the packet."""
    for kept in range(2 if packet[0] == 2 else 1, len(packet)):
        data = b"\x06" + packet[:kept] + PSB + b"\x06"
        found = scan_to_pairs(data)
        assert found == [(0, "TNT"), (1, f"bad {kept}"), (1 + kept, "PSB"), (17 + kept, "TNT")]
        assert found == [
            (item.offset, item.name if isinstance(item, Packet) else f"bad {item.length}")
            for item in scan_chunks(data[at : at + 3] for at in range(0, len(data), 3))
        ]


@pytest.mark.parametrize("payload", [0x02825566778899, 0x02820282028202])
def test_payload_and_tnt_before_a_psb_are_not_part_of_it(payload: int) -> None:
    """02H at the end of the payload, a TNT of 82H, and the PSB form a run that ends with the
    PSB.
    """
    data = encode("TSC", tsc=payload) + b"\x82" + PSB + b"\x06"
    assert scan_to_pairs(data) == [(0, "TSC"), (8, "TNT"), (9, "PSB"), (25, "TNT")]


@pytest.mark.spec("PSB-020")
@pytest.mark.parametrize("rest", [PSB[:2], PSB[:3], PSB[:1], PSB[:14], PSB[:15]])
def test_psb_run_at_the_end_of_data_is_undecided(rest: bytes) -> None:
    assert scan_to_pairs(PSB + rest)[0] == (0, "PSB")


@pytest.mark.spec("PSB-020")
def test_find_psb_from_inside_one() -> None:
    assert find_psb(PSB, 1) is None
    assert find_psb(PSB + PSB[:14]) == 14
    assert find_psb(b"") is None
    assert find_psb(PSB, 100) is None


def test_scan_reads_mapped_files(tmp_path: Any) -> None:
    path = tmp_path / "pt.bin"
    path.write_bytes(PSB + b"\x06")
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        assert scan_to_pairs(data) == [(0, "PSB"), (16, "TNT")]
        assert find_psb(data) == 0
