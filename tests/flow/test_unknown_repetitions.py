"""Loops without packets that an event ends: one iteration is reported, and the ledger says so."""

from __future__ import annotations

from array import array
from typing import Any

import pytest

from rtit.packets import encode

core = pytest.importorskip("rtit._core", reason="the native module is not built")

# 1000 nop; 1001 nop; 1002 nop; 1003 jmp 1001; 1005 jz 1001; 1007 jmp 1005
CODE = bytes.fromhex("909090ebfc74faebfc")
LOOP = [0x1001, 0x1002, 0x1003]


def ip_packet(name: str, ip: int) -> bytes:
    return encode(name, ip_bytes=6, payload=ip)


def stream(begin: int, *packets: bytes) -> bytes:
    start = encode("PSB") + b"\x99\x01" + ip_packet("FUP", begin) + encode("PSBEND")
    return start + b"".join(packets) + encode("TIP.PGD", ip_bytes=0)


def flow(data: bytes, **settings: Any) -> Any:
    space = core.Space()
    space.map(0, 0x1000, CODE)
    return core.StreamDecoder(data, space, **settings)


def ips(data: bytes) -> list[int]:
    found = array("Q")
    made = flow(data)
    while (part := made.instructions(100)) is not None:
        found.extend(part["ip"])
    return list(found)


def unknown_repetitions(data: bytes, **settings: Any) -> list[tuple[int, int, int]]:
    """Return offset, length and loop address of each ledger entry of unknown repetitions."""
    made = flow(data, **settings)
    made.count()
    ledger = made.ledger()
    assert {row[2] for row in ledger} == {"exact"}
    assert ledger[-1][1] == len(data)
    return [(row[0], row[1] - row[0], row[6]) for row in ledger if row[3] == "unknown repetitions"]


@pytest.mark.parametrize(
    ("begin", "left", "expected"),
    [
        (0x1000, 0x1002, [0x1000, 0x1001]),
        (0x1000, 0x1001, [0x1000]),
        (0x1001, 0x1001, []),
        (0x1002, 0x1001, [0x1002, 0x1003]),
    ],
)
def test_loop_without_packets_is_reported_once(begin: int, left: int, expected: list[int]) -> None:
    data = stream(begin, ip_packet("FUP", left))
    assert ips(data) == expected
    assert unknown_repetitions(data) == [(len(data) - 10, 0, left)]


def test_runs_of_a_repeated_loop_name_the_loop_iteration() -> None:
    made = flow(stream(0x1000, ip_packet("FUP", 0x1002)))
    starts, counts, hashes = (array(code) for code in "QIQ")
    while (columns := made.runs(100)) is not None:
        for into, part in zip((starts, counts, hashes), columns, strict=True):
            into.extend(part)
    assert list(counts) == [2, 0, 0, 0, 0]
    assert (hashes[1], list(starts[2:])) == (3, [0x1002, 0x1003, 0x1001])


@pytest.mark.parametrize(
    ("begin", "left"),
    [
        (0x1000, 0x1000),  # not in the loop: the way into it is gone once
        (0x1005, 0x1005),  # in a loop, of which each round has a result
    ],
)
def test_loop_with_packets_is_not_reported(begin: int, left: int) -> None:
    assert unknown_repetitions(stream(begin, ip_packet("FUP", left))) == []


@pytest.mark.parametrize(("first", "left"), [(0x1001, [0x1002]), (0x1002, [])])
def test_loop_that_leaves_the_filter_is_not_reported(first: int, left: list[int]) -> None:
    found = unknown_repetitions(stream(0x1002, ip_packet("FUP", 0x1002)), ranges=[(first, 0x1003)])
    assert [ip for _, _, ip in found] == left


def test_psb_within_the_loop_is_reported() -> None:
    again = encode("PSB") + b"\x99\x01" + ip_packet("FUP", 0x1003) + encode("PSBEND")
    data = stream(0x1000, again, ip_packet("FUP", 0x1002))
    assert ips(data) == [0x1000, 0x1001, 0x1002, 0x1003, 0x1001]
    assert [left for _, _, left in unknown_repetitions(data)] == [0x1003, 0x1002]
