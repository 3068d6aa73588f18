"""Packets as columns equal those of the Python scanner."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from rtit.packets import PSB, BadBytes, Packet, encode, scan, scan_chunks
from rtit.trace.tables.packets import PACKET_KINDS, packet_batches


def packets_from_columns(stream: Any) -> list[object]:
    """Yield the packets of the columns, one by one."""
    items: list[object] = []
    for batch in packet_batches(stream):
        sizes = batch.size()
        for index in range(len(batch)):
            fields = batch.packet_fields(index)
            items.append((int(batch.offset[index]), int(sizes[index]), batch.name(index), fields))
        if batch.bad is not None:
            items.append((batch.bad.offset, batch.bad.length, "bad", batch.bad.truncated))
    return items


def expected(data: bytes) -> list[object]:
    return [
        (item.offset, item.length, "bad", item.truncated)
        if isinstance(item, BadBytes)
        else (item.offset, item.size, item.name, dict(item.fields))
        for item in scan(data)
    ]


opcode = st.one_of(
    st.binary(min_size=1, max_size=1), st.binary(min_size=1, max_size=1).map(lambda b: b"\x02" + b)
)
piece = st.one_of(
    st.tuples(opcode, st.binary(max_size=10)).map(b"".join),
    st.just(PSB),
    st.just(b"\x02\x82"),
    st.integers(1, 12).map(lambda size: (b"\xcd" + bytes(range(1, 9)) + PSB)[:size] + PSB),
    st.binary(min_size=1, max_size=1).map(lambda byte: b"\x02\x63" + byte),
)
runs = st.lists(
    st.one_of(
        piece,
        st.binary(min_size=1, max_size=30).map(lambda run: bytes(byte & 0xFE for byte in run)),
        st.tuples(
            st.sampled_from(b"\x2d\x4d\x6d\x8d\xcd\x31\x59\x19\x0d"), st.binary(max_size=9)
        ).map(lambda pair: bytes([pair[0]]) + pair[1]),
    ),
    max_size=30,
).map(b"".join)


@given(data=runs)
@example(data=encode("BBP", sz=1, type=4) + b"\x0c" * 9 + b"\x06\x0c")
@example(data=b"\x07" + b"\xff" * 7 + b"\xfe")
@example(data=encode("TIP", ip_bytes=6, payload=(1 << 64) - 1) + encode("PAD"))
@example(data=encode("TNT.64", bits="T" * 47) + encode("TNT", bits="N"))
def test_columns_equal_scanned_packets(data: bytes) -> None:
    assert packets_from_columns(data) == expected(data)


@given(data=runs, cuts=st.lists(st.integers(0, 200), max_size=6))
@example(data=b"\xff\xff" + b"\x02\x82" * 20, cuts=[3, 5, 17, 18, 20])
def test_chunked_stream_gives_equal_columns(data: bytes, cuts: list[int]) -> None:
    boundaries = [0, *sorted(cuts), len(data)]
    pieces = [data[start:end] for start, end in pairwise(boundaries)]
    assert packets_from_columns(pieces) == expected(data)
    assert list(scan_chunks(pieces)) == list(scan(data))


@pytest.mark.parametrize("first", range(256))
def test_columns_equal_scan_for_every_opcode(first: int) -> None:
    for second in range(256) if first in (0x02, 0x99, 0xD9) else (0x00, 0x41, 0x80, 0xFF):
        for rest in (b"", b"\x88" + bytes(9), b"\xff" * 14):
            data = bytes((first, second)) + rest
            assert packets_from_columns(data) == expected(data)


def test_columns_equal_scan_in_real_traces(traces: Any) -> None:
    kinds = set()
    for path in [traces / "dynamorio" / "pt.bin", *sorted((traces / "libipt-cases").glob("*.pt"))]:
        data = path.read_bytes()
        assert packets_from_columns(data) == expected(data), path.name
        kinds |= {item.name for item in scan(data) if isinstance(item, Packet)}
    assert set(PACKET_KINDS) - kinds <= {"BBP", "BIP", "BEP"}


def test_columns_are_read_only_arrays() -> None:
    (batch,) = packet_batches(PSB + encode("CBR", ratio=10))
    columns: list[Any] = [batch.kind, batch.detail, batch.offset, batch.payload]
    assert [str(column.dtype) for column in columns] == ["uint8", "uint8", "uint64", "uint64"]
    assert [batch.name(index) for index in range(len(batch))] == ["PSB", "CBR"]
    assert batch.payload.tolist() == [0, 10]
    with pytest.raises(ValueError, match="read-only"):
        batch.kind[0] = 1


def test_each_batch_continues_after_the_last() -> None:
    data = encode("TNT", bits="TN") * 40000
    batches = list(packet_batches(data))
    assert len(batches) > 1
    assert np.array_equal(np.concatenate([batch.offset for batch in batches]), np.arange(40000))


def test_unreadable_stream_raises() -> None:
    with pytest.raises(TypeError, match="neither bytes-like nor an iterable"):
        list(packet_batches(5))  # type: ignore[arg-type]
