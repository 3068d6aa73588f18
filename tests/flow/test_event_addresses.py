"""Addresses of events that several packets describe: the FUP that they share, or the current IP."""

from __future__ import annotations

from array import array
from typing import Any

import pytest

from rtit.packets import encode

core = pytest.importorskip("rtit._core", reason="the native module is not built")

# 64 nops
BASE = 0x1000


def ip_packet(name: str, ip: int) -> bytes:
    return encode(name, ip_bytes=6, payload=ip)


def psb(ip: int | None = BASE) -> bytes:
    fup = b"" if ip is None else ip_packet("FUP", ip)
    return encode("PSB") + b"\x99\x01" + fup + encode("PSBEND")


def tsc(value: int) -> bytes:
    return encode("TSC", tsc=value)


def tsx(in_tx: int, tx_abort: int = 0) -> bytes:
    return encode("MODE.TSX", in_tx=in_tx, tx_abort=tx_abort)


OFF = encode("TIP.PGD", ip_bytes=0)
STOP = ip_packet("FUP", BASE + 3) + OFF
Found = list[tuple[str, int, int]]


def events_at(stream: bytes, *kinds: str, **settings: Any) -> Found:
    """Return (kind, ip, value) of the events of these kinds; no data may be lost."""
    return [each[:3] for each in events_with_times(stream, *kinds, **settings)]


def events_with_times(
    stream: bytes, *kinds: str, **settings: Any
) -> list[tuple[str, int, int, int, int]]:
    """Return the same as `events_at`, with the time and the instructions before."""
    space = core.Space()
    space.map(0, BASE, b"\x90" * 64)
    flow = core.StreamDecoder(stream, space, **settings)
    rows = flow.rows(1 << 20)
    assert [row[2] for row in flow.ledger()] == ["exact"], flow.ledger()
    names = [flow.EVENTS[kind] for kind in rows["event_kind"]]
    columns: list[Any] = [
        array("Q", rows[f"event_{name}"]) for name in ("ip", "value", "time", "row")
    ]
    return [each for each in zip(names, *columns, strict=True) if each[0] in kinds]


PWRE = encode("PWRE", state=3, sub_state=1, hw=0)
PWRX = encode("PWRX", last=3, deepest=3, wake=1)
MWAIT = encode("MWAIT", hints=0x20, ext=1)
ASLEEP = encode("EXSTOP", ip=1) + ip_packet("FUP", BASE + 2)


@pytest.mark.spec("BEP-002")
def test_block_packets_have_the_ip_of_their_bep() -> None:
    block = encode("BBP", sz=0, type=4) + encode("BIP", id=1, sz=0, payload=5)
    end = encode("BEP", ip=1) + ip_packet("FUP", BASE + 2)
    found = events_with_times(psb() + block + end + STOP, "block begin", "block item", "block end")
    # all after the instructions before the FUP; a BIP has its number as `ip`
    assert [each[:2] for each in found] == [
        ("block begin", BASE + 2),
        ("block item", 1),
        ("block end", BASE + 2),
    ]
    assert {each[4] for each in found} == {1}
    nowhere = events_at(psb() + block + encode("BEP", ip=0), "block begin", "block end")
    assert nowhere == [("block begin", 0, 4), ("block end", 0, 0)]


@pytest.mark.spec("EVD-005")
@pytest.mark.parametrize("order", [(1, 2), (2, 1)])
def test_evd_has_the_ip_of_its_cfe(order: tuple[int, int]) -> None:
    data = b"".join(encode("EVD", type=kind, payload=0x10 + kind) for kind in order)
    event = encode("CFE", ip=1, type=9, vector=3) + ip_packet("FUP", BASE + 2)
    found = events_with_times(psb() + data + event + STOP, "evd", "cfe")
    assert [each[:3] for each in found] == [
        *(("evd", kind, 0x10 + kind) for kind in order),
        ("cfe", BASE + 2, 3 << 8 | 9),
    ]
    assert {each[4] for each in found} == {1}


@pytest.mark.spec("EXS-005")
def test_exstop_has_the_ip_of_its_fup_and_the_time_of_its_cyc() -> None:
    head = encode("PSB") + tsc(1000) + encode("CBR", ratio=10) + b"\x99\x01"
    head += ip_packet("FUP", BASE) + encode("PSBEND")
    sleep = encode("CYC", cycles=30) + encode("EXSTOP", ip=1) + ip_packet("FUP", BASE + 2)
    stream = head + PWRE + sleep + tsc(5000) + PWRX + STOP
    found = events_with_times(stream, "exstop", "pwrx", max_nonturbo_ratio=10)
    # powered down from the one to the other
    assert [(each[1], each[3]) for each in found] == [(BASE + 2, 1030), (BASE + 2, 5000)]
    assert events_at(psb() + encode("EXSTOP", ip=0), "exstop") == [("exstop", 0, 0)]


