"""The ledger covers every byte, wherever a stream is cut or damaged."""

from __future__ import annotations

from array import array
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rtit.packets import encode, encode_tnt

core = pytest.importorskip("rtit._core", reason="the native module is not built")

# 1000 jnz 1004; 1002 nop; 1003 nop; 1004 jmp rax
CODE = bytes.fromhex("75029090ffe0")


def space() -> Any:
    made = core.Space()
    made.map(0, 0x1000, CODE)
    return made


def ip_packet(name: str, ip: int) -> bytes:
    return encode(name, ip_bytes=6, payload=ip)


def psb(ip: int | None) -> bytes:
    fup = b"" if ip is None else ip_packet("FUP", ip)
    return encode("PSB") + b"\x99\x01" + fup + encode("PSBEND")


STREAM = (
    psb(None)
    + b"\x99\x01"
    + ip_packet("TIP.PGE", 0x1000)
    + encode_tnt(1, 0, long=False)
    + ip_packet("TIP", 0x1002)
    + encode("TSC", tsc=0x1234)
    + encode("CYC", cycles=100)
    + ip_packet("TIP", 0x1000)
    + psb(0x1000)
    + encode_tnt(1, 1, long=True)
    + encode("MTC", ctc=5)
    + ip_packet("FUP", 0x1004)
    + encode("TIP.PGD", ip_bytes=0)
)
IPS = [0x1000, 0x1002, 0x1003, 0x1004, 0x1002, 0x1003, 0x1004, 0x1000]


def decode(stream: bytes) -> tuple[list[int], list[Any], dict[str, Any]]:
    flow = core.Flow(stream, space())
    ips = array("Q")
    while (part := flow.ips(2)) is not None:
        ips.extend(part[0])
    return list(ips), flow.ledger(), flow.counts()


def check_account(stream: bytes, ledger: list[Any], counts: dict[str, Any]) -> None:
    """Assert that spans have no gaps and no overlaps, and exactly the losses a reason."""
    at = 0
    for start, end, trust, kind, text, offset, _ in ledger:
        assert start == at
        assert end >= start
        assert (trust == "lost") == (kind is not None) == (text is not None)
        assert offset is None or 0 <= offset <= len(stream)
        at = end
    assert at == len(stream)
    for trust in ("exact", "resumed", "lost", "elsewhere"):
        size = counts[f"{trust}_bytes"]
        assert size == sum(row[1] - row[0] for row in ledger if row[2] == trust)


def test_ledger_covers_the_whole_stream() -> None:
    ips, ledger, counts = decode(STREAM)
    assert ips == IPS
    assert ledger == [(0, len(STREAM), "exact", None, None, None, None)]
    assert counts["packets"]["PSB"] == 2
    assert counts["packets"]["TIP"] == 2
    assert counts["instructions"] == len(IPS)
    assert (counts["conditional"], counts["indirect"], counts["asynchronous"]) == (2, 2, 1)
    assert counts["cycles"] == 100


@pytest.mark.spec("DEC-011", "DEC-013")
@pytest.mark.parametrize("size", range(len(STREAM)))
def test_stream_cut_at_every_byte_has_a_whole_ledger(size: int) -> None:
    stream = STREAM[:size]
    ips, ledger, counts = decode(stream)
    check_account(bytes(stream), ledger, counts)
    assert ips == IPS[: len(ips)]
    assert {row[3] for row in ledger} <= {None, "incomplete"}


@pytest.mark.spec("DEC-002")
@pytest.mark.parametrize("start", range(1, STREAM.index(encode("PSB"), 16)))
def test_bytes_before_the_first_psb_are_lost(start: int) -> None:
    ips, ledger, counts = decode(STREAM[start:])
    second = STREAM.index(encode("PSB"), 16) - start
    check_account(STREAM[start:], ledger, counts)
    assert ips == [0x1000]
    if any(STREAM[start : start + second]):
        assert ledger[0][:4] == (0, second, "lost", "incomplete")
    assert ledger[-1][2] == "exact"


@pytest.mark.parametrize("head", [b"\0", b"\0" * 4, b"\0" + encode("CYC", cycles=7)])
def test_pad_before_the_first_psb_is_not_lost(head: bytes) -> None:
    stream = head + STREAM
    ips, ledger, _ = decode(stream)
    assert ips == IPS
    assert ledger == [(0, len(stream), "exact", None, None, None, None)]


