"""The Rust scanner and the Python one read the same packets."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from rtit.packets import NAMES, PSB, BadBytes, Packet, encode, find_psb, scan

core = pytest.importorskip("rtit._core")
if not hasattr(core, "scan_packets"):
    pytest.skip("the native module has no packet scanner", allow_module_level=True)


def native(data: Any, start: int = 0, limit: int = 3) -> Any:
    """Return all packets and bad bytes, read in small pieces to exercise continuation."""
    items, offset, block = [], start, 0
    while True:
        found, offset, block, error = core.scan_packets(data, offset, limit, block)
        items += found
        if error is None:
            if not found:
                return items
            continue
        at, _, truncated = error
        following = None if truncated else core.find_psb(data, at + 1)
        end = len(data) if following is None else following
        items.append((at, end - at, "bad", truncated))
        offset, block = end, 0


def python(data: Any, start: int = 0) -> Any:
    return [
        (item.offset, item.length, "bad", item.truncated)
        if isinstance(item, BadBytes)
        else (item.offset, item.size, item.name, dict(item.fields))
        for item in scan(data, start)
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


@given(data=st.lists(piece, max_size=20).map(b"".join), start=st.integers(0, 8))
@example(data=encode("BBP", sz=1, type=4) + b"\x0c" * 9 + b"\x06\x0c", start=0)
@example(data=b"\x07" + b"\xff" * 7 + b"\xfe", start=0)
@example(data=b"\x07" + b"\xff" * 8, start=0)
def test_native_scan_equals_python_scan(data: Any, start: Any) -> None:
    assert native(data, start) == python(data, start)


@pytest.mark.parametrize("first", range(256))
def test_native_scan_equals_python_scan_for_every_opcode(first: Any) -> None:
    seconds = range(256) if first in (0x02, 0x99, 0xD9) else (0x00, 0x41, 0x80, 0xFF)
    for second in seconds:
        for rest in (b"", b"\x88" + bytes(9), b"\xff" * 14):
            data = bytes((first, second)) + rest
            assert native(data) == python(data)


@given(data=st.lists(piece, max_size=12).map(b"".join), start=st.integers(0, 200))
def test_native_find_psb_equals_python(data: Any, start: Any) -> None:
    assert core.find_psb(data, start) == find_psb(data, start)


def test_native_scan_equals_python_scan_in_real_traces(traces: Any) -> None:
    names = set()
    for path in [traces / "dynamorio" / "pt.bin", *sorted((traces / "libipt-cases").glob("*.pt"))]:
        data = path.read_bytes()
        items = native(data, limit=1000)
        assert items == python(data), path.name
        names |= {item.name for item in scan(data) if isinstance(item, Packet)}
    assert set(NAMES) - names == {"BBP", "BIP", "BEP"}
