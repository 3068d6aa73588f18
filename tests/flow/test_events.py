"""Packets that belong together: blocks, event data, transactions across PSBs."""

from __future__ import annotations

from array import array
from itertools import permutations
from typing import Any

import pytest

from rtit.packets import encode

core = pytest.importorskip("rtit._core", reason="the native module is not built")

BASE = 0x1000


def ip_packet(name: str, ip: int) -> bytes:
    return encode(name, ip_bytes=6, payload=ip)


def psb(ip: int | None = BASE, *, tsx: int | None = None) -> bytes:
    fup = b"" if ip is None else ip_packet("FUP", ip)
    mode = b"" if tsx is None else encode("MODE.TSX", in_tx=tsx, tx_abort=0)
    return encode("PSB") + b"\x99\x01" + mode + fup + encode("PSBEND")


def start_decoding(stream: bytes) -> Any:
    space = core.Space()
    space.map(0, BASE, b"\x90" * 64)
    return core.Flow(stream, space)


def decode(stream: bytes) -> tuple[list[int], list[str | None]]:
    flow = start_decoding(stream)
    ips = array("Q")
    while (part := flow.ips(1000)) is not None:
        ips.extend(part[0])
    return list(ips), [row[4] and row[4].partition(" at offset")[0] for row in flow.ledger()]


def events(stream: bytes, kind: str) -> list[tuple[int, int]]:
    flow = start_decoding(stream)
    rows = flow.next(1 << 20)
    columns: list[Any] = [array("Q", rows[key]) for key in ("event_ip", "event_value")]
    found = zip(rows["event_kind"], *columns, strict=True)
    return [(ip, value) for number, ip, value in found if flow.EVENTS[number] == kind]


def evd(kind: int) -> bytes:
    return encode("EVD", type=kind, payload=0x1234)


def cfe(kind: int, vector: int = 0) -> bytes:
    return encode("CFE", ip=1, type=kind, vector=vector) + ip_packet("FUP", BASE + 1)


STOP = ip_packet("FUP", BASE + 1) + encode("TIP.PGD", ip_bytes=0, payload=None)


@pytest.mark.parametrize(
    "packets",
    [cfe(1, 14), evd(0) + cfe(1, 14), cfe(2), evd(3) + cfe(8)]
    + [b"".join(map(evd, order)) + cfe(kind) for order in permutations((1, 2)) for kind in (8, 9)]
    + [evd(1) + encode("MTC", ctc=3) + evd(2) + cfe(9, 3), evd(0) + cfe(0xE, 14)],
)
def test_evd_belongs_to_the_next_cfe(packets: bytes) -> None:
    """Table 33-51; the order of VMXQ and VMXR varies in the chapter's own tables."""
    assert decode(psb() + packets + STOP) == ([BASE], [None])


@pytest.mark.parametrize(
    ("packets", "wrong"),
    [
        (evd(1) + cfe(1, 14), "CFE of type 0x1 after EVDs of another event"),
        (evd(0) + cfe(1, 13), "CFE of type 0x1 after EVDs of another event"),
        (evd(0) + cfe(8), "CFE of type 0x8 after EVDs of another event"),
        (evd(2) + cfe(2), "CFE of type 0x2 after EVDs of another event"),
        (evd(2) + evd(2) + cfe(8), "EVD is not allowed here"),
        (evd(2) + ip_packet("TIP", BASE), "TIP is not allowed here"),
        (evd(0) + ip_packet("FUP", BASE + 1), "FUP is not allowed here"),
    ],
)
def test_misplaced_evd_is_an_error(packets: bytes, wrong: str) -> None:
    _, errors = decode(psb() + packets)
    assert errors[:2] == [None, wrong]


def test_overflow_may_lose_the_cfe_after_evd() -> None:
    stream = psb() + evd(1) + encode("OVF") + ip_packet("FUP", BASE) + cfe(1, 14) + STOP
    assert decode(stream)[1] == [None, "the processor dropped packets (OVF)", None]


FORBIDDEN = {
    "TIP": ip_packet("TIP", BASE + 8),
    "TIP.PGE": ip_packet("TIP.PGE", BASE + 8),
    "TIP.PGD": ip_packet("TIP.PGD", BASE + 8),
    "MODE.Exec": b"\x99\x01",
    "MODE.TSX": encode("MODE.TSX", in_tx=0, tx_abort=0),
    "PIP": encode("PIP", nr=0, cr3=0x5000),
    "VMCS": encode("VMCS", pointer=0x5000),
    "TraceStop": encode("TraceStop"),
    "PSB": psb(),
    "PSBEND": encode("PSBEND"),
    "PTW": encode("PTW", ip=0, payload_bytes=0, payload=1),
    "MWAIT": encode("MWAIT", hints=0, ext=0),
}
BLOCK = encode("BBP", sz=0, type=4)


@pytest.mark.spec("TAB15-010")
@pytest.mark.parametrize("name", FORBIDDEN)
def test_illegal_packet_ends_the_block_with_an_error(name: str) -> None:
    """Table 33-15."""
    _, errors = decode(psb() + BLOCK + FORBIDDEN[name] + b"\x04")
    assert errors[1] == f"{name} is not allowed within a block"


@pytest.mark.parametrize(
    "between",
    [
        encode("MTC", ctc=1),
        encode("TSC", tsc=1),
        encode("CBR", ratio=9),
        encode("EXSTOP", ip=0),
        BLOCK,
    ],
)
def test_legal_packets_do_not_end_the_block(between: bytes) -> None:
    end = encode("BEP", ip=1) + ip_packet("FUP", BASE + 1)
    assert decode(psb() + BLOCK + between + end + STOP)[1] == [None]


@pytest.mark.parametrize(
    ("states", "expected"),
    [([0, 0], []), ([1, 1], [(BASE, 1)]), ([0, 1], [(BASE, 1)]), ([1, 0], [(BASE, 1), (BASE, 0)])],
)
def test_psb_reports_whether_a_transaction_continues(
    states: list[int], expected: list[tuple[int, int]]
) -> None:
    """Section 33.3.7: PSB+ has the state at the PSB; a begun transaction is not reported again."""
    stream = b"".join(psb(tsx=state) for state in states)
    assert events(stream, "mode.tsx") == expected


def test_begun_transaction_is_not_reported_again() -> None:
    begin = encode("MODE.TSX", in_tx=1, tx_abort=0) + ip_packet("FUP", BASE)
    assert events(psb(tsx=0) + begin + psb(tsx=1), "mode.tsx") == [(BASE, 1)]