@pytest.mark.spec("MWT-006", "PWRE-004", "PWRX-004")
def test_mwait_pwre_and_pwrx_have_the_ip_of_the_exstop() -> None:
    other = encode("PWRE", state=6, sub_state=0, hw=1)
    stream = psb() + MWAIT + PWRE + ASLEEP + other + tsc(7000) + PWRX + STOP
    found = events_with_times(stream, "mwait", "pwre", "exstop", "pwrx")
    assert [each[:2] for each in found] == [
        ("mwait", BASE + 2),
        ("pwre", BASE + 2),
        ("exstop", BASE + 2),
        ("pwre", BASE + 2),
        ("pwrx", BASE + 2),
    ]
    # the time is the TSC of the wake-up
    assert found[-1][3] == 7000
    # a PWRX ends it: the next packets belong to another one at an unknown address
    again = stream.removesuffix(STOP) + PWRE + PWRX
    assert [each[1] for each in events_at(again, "pwre", "pwrx")][-2:] == [0, 0]


@pytest.mark.spec("MTSX-003")
def test_transaction_begins_at_fup_and_abort_continues_at_tip() -> None:
    begin = tsx(1) + ip_packet("FUP", BASE + 1)
    abort = tsx(0, 1) + ip_packet("FUP", BASE + 4) + ip_packet("TIP", BASE + 0x10)
    stream = psb() + begin + abort + ip_packet("FUP", BASE + 0x11) + OFF
    assert events_at(stream, "mode.tsx", "async") == [
        ("mode.tsx", BASE + 1, 1),
        ("mode.tsx", BASE + 4, 2),
        ("async", BASE + 4, BASE + 0x10),
    ]


@pytest.mark.spec("MTSX-004", "TSX-006")
@pytest.mark.parametrize("states", [(1,), (1, 0), (0, 1), (1, 0, 1)])
def test_last_mode_packet_while_tracing_is_off_counts(states: tuple[int, ...]) -> None:
    off = psb() + ip_packet("FUP", BASE + 1) + OFF
    on = ip_packet("TIP.PGE", BASE + 0x10) + ip_packet("FUP", BASE + 0x11) + OFF
    found = events_at(off + b"".join(map(tsx, states)) + on, "mode.tsx")
    assert found == [("mode.tsx", BASE + 0x10, states[-1])]


@pytest.mark.spec("TSTOP-010")
@pytest.mark.parametrize("ip", [0, BASE + 0x100])
def test_tracestop_after_pgd_has_the_ip_of_the_pgd(ip: int) -> None:
    event = encode("TIP.PGD", ip_bytes=6, payload=ip) if ip else OFF
    stream = psb() + ip_packet("FUP", BASE + 1) + event + encode("TraceStop")
    assert events_at(stream, "stopped") == [("stopped", ip, 0)]


@pytest.mark.spec("TSTOP-011")
def test_tracestop_after_pge_has_the_last_known_ip() -> None:
    off = psb() + ip_packet("FUP", BASE + 1) + OFF
    stream = off + ip_packet("TIP.PGE", BASE + 0x10) + encode("TraceStop")
    assert events_at(stream, "stopped") == [("stopped", BASE + 0x10, 0)]


@pytest.mark.spec("DEC-009")
def test_events_without_branches_have_their_fups() -> None:
    """BranchEn=0: no FUP in PSB+ and no TIP, but EVD, CFE and their FUPs (33.4.2.29)."""
    data = encode("EVD", type=0, payload=0x1234)
    fault = data + encode("CFE", ip=1, type=1, vector=14) + ip_packet("FUP", BASE + 1)
    back = encode("CFE", ip=1, type=2, vector=0) + ip_packet("FUP", BASE + 0x30)
    status = encode("PSB") + encode("PSBEND")
    found = events_at(status + fault + back + status + fault, "cfe", "evd")
    page_fault = [("evd", 0, 0x1234), ("cfe", BASE + 1, 14 << 8 | 1)]
    assert found == [*page_fault, ("cfe", BASE + 0x30, 2), *page_fault]


@pytest.mark.spec("DEC-012")
@pytest.mark.parametrize("written", range(60))
def test_ring_buffer_is_read_from_its_oldest_psb(written: int) -> None:
    """Section 33.2.7.1: from the write pointer to the end, and on from the start."""
    lap = psb(BASE) + ip_packet("FUP", BASE + 1) + OFF
    stream = (lap * 8)[: 3 * len(lap) + written]
    size = 2 * len(lap) + 7
    ring = bytearray(size)
    for at, byte in enumerate(stream):
        ring[at % size] = byte
    point = len(stream) % size
    space = core.Space()
    space.map(0, BASE, b"\x90" * 64)
    flow = core.StreamDecoder([bytes(ring[point:]), bytes(ring[:point])], space)
    ips = array("Q", b"".join(part["ip"] for part in iter(lambda: flow.instructions(9), None)))
    oldest = len(stream) - size
    first = -(-oldest // len(lap)) * len(lap)
    # an iteration is one instruction, which the FUP after its PSB+ shows
    fup = len(psb(BASE)) + len(ip_packet("FUP", BASE + 1))
    laps = sum(at + fup <= len(stream) for at in range(first, len(stream), len(lap)))
    assert list(ips) == [BASE] * laps
