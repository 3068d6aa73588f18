"""Which event a FUP or an IP packet belongs to, and packets that belong to none."""

from __future__ import annotations

from array import array
from typing import Any

import pytest

from rtit.packets import encode, encode_tnt, iterate_packets

core = pytest.importorskip("rtit._core", reason="the native module is not built")

# 1000 nop; 1001 ptwrite eax; 1005 jmp rax; 1007 nop; 1008 ret; 1009 iret
CODE = bytes.fromhex("90 f30faee0 ffe0 90 c3 cf")


def ip_packet(name: str, ip: int) -> bytes:
    return encode(name, ip_bytes=6, payload=ip)


def short_ip_packet(name: str, ip: int) -> bytes:
    """Encode a packet with two bytes of the IP."""
    return encode(name, ip_bytes=1, payload=ip & 0xFFFF)


def psb(ip: int | None = None) -> bytes:
    fup = b"" if ip is None else ip_packet("FUP", ip)
    return encode("PSB") + b"\x99\x01" + fup + encode("PSBEND")


def disable(ip: int) -> bytes:
    return ip_packet("FUP", ip) + encode("TIP.PGD", ip_bytes=0)


def space(*parts: tuple[int, str]) -> Any:
    made = core.Space()
    for address, text in parts:
        made.map(0, address, bytes.fromhex(text))
    return made


def decode(
    stream: bytes, code: Any = None, *, lost: bool = False
) -> tuple[list[int], list[tuple[str, int, int]]]:
    """IPs and (kind, ip, value) of events; nothing may be lost unless `lost`."""
    if code is None:
        code = space((0x1000, CODE.hex()))
    flow = core.StreamDecoder(stream, code)
    ips = array("Q")
    while (part := flow.instructions(100)) is not None:
        ips.extend(part["ip"])
    assert lost or [row[2] for row in flow.ledger()] == ["exact"], flow.ledger()
    flow = core.StreamDecoder(stream, code)
    events: list[tuple[str, int, int]] = []
    while (rows := flow.rows(100)) is not None:
        columns = [array("Q", rows[f"event_{name}"]) for name in ("ip", "value")]
        kinds = [flow.EVENTS[kind] for kind in rows["event_kind"]]
        events += zip(kinds, *columns, strict=True)
    return list(ips), events


@pytest.mark.spec("PTW-006")
def test_fup_of_ptwrite_begins_no_event() -> None:
    ptw = encode("PTW", ip=1, payload_bytes=0, payload=7) + ip_packet("FUP", 0x1001)
    ips, events = decode(psb(0x1000) + ptw + ip_packet("TIP", 0x1007) + disable(0x1008))
    assert ips == [0x1000, 0x1001, 0x1005, 0x1007]
    assert ("ptwrite", 0x1001, 7) in events
    assert "async" not in {kind for kind, _, _ in events}


@pytest.mark.spec("BEP-001")
@pytest.mark.parametrize("ip", [0, 1])
def test_block_with_ip_binds_the_next_fup(ip: int) -> None:
    block = encode("BBP", sz=0, type=4) + encode("BIP", id=1, sz=0, payload=5)
    block += encode("BEP", ip=ip)
    then = ip_packet("FUP", 0x1005) + ip_packet("TIP", 0x1007) + disable(0x1008)
    ips, events = decode(psb(0x1000) + block + then)
    if ip:
        # the TIP belongs to the jmp
        assert ips == [0x1000, 0x1001, 0x1005, 0x1007]
        assert ("block end", 0x1005, 0) in events
    else:
        # FUP and TIP are an event before the jmp
        assert ips == [0x1000, 0x1001, 0x1007]
        assert ("async", 0x1005, 0x1007) in events