def test_psb_plus_without_fup_after_a_loss_is_exact() -> None:
    lost = encode_tnt(1, 1)
    off = encode("PSB") + b"\x99\x01" + encode("PSBEND")
    ips, ledger, _ = decode(lost + off + ip_packet("TIP.PGE", 0x1002))
    assert ips == []
    assert [row[:3] for row in ledger][:1] == [(0, 1, "lost")]
    assert {row[2] for row in ledger[1:]} == {"exact"}


def test_cyc_before_the_first_psb_is_not_lost() -> None:
    stream = encode("CYC", cycles=7) + STREAM
    ips, ledger, _ = decode(stream)
    assert ips == IPS
    assert ledger == [(0, len(stream), "exact", None, None, None, None)]


def test_stream_without_psb_is_lost() -> None:
    assert decode(b"")[1] == []
    assert decode(b"\x00" * 40)[1][0][:5] == (
        0,
        40,
        "lost",
        "incomplete",
        "before the first PSB at offset 0x0",
    )


@pytest.mark.spec("DEC-013", "PSB-020")
@pytest.mark.parametrize(("bad", "kind"), [(b"\x05", "bad bytes"), (b"\x02\x00", "bad bytes")])
def test_bad_bytes_are_lost_up_to_the_next_psb(bad: bytes, kind: str) -> None:
    first = psb(0x1002)
    # the IP after the bad bytes is not used: LastIP is unknown
    stream = first + bad + ip_packet("TIP.PGE", 0x1000) + psb(0x1000) + encode_tnt(1, 1)
    ips, ledger, counts = decode(stream)
    check_account(bytes(stream), ledger, counts)
    assert ips == [0x1000]
    assert [row[2] for row in ledger] == ["exact", "lost", "exact"]
    assert ledger[1][:4] == (len(first), len(first) + len(bad) + 9, "lost", kind)


def test_decoding_resumes_at_tip_pge_and_is_exact_again_at_psb() -> None:
    # a TIP without IP does not allow decoding to resume
    head = psb(0x1000) + encode("TIP", ip_bytes=0, payload=None)
    stream = (
        head
        + ip_packet("TIP.PGE", 0x1002)
        + ip_packet("TIP", 0x1000)
        + psb(0x1000)
        + encode_tnt(1, 1)
    )
    ips, ledger, counts = decode(stream)
    check_account(bytes(stream), ledger, counts)
    assert ips == [0x1002, 0x1003, 0x1004, 0x1000]
    assert [row[2] for row in ledger] == ["exact", "lost", "resumed", "exact"]
    assert ledger[1][3] == "trace and code disagree"
    assert counts["errors"] == {"trace and code disagree": 1}


@pytest.mark.spec("DEC-013")
@given(
    st.lists(
        st.tuples(st.integers(0, len(STREAM) - 1), st.integers(1, 255)), min_size=1, max_size=4
    )
)
def test_damaged_stream_has_a_whole_ledger(flips: list[tuple[int, int]]) -> None:
    stream = bytearray(STREAM)
    for at, value in flips:
        stream[at] ^= value
    _, ledger, counts = decode(bytes(stream))
    check_account(bytes(stream), ledger, counts)


def test_rows_of_a_span_by_number() -> None:
    flow = core.Flow((psb(0x1000) + b"\x05") * 5, space())
    flow.count()
    rows = flow.ledger()
    assert len(rows) == 10
    for first in range(12):
        assert flow.ledger(first) == rows[first:]
        for most in range(12):
            assert flow.ledger(first, most) == flow.ledger(first=first, most=most)
            assert flow.ledger(first, most) == rows[first : first + most]


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview, lambda data: array("B", data)])
def test_any_bytes_like_object_is_a_stream(kind: Any) -> None:
    flow = core.Flow(kind(STREAM), space())
    assert flow.count()["instructions"] == len(IPS)


def test_flow_cannot_mix_kinds_of_results() -> None:
    flow = core.Flow(STREAM, space())
    assert flow.counts() == {}
    flow.next(1)
    for other in (flow.ips, flow.runs, lambda _: flow.count()):
        with pytest.raises(ValueError, match="another way"):
            other(1)
    with pytest.raises(TypeError):
        core.Flow("text", space())
    with pytest.raises(ValueError, match="mtc_freq"):
        core.Flow(STREAM, space(), mtc_freq=16)
