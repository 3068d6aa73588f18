"""Disabled tracing with several possible causes: MOV CR3 that stops it, INIT."""

from __future__ import annotations

from array import array

import pytest

from rtit.packets import encode

core = pytest.importorskip("rtit._core", reason="the native module is not built")

PIP = encode("PIP", nr=0, cr3=0x5000)
PGD = encode("TIP.PGD", ip_bytes=0)
STOP = encode("TraceStop")
CYC = encode("CYC", cycles=5)


def ip_packet(name: str, ip: int) -> bytes:
    return encode(name, ip_bytes=6, payload=ip)


def psb(ip: int | None = None) -> bytes:
    fup = b"" if ip is None else ip_packet("FUP", ip)
    return encode("PSB") + b"\x99\x01" + fup + encode("PSBEND")


def decode(stream: bytes, code: str) -> tuple[list[int], list[str], list[tuple[str, int, int]]]:
    """Return the IPs of `code` at 1000, trusts or error classes of the spans, and events (kind, ip,
    value).
    """
    space = core.Space()
    space.map(0, 0x1000, bytes.fromhex(code))
    flow = core.StreamDecoder(stream, space)
    ips = array("Q")
    while (part := flow.instructions(100)) is not None:
        ips.extend(part["ip"])
    spans = [row[3] or row[2] for row in flow.ledger()]
    flow = core.StreamDecoder(stream, space)
    events: list[tuple[str, int, int]] = []
    while (rows := flow.rows(100)) is not None:
        columns = [array("Q", rows[f"event_{name}"]) for name in ("ip", "value")]
        kinds = [flow.EVENTS[kind] for kind in rows["event_kind"]]
        events += zip(kinds, *columns, strict=True)
    return list(ips), spans, events


# 1000 nop; 1001 mov cr3, rax; 1004 nop; then another each
START = "90 0f22d8 90"
BRANCHES = {
    "jmp rax": "ffe0",
    "ret": "c3",
    "int3": "cc",
    "nothing known": "",
}


@pytest.mark.parametrize("then", BRANCHES)
@pytest.mark.parametrize("between", [b"", CYC], ids=["", "cyc"])
def test_mov_cr3_stops_the_trace(then: str, between: bytes) -> None:
    """Table 33-28: TraceStop by MOV CR3. The TIP.PGD of any branch but a conditional one would have
    its target (Table 33-21).
    """
    stream = psb(0x1000) + PIP + between + PGD + between + STOP
    ips, spans, events = decode(stream, START + BRANCHES[then])
    assert (ips, spans) == ([0x1000, 0x1001], ["exact"])
    assert ("disabled", 0x1001, 0) in events
    assert ("paging", 0, 0x5000) in events


@pytest.mark.parametrize("then", ["740e", "0f05", "cf", "0f01c2", "0f22d8"])
def test_tracestop_that_may_belong_to_a_later_branch_is_unsupported(then: str) -> None:
    """The TIP.PGD of a conditional branch has no target, either. Instructions that leave the
    context (syscall, iret, vmlaunch, mov cr3) have none, and TraceStop follows at the return to the
    context. So no instruction is reported, and the ledger has the gap.
    """
    ips, spans, _ = decode(psb(0x1000) + PIP + PGD + STOP, START + then)
    assert (ips, spans) == ([0x1000, 0x1001], ["exact", "unsupported"])


@pytest.mark.parametrize(
    "end",
    [b"", CYC, encode("MODE.TSX", in_tx=0, tx_abort=0) + STOP, ip_packet("TIP.PGE", 0x1000)],
    ids=["end", "cyc", "other", "pge"],
)
def test_mov_cr3_before_the_branch_that_ends_tracing(end: bytes) -> None:
    """No TraceStop: the TIP.PGD belongs to the branch, as at the exit of a kernel."""
    ips, spans, _ = decode(psb(0x1000) + PIP + PGD + end, START + "0f05")
    assert (ips, spans) == ([0x1000, 0x1001, 0x1004, 0x1005], ["exact"])


@pytest.mark.parametrize(
    "between",
    [encode("PTW", ip=0, payload_bytes=0, payload=1), encode("EXSTOP", ip=0), psb(0x1004)],
    ids=["ptw", "exstop", "psb"],
)
def test_packet_between_shows_that_mov_cr3_was_executed(between: bytes) -> None:
    ips, spans, _ = decode(psb(0x1000) + PIP + between + PGD + STOP, START + "f30faee0 ffe0")
    assert (ips, spans) == ([0x1000, 0x1001, 0x1004, 0x1005, 0x1009], ["exact"])


# 1000 nop; 1001 nop; 1002 jmp rax
WAITING = "90 90 ffe0"


@pytest.mark.spec("DEC-001")
@pytest.mark.parametrize("sipi", [b"", encode("CFE", ip=0, type=5, vector=9)], ids=["", "cfe"])
@pytest.mark.parametrize("psbs", [0, 1, 2])
def test_psb_while_the_processor_waits_for_a_sipi_has_no_ip(sipi: bytes, psbs: int) -> None:
    """INIT has a FUP and no TIP; a PSB+ may come before the SIPI, and has no IP then."""
    again = ip_packet("TIP.PGE", 0x1000) + ip_packet("FUP", 0x1002) + PGD
    stream = psb(0x1000) + ip_packet("FUP", 0x1001) + psb() * psbs + sipi + again
    ips, spans, events = decode(stream, WAITING)
    assert (ips, spans) == ([0x1000, 0x1000, 0x1001], ["exact"])
    assert ("async disabled", 0x1001, 0) in events
    assert [ip for kind, ip, _ in events if kind == "enabled"] == [0x1000]


def test_psb_between_fup_and_tip_is_an_error() -> None:
    """Section 33.3.7: if the PSB+ says that tracing is on, packets were lost before it."""
    stream = psb(0x1000) + ip_packet("FUP", 0x1001) + psb(0x1000) + ip_packet("FUP", 0x1001) + PGD
    ips, spans, _ = decode(stream, WAITING)
    assert (ips, spans) == ([0x1000, 0x1000], ["exact", "trace and code disagree", "exact"])
    # after one that says that tracing is off, a TIP is an error
    stream = psb(0x1000) + ip_packet("FUP", 0x1001) + psb() + ip_packet("TIP", 0x1000)
    ips, spans, _ = decode(stream, WAITING)
    assert (ips, spans) == ([0x1000], ["exact", "trace and code disagree"])