@pytest.mark.spec("CFE-006", "CFE-007", "TAB50-002")
def test_ip_bit_of_cfe_binds_the_next_fup() -> None:
    own = encode("CFE", ip=1, type=2, vector=0) + ip_packet("FUP", 0x1009)
    ips, events = decode(psb(0x1009) + own + ip_packet("TIP", 0x1007) + disable(0x1008))
    assert ips == [0x1009, 0x1007]
    assert ("cfe", 0x1009, 2) in events
    shared = encode("CFE", ip=0, type=1, vector=0x20) + ip_packet("FUP", 0x1009)
    ips, events = decode(psb(0x1009) + shared + ip_packet("TIP", 0x1007) + disable(0x1008))
    assert ips == [0x1007]
    assert ("async", 0x1009, 0x1007) in events
    # tracing is off: no FUP belongs to it
    sipi = encode("CFE", ip=0, type=5, vector=9)
    ips, events = decode(psb() + sipi + ip_packet("TIP.PGE", 0x1007) + disable(0x1008))
    assert ips == [0x1007]
    assert ("cfe", 0, 9 << 8 | 5) in events


@pytest.mark.spec("DEC-001")
def test_fup_as_last_packet_is_an_event() -> None:
    assert decode(psb(0x1000) + ip_packet("FUP", 0x1001))[0] == [0x1000]


@pytest.mark.spec("PSB-019", "PSB-016")
def test_fup_before_psbend_is_status_and_after_it_an_event() -> None:
    ips, events = decode(
        psb(0x1000) + ip_packet("FUP", 0x1001) + ip_packet("TIP", 0x1007) + disable(0x1008)
    )
    assert ips == [0x1000, 0x1007]
    assert ("async", 0x1001, 0x1007) in events
    open_group = psb(0x1000).removesuffix(encode("PSBEND"))
    # no packet that advances the path may come before PSBEND
    ips, _ = decode(open_group + ip_packet("TIP", 0x1007) + disable(0x1008), lost=True)
    assert ips == []


@pytest.mark.spec("DEC-007")
@pytest.mark.parametrize("lost", [False, True], ids=["TIP.PGE", "OVF FUP"])
def test_packets_while_tracing_is_off_do_not_move_the_ip(lost: bool) -> None:
    between = encode("TSC", tsc=5) + encode("PIP", nr=0, cr3=0x5000) + encode("CBR", ratio=3)
    between += encode("MTC", ctc=1) + encode("CYC", cycles=3) + b"\x99\x01"
    on = encode("OVF") + ip_packet("FUP", 0x1007) if lost else ip_packet("TIP.PGE", 0x1007)
    # the code that could run: nop, jmp
    off = psb(0x1000) + ip_packet("FUP", 0x1001) + encode("TIP.PGD", ip_bytes=0)
    assert decode(off + between + on + disable(0x1008), lost=lost)[0] == [0x1000, 0x1007]
    assert decode(off + between)[0] == [0x1000]


@pytest.mark.spec("DEC-008")
def test_packets_after_tracestop_do_not_move_the_ip_until_tip_pge() -> None:
    # there need not be a TIP.PGD before it
    stopped = psb(0x1000) + encode("TraceStop")
    on = ip_packet("TIP.PGE", 0x1007) + disable(0x1008)
    ips, events = decode(stopped + psb() + on)
    assert ips == [0x1007]
    assert "stopped" in {kind for kind, _, _ in events}
    ips, events = decode(stopped + ip_packet("TIP", 0x1008) + on, lost=True)
    assert ips == [0x1007]
    assert "error" in {kind for kind, _, _ in events}


@pytest.mark.spec("DEC-005")
def test_far_transfers_do_not_change_the_call_stack() -> None:
    # 1000 call 1010; 1005 nop; 1010 call far [rax]; 1012 ret; 1020 ret far
    code = space((0x1000, "e80b000000 90"), (0x1010, "ff18 c3"), (0x1020, "cb"))
    far = ip_packet("TIP", 0x1020) + ip_packet("TIP", 0x1012)
    ips, _ = decode(psb(0x1000) + far + encode_tnt(1, 1) + disable(0x1006), code)
    assert ips == [0x1000, 0x1010, 0x1020, 0x1012, 0x1005]


@pytest.mark.spec("DEC-014")
def test_mode_before_tip_pge_applies_at_its_target() -> None:
    # 48 40 90: one instruction of 64-bit code, three of 32-bit code
    code = space((0x1000, "484090"))
    for mode, ips in ((1, [0x1000]), (2, [0x1000, 0x1001, 0x1002])):
        stream = psb() + bytes([0x99, mode]) + ip_packet("TIP.PGE", 0x1000) + disable(0x1003)
        assert decode(stream, code)[0] == ips


