"""A stream in pieces decodes as the whole stream does."""

from __future__ import annotations

import random
from array import array
from collections.abc import Iterator
from typing import Any

import pytest

from rtit.packets import encode

core = pytest.importorskip("rtit._core", reason="the native module is not built")

# 1000 jnz 1000; 1002 jmp rax
CODE = bytes.fromhex("75fe ffe0")
PSB = encode("PSB") + b"\x99\x01" + encode("FUP", ip_bytes=6, payload=0x1000) + encode("PSBEND")
# Four iterations, out, and back to 1000.
ITERATIONS = bytes([0b1111100]) + encode("TIP", ip_bytes=1, payload=0x1000)


def long_stream() -> bytes:
    """Return half a megabyte: intact, then with bytes that are no packets, then cut within a
    packet.
    """
    good = PSB + ITERATIONS * 20_000
    return good + b"\x02\xff" * 30_000 + PSB[:5] + b"\x02\xff" + good * 3 + ITERATIONS[:2]


def space() -> Any:
    made = core.Space()
    made.map(0, 0x1000, CODE)
    return made


def result(stream: Any) -> tuple[list[int], Any, Any]:
    flow = core.StreamDecoder(stream, space())
    ips = array("Q")
    while (part := flow.instructions(10_000)) is not None:
        ips.extend(part["ip"])
    return list(ips), flow.counts(), flow.ledger()


@pytest.mark.parametrize("largest", [40_000, 100_000, 1 << 30])
def test_stream_in_chunks_decodes_as_the_whole_stream(largest: int) -> None:
    stream = long_stream()
    whole = result(stream)
    assert len(whole[0]) == 80_000 * 6 + 5
    assert [row[2] for row in whole[2]] == ["exact", "lost", "exact", "lost"]
    random.seed(largest)
    pieces = []
    at = 0
    while at < len(stream):
        size = random.randrange(min(largest, len(stream)))
        pieces.append(memoryview(stream)[at : at + size])
        at += size
    assert result(pieces) == whole
    assert result(iter(pieces)) == whole


def test_chunks_are_read_when_decoding_reaches_them() -> None:
    taken = 0

    def endless() -> Iterator[bytes]:
        nonlocal taken
        yield PSB
        while True:
            taken += 1
            yield ITERATIONS * 1000

    flow = core.StreamDecoder(endless(), space())
    assert flow.instructions(100_000) is not None
    assert taken < 100


def test_stream_without_chunks_is_empty() -> None:
    assert result([]) == result(b"") == ([], result(b"")[1], [])


def test_non_stream_is_rejected() -> None:
    with pytest.raises(TypeError, match="neither bytes-like nor an iterable"):
        core.StreamDecoder(1, space())
    with pytest.raises(TypeError, match="a chunk of the stream is not bytes-like"):
        core.StreamDecoder(["text"], space())

    def broken() -> Iterator[bytes]:
        yield PSB + ITERATIONS * 50_000
        raise OSError("gone")

    flow = core.StreamDecoder(broken(), space())
    with pytest.raises(OSError, match="gone"):
        flow.count()