@pytest.mark.spec("RET-009")
def test_return_in_32_bit_code_truncates_the_address() -> None:
    # call in 64-bit code, far jump to 32-bit code, and there the compressed RET
    high = 0xFFFF_FFFF_8100_0000
    code = space((high, "e8fb000000"), (high + 0x100, "ff28"), (0x1000, "c3"), (0x8100_0005, "90"))
    stream = (
        psb(high) + b"\x99\x02" + ip_packet("TIP", 0x1000) + encode_tnt(1, 1) + disable(0x8100_0006)
    )
    assert decode(stream, code)[0] == [high, high + 0x100, 0x1000, 0x8100_0005]


@pytest.mark.spec("IPC-001", "IPC-008")
def test_only_packets_with_an_ip_set_last_ip() -> None:
    # 1000 jmp rax; at 7f0000001000 nop; nop; jmp rax
    base = 0x7F00_0000_1000
    code = space((0x1000, "ffe0"), (base, "9090ffe0"))
    off, on = encode("TIP.PGD", ip_bytes=0), ip_packet("TIP.PGE", base)
    # each of them with an IP sets it; suppressed ones and compressed results do not
    stream = (
        psb() + on + short_ip_packet("FUP", base + 1) + off + short_ip_packet("TIP.PGE", base + 2)
    )
    stream += short_ip_packet("TIP", base) + short_ip_packet("FUP", base + 1) + off
    assert decode(stream, code)[0] == [base, base + 2, base]
    outside = ip_packet("TIP.PGD", 0x1000) + short_ip_packet("TIP.PGE", 0x1000) + off
    assert decode(psb() + on + outside, code)[0] == [base, base + 1, base + 2, 0x1000]


@pytest.mark.spec("PAD-001", "MNT-001")
@pytest.mark.parametrize("nothing", [encode("PAD"), encode("MNT", payload=0x0202_0202_0202_0202)])
def test_padding_and_timing_packets_are_legal_anywhere(nothing: bytes) -> None:
    call = space((0x1000, "e80b000000 7500 ffe0"), (0x1010, "c3"))
    stream = (
        psb(0x1000)
        + encode("TSC", tsc=1 << 20)
        + encode_tnt(2, 0b11)
        + short_ip_packet("TIP", 0x1010)
    )
    stream += encode("MODE.TSX", in_tx=1, tx_abort=0) + short_ip_packet("FUP", 0x1010)
    stream += short_ip_packet("FUP", 0x1010) + b"\x99\x01" + short_ip_packet("TIP", 0x1007)
    stream += (
        encode("TIP.PGD", ip_bytes=0)
        + b"\x99\x01"
        + short_ip_packet("TIP.PGE", 0x1000)
        + disable(0x1010)
    )
    spread = b"".join(packet.raw + nothing for packet in iterate_packets(stream))
    ips = [0x1000, 0x1010, 0x1005, 0x1007, 0x1007, 0x1000]
    assert decode(stream, call)[0] == decode(spread, call)[0] == ips


# J*CXZ, LOOP*, Jcc short and near: all to 1010, and a direct JMP from there
CONDITIONAL = [f"{byte:02x}0e" for byte in (*range(0xE0, 0xE4), *range(0x70, 0x80))]
CONDITIONAL += [f"0f{byte:02x}0a000000" for byte in range(0x80, 0x90)]


@pytest.mark.spec("TNT-012")
@pytest.mark.parametrize("text", CONDITIONAL)
def test_only_conditional_branches_consume_a_tnt_result(text: str) -> None:
    size = len(text) // 2
    code = space((0x1000, text), (0x1000 + size, "90"), (0x1010, "eb0e"), (0x1020, "e80b000000"))
    taken = psb(0x1000) + encode_tnt(1, 1) + disable(0x1030)
    assert decode(taken, code)[0] == [0x1000, 0x1010, 0x1020]
    not_taken = psb(0x1000) + encode_tnt(1, 0) + disable(0x1001 + size)
    assert decode(not_taken, code)[0] == [0x1000, 0x1000 + size]
