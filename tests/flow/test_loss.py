"""After a loss, only executed code is listed, and decoding resumes where it can.

Section numbers are those of the chapter; libipt resumes after the same cuts.
"""

from __future__ import annotations

from array import array
from typing import Any

import pytest

from rtit.packets import encode, encode_tnt

core = pytest.importorskip("rtit._core", reason="the native module is not built")

SKYLAKE = (6, 0x5E, 3)
BROADWELL = (6, 0x3D, 4)
LATER = (6, 0x96, 1)
GOLDMONT = (6, 0x5C, 9)
HYBRIDS = ((6, 0xD5, 0), (18, 1, 0), (18, 3, 0))
"""Wildcat Lake and Nova Lake."""

# 1000 jz 1010; 1002 nop; 1003 jmp rax; 1010 nop; 1011 nop; 1012 jmp rax; 1014 jmp 1800 (not mapped)
# 1016 nop; 1017 nop; 1018 ptwrite eax; 101c jmp rax
CODE = bytes.fromhex(
    "740e 90 ffe0" + "90" * 11 + "9090 ffe0" + "eb 00" + "9090 f30faee0 ffe0".replace(" ", "")
)
HOLE = 0x1800


def ip_packet(name: str, ip: int) -> bytes:
    return encode(name, ip_bytes=6, payload=ip)


def psb(ip: int | None) -> bytes:
    fup = b"" if ip is None else ip_packet("FUP", ip)
    return encode("PSB") + b"\x99\x01" + fup + encode("PSBEND")


def tnt(results: str) -> bytes:
    return encode_tnt(len(results), int(results.replace("T", "1").replace("N", "0"), 2), long=False)


def space() -> Any:
    code = bytearray(CODE)
    code[0x14:0x19] = b"\xe9" + (HOLE - 0x1019).to_bytes(4, "little")
    made = core.Space()
    made.map(0, 0x1000, bytes(code))
    made.map(0, 0x1100, bytes.fromhex("9090 f30faee0 ffe0"))
    made.map(0, 0x1200, bytes.fromhex("90 0f22d8 90 ffe0"))  # nop; mov cr3, rax; nop; jmp rax
    return made


def decode(stream: bytes, **settings: Any) -> tuple[list[int], list[str | None], Any]:
    """Return the addresses, and the trust or error class of each span."""
    flow = core.StreamDecoder(stream, space(), **settings)
    ips = array("Q")
    while (part := flow.instructions(3)) is not None:
        ips.extend(part["ip"])
    return list(ips), [row[3] or row[2] for row in flow.ledger()], flow


OVF = psb(0x1000) + encode("OVF")
ASYNC = ip_packet("FUP", 0x1011) + ip_packet("TIP", 0x1100) + ip_packet("FUP", 0x1101)


@pytest.mark.spec("OVF-011")
def test_only_the_first_fup_after_overflow_belongs_to_it() -> None:
    """Section 33.3.8: only timing packets come between OVF and its FUP."""
    stream = OVF + ip_packet("TIP", 0x1010) + ASYNC
    ips, spans, flow = decode(stream)
    assert ips == []
    assert spans == ["exact", "loss reported by hardware", "trace and code disagree"]
    assert flow.ledger()[-1][5:] == (len(OVF), 0)
    # not even the next TIP resumes decoding, only a PSB
    ips, spans, _ = decode(stream + psb(0x1010) + ip_packet("FUP", 0x1011))
    assert (ips, spans[-1]) == ([0x1010], "exact")


@pytest.mark.spec("OVF-011")
@pytest.mark.parametrize(
    "between",
    [
        tnt("T"),
        encode("PIP", nr=0, cr3=0x5000),
        encode("EXSTOP", ip=0),
        encode("PTW", ip=0, payload_bytes=0, payload=1),
        encode("MODE.TSX", in_tx=0, tx_abort=0) + encode("EXSTOP", ip=0),
        b"\x99\x01" + encode("EXSTOP", ip=0),
    ],
)
def test_fup_after_other_packets_does_not_belong_to_the_overflow(between: bytes) -> None:
    ips, _, _ = decode(
        OVF + between + ip_packet("FUP", 0x1010) + ip_packet("TIP", 0x1100) + ASYNC[:9]
    )
    assert ips == []


def test_tip_after_overflow_resumes_with_the_erratum() -> None:
    stream = OVF + ip_packet("TIP", 0x1010) + ASYNC
    assert decode(stream, cpu=SKYLAKE)[0] == [0x1010, 0x1100]
    # the result belongs to a lost branch
    assert decode(OVF + tnt("TT") + stream[len(OVF) :], cpu=SKYLAKE)[0] == [0x1010, 0x1100]
    assert decode(stream, cpu=BROADWELL)[0] == []


def test_overflow_within_a_cyc_is_found_by_erratum() -> None:
    """Erratum SKD007: the OVF replaces all bytes of the CYC but the first."""
    cyc = encode("CYC", cycles=0x1234)
    cut = cyc[:1] + encode("OVF") + ip_packet("FUP", 0x1010)
    ips, spans, flow = decode(psb(0x1000) + cut + ip_packet("FUP", 0x1011))
    assert ips == [0x1010]
    assert spans == ["exact", "loss reported by hardware", "resumed"]
    assert flow.counts()["packets"]["OVF"] == 1
    # without the erratum these are two CYCs, and the FUP is not on the path
    ips, spans, _ = decode(psb(0x1000) + cut, cpu=BROADWELL)
    assert (ips, spans[:2]) == ([], ["exact", "trace and code disagree"])


CUTS = [
    ip_packet("TIP", 0x1010)[:size]
    for size in range(1, 9)
] + [
    encode("TIP", ip_bytes=1, payload=0x1010)[:2],
    encode("TSC", tsc=0x1234)[:3],
    encode("TMA", ctc=1, fast_counter=1)[:2],
    encode("CBR", ratio=9)[:3],
    encode("CYC", cycles=1 << 40)[:3],
    encode("PIP", nr=0, cr3=0x5000)[:4],
    encode_tnt(47, 0, long=True)[:4],
    encode("EVD", type=0, payload=1)[:6],
    b"\x02",
]  # fmt: skip


@pytest.mark.spec("PSB-020")
@pytest.mark.parametrize("cut", CUTS, ids=bytes.hex)
def test_packet_cut_by_a_psb_does_not_hide_the_psb(cut: bytes) -> None:
    head = psb(0x1000) + tnt("N")
    ips, spans, flow = decode(head + cut + psb(0x1010) + ip_packet("FUP", 0x1011))
    assert ips == [0x1000, 0x1010]
    assert spans == ["exact", "bad bytes", "exact"]
    assert flow.ledger()[1][:2] == (len(head), len(head) + len(cut))


def test_payload_like_the_start_of_a_psb_is_not_a_cut() -> None:
    tsc = encode("TSC", tsc=0x82028202820200)
    ips, spans, _ = decode(psb(0x1000) + tnt("N") + tsc + psb(0x1002) + ip_packet("FUP", 0x1003))
    assert (ips, spans) == ([0x1000, 0x1002], ["exact"])


def test_tnt_like_the_middle_of_a_psb_is_not_a_cut() -> None:
    """The packet before it ends in 02, so that 02 82 occurs nine times."""
    made = core.Space()
    made.map(0, 0x1000, bytes.fromhex("7400" * 6 + "9090"))
    results = encode_tnt(6, 0b000001, long=False)
    assert results == b"\x82"
    head = psb(0x1000) + encode("TSC", tsc=0x02000000000000) + results
    flow = core.StreamDecoder(head + psb(0x100C) + ip_packet("FUP", 0x100D), made)
    assert flow.count()["instructions"] == 7
    assert [row[2] for row in flow.ledger()] == ["exact"]


@pytest.mark.spec("PGD-008")
def test_not_taken_branch_may_leave_the_filter() -> None:
    """Section 33.4.2.5: the IP is where tracing ended, here the next instruction."""
    ips, spans, _ = decode(psb(0x1000) + ip_packet("TIP.PGD", 0x1002))
    assert (ips, spans) == ([0x1000], ["exact"])
    ips, spans, _ = decode(psb(0x1000) + ip_packet("TIP.PGD", 0x1010))
    assert (ips, spans) == ([0x1000], ["exact"])
    ips, spans, _ = decode(psb(0x1000) + ip_packet("TIP.PGD", 0x1003))
    assert (ips, spans) == ([], ["exact", "trace and code disagree"])


FOLLOWED = ip_packet("TIP", 0x1010) * 32
"""After this many TIPs without a deferred one, the processor does not defer TIPs."""
GAP = psb(0x1010) + FOLLOWED + ip_packet("TIP", 0x1014)
BEFORE_GAP = [0x1010, 0x1011, 0x1012] * 33 + [0x1014]


@pytest.mark.parametrize(
    ("packets", "more"),
    [
        (ip_packet("TIP", 0x1100) + ip_packet("FUP", 0x1101), [0x1100]),
        (tnt("TT") + ip_packet("TIP", 0x1100) + ip_packet("FUP", 0x1101), [0x1100]),
        (ip_packet("FUP", 0x1900) + ip_packet("TIP", 0x1100) + ip_packet("FUP", 0x1101), [0x1100]),
        (
            encode("PTW", ip=1, payload_bytes=0, payload=1)
            + ip_packet("FUP", 0x1102)
            + ip_packet("TIP", 0x1010),
            [0x1102, 0x1106],
        ),
        (
            ip_packet("TIP.PGD", 0x1100)
            + ip_packet("FUP", 0x1100)
            + ip_packet("TIP", 0x1010)
            + ASYNC,
            [],
        ),
    ],
)
def test_decoding_stops_at_a_gap_in_the_code(packets: bytes, more: list[int]) -> None:
    """Code before the gap is listed, and decoding resumes at the first IP."""
    ips, spans, flow = decode(GAP + packets)
    assert ips == [*BEFORE_GAP, *more]
    assert spans[:2] == ["exact", "code not found"]
    assert spans[2:] == (["resumed"] if more else ["trace and code disagree"])
    assert flow.ledger()[1][6] == HOLE


def test_ledger_has_the_bytes_of_a_gap() -> None:
    stream = GAP + tnt("T") + ip_packet("TIP", 0x1100) + ip_packet("FUP", 0x1101)
    rows = [row[:3] for row in decode(stream)[2].ledger()]
    here = len(GAP)
    end = len(stream)
    assert rows == [(0, here, "exact"), (here, here + 1, "lost"), (here + 1, end, "resumed")]


def test_compressed_returns_after_a_gap_have_no_calls() -> None:
    made = space()
    made.map(0, 0x1200, bytes.fromhex("e802000000 90 cc c3 c3"))  # call 1207; nop; int3; ret; ret
    stream = GAP + ip_packet("TIP", 0x1200) + tnt("T") + ip_packet("FUP", 0x1206)
    flow = core.StreamDecoder(stream, made)
    ips = array("Q", flow.instructions(1000)["ip"])
    assert list(ips) == [*BEFORE_GAP, 0x1200, 0x1207, 0x1205]
    flow = core.StreamDecoder(GAP + ip_packet("TIP", 0x1207) + tnt("T"), made)
    assert len(flow.instructions(1000)["ip"]) == len(BEFORE_GAP)
    assert flow.count is not None
    assert flow.ledger()[-1][4].startswith("a compressed RET at 0x1207 without a matching call")


def test_deferred_tip_does_not_resume_decoding() -> None:
    """Section 33.4.2.3: a result before the TIP may belong to a branch after it."""
    deferred = psb(0x1012) + tnt("N") + ip_packet("TIP", 0x1000)
    hole = ip_packet("TIP", 0x1014)
    ips, _, _ = decode(
        deferred + hole + tnt("N") + ip_packet("TIP", 0x1000) + ip_packet("TIP", 0x1100)
    )
    assert ips == [0x1012, 0x1000, 0x1002, 0x1003, 0x1014]


def code_with_deferred_tip() -> Any:
    """Return code without the target of the jump at 1000: 9000 jne 9002; 9002 jmp rax."""
    made = core.Space()
    made.map(0, 0x1000, bytes.fromhex("e9 fb7f0000"))  # jmp 9000
    # 2000 je 2010; 2002 nop; 2003 nop; 2004 jmp 2020; 2010 je 2020; 2012 nop; 2013 jmp 2020
    code = "740e 9090 eb1a" + "cc" * 10 + "740e 90 eb0b" + "cc" * 11 + "90909090"
    made.map(0, 0x2000, bytes.fromhex(code))
    return made


@pytest.mark.parametrize("between", [b"", encode("PAD"), ip_packet("TIP", 0x2000)])
def test_tip_after_lost_tnt_does_not_resume_without_evidence(between: bytes) -> None:
    """Section 33.4.2.3. Executed: 1000 9000 9002 2000 2010 2012 2013 2020; the second result
    belongs to the branch at 2000, after the deferred TIP.
    """
    tip = between + ip_packet("TIP", 0x2000)
    stream = (
        psb(0x1000)
        + tnt("NT")
        + tip
        + tnt("N")
        + ip_packet("FUP", 0x2021)
        + ip_packet("TIP", 0x2022)
    )
    flow = core.StreamDecoder(stream + ip_packet("FUP", 0x2023), code_with_deferred_tip())
    assert list(array("Q", flow.instructions(100)["ip"])) == [0x1000, 0x2022]
    spans = [row[2] for row in flow.ledger()]
    assert spans == ["exact", "lost", "resumed"]


def test_tip_after_lost_code_without_tnt_resumes() -> None:
    """A packet that is neither TNT nor TIP forces all TNTs and deferred TIPs out."""
    mtc = encode("MTC", ctc=1)
    tip = ip_packet("TIP", 0x2000) + tnt("TN") + ip_packet("FUP", 0x2021)
    stream = psb(0x1000) + tnt("N") + mtc + tip
    flow = core.StreamDecoder(stream, code_with_deferred_tip())
    assert list(array("Q", flow.instructions(100)["ip"])) == [
        0x1000,
        0x2000,
        0x2010,
        0x2012,
        0x2013,
        0x2020,
    ]


def test_decoding_does_not_resume_at_a_contradiction_before_psb() -> None:
    """Bytes may be missing, so that packets are misread and LastIP is wrong."""
    wrong = psb(0x1000) + ip_packet("TIP", 0x1100) + ip_packet("FUP", 0x1101)
    ips, spans, _ = decode(
        wrong + ip_packet("TIP", 0x1010) + psb(0x1100) + ip_packet("FUP", 0x1101)
    )
    assert ips == [0x1100]
    assert spans == ["exact", "trace and code disagree", "exact"]
    # an enable has an IP
    enabled = encode("TIP.PGD", ip_bytes=0, payload=None) + ip_packet("TIP.PGE", 0x1010)
    ips, spans, _ = decode(wrong[:-9] + enabled + ip_packet("FUP", 0x1011))
    assert (ips, spans[-1]) == ([0x1010], "resumed")


VMCS = encode("VMCS", pointer=0x5000)
PIP = encode("PIP", nr=0, cr3=0x5000)


@pytest.mark.parametrize(
    "between",
    [PIP, VMCS, VMCS + PIP, psb(None), PIP + psb(None), encode("CBR", ratio=9), b"\x99\x01"],
    ids=bytes.hex,
)
def test_packets_outside_filter_after_fup_of_apl12_run_nothing(between: bytes) -> None:
    stream = (
        OVF
        + ip_packet("FUP", 0x1200)
        + between
        + ip_packet("TIP.PGE", 0x1010)
        + ip_packet("FUP", 0x1011)
    )
    ips, spans, flow = decode(stream, cpu=GOLDMONT)
    assert ips == [0x1010]
    assert flow.counts()["errors"] == {"loss reported by hardware": 1}
    assert flow.counts()["errata"] == {"APL12": 1}
    assert "trace and code disagree" not in spans


@pytest.mark.parametrize(
    "end", [ip_packet("FUP", 0x1205), ip_packet("TIP", 0x1010) + ip_packet("FUP", 0x1010)]
)
def test_pip_inside_filter_after_overflow_is_of_the_mov_cr3(end: bytes) -> None:
    ips, _, flow = decode(OVF + ip_packet("FUP", 0x1200) + PIP + end, cpu=GOLDMONT)
    ran = [0x1200, 0x1201, 0x1204, 0x1205]
    assert ips == (ran[:3] if end[0] & 31 == 0x1D else ran)
    assert flow.counts()["errata"] == {}


def test_bad_bytes_are_not_a_gap_in_the_code() -> None:
    """The next IP may be compressed against a lost one."""
    ips, _, _ = decode(
        psb(0x1010) + b"\x02\x00" + ip_packet("TIP", 0x1100) + ip_packet("FUP", 0x1101)
    )
    assert ips == []


@pytest.mark.spec("PSB-020")
@pytest.mark.parametrize("pairs", [1, 3, 7])
def test_decoding_of_a_run_ends_at_psb(pairs: int) -> None:
    """The rest of a packet may look like a PSB; decoding resumes at the PSB after it."""
    stream = psb(0x1010) + b"\x02\x82" * pairs + psb(0x1100) + ip_packet("FUP", 0x1101)
    ips, spans, flow = decode(stream)
    assert (ips, spans[-1]) == ([0x1100], "exact")
    assert flow.counts()["packets"]["PSB"] == 2


@pytest.mark.spec("PSB-011")
def test_psb_with_another_mode_is_an_error() -> None:
    other = encode("PSB") + b"\x99\x02" + ip_packet("FUP", 0x1010) + encode("PSBEND")
    ips, spans, _ = decode(psb(0x1010) + other + ip_packet("FUP", 0x1011))
    assert (ips, spans) == ([], ["exact", "trace and code disagree"])


def test_abort_gives_the_ip_after_a_wrong_target() -> None:
    """Erratum BDM64: the target is wrong, and the abort has the true IP."""
    abort = (
        encode("MODE.TSX", in_tx=0, tx_abort=1)
        + ip_packet("FUP", 0x1100)
        + ip_packet("TIP", 0x1016)
    )
    stream = psb(0x1010) + ip_packet("TIP", 0x1000) + abort
    ips, spans, flow = decode(stream, cpu=BROADWELL)
    assert (ips, spans) == ([0x1010, 0x1011, 0x1012], ["exact"])
    assert flow.counts()["errata"] == {"BDM64": 1}
    # with the right target the path continues to the abort
    right = psb(0x1010) + ip_packet("TIP", 0x1100) + abort.replace(b"\x00\x11", b"\x01\x11")
    ips, spans, _ = decode(right, cpu=BROADWELL)
    assert (ips, spans) == ([0x1010, 0x1011, 0x1012, 0x1100], ["exact"])
    for other in (None, SKYLAKE):
        ips, spans, _ = decode(stream, cpu=other)
        assert ips == [0x1010, 0x1011, 0x1012]
        assert spans[:2] == ["exact", "trace and code disagree"]


def test_tma_with_reserved_bits_is_ignored_by_erratum() -> None:
    """Erratum SKZ84: its values are wrong, and a byte follows that belongs to no packet."""
    tma = bytearray(encode("TMA", ctc=1, fast_counter=1))
    tma[6] |= 2
    stream = psb(0x1000) + bytes(tma)
    # the byte looks like two results
    stray = stream + b"\x0e" + tnt("N") + ip_packet("FUP", 0x1002)
    ips, spans, flow = decode(stray, cpu=(6, 0x55, 4))
    assert (ips, spans) == ([0x1000], ["exact"])
    assert flow.counts()["errata"] == {"SKZ84": 1}
    # on other processors reserved bits mean nothing (33.4.2), on an unknown one they may
    for cpu in (LATER, *HYBRIDS):
        ips, spans, _ = decode(stream + tnt("N") + ip_packet("FUP", 0x1002), cpu=cpu)
        assert (ips, spans) == ([0x1000], ["exact"])
    ips, spans, _ = decode(stray)
    assert (ips, spans) == ([], ["exact", "bad bytes"])


def test_branch_out_of_the_ranges_needs_no_ip() -> None:
    """Erratum SKL014; with known ranges no code outside of them is listed."""
    made = core.Space()
    made.map(0, 0x1000, bytes.fromhex("90 eb3d") + b"\x90" * 0x3D + bytes.fromhex("90ffe0"))
    off = encode("TIP.PGD", ip_bytes=0, payload=None)
    flow = core.StreamDecoder(psb(0x1000) + off, made, ranges=[(0x1000, 0x103F)])
    assert list(array("Q", flow.instructions(10)["ip"])) == [0x1000, 0x1001]
    flow = core.StreamDecoder(psb(0x1000) + off, made, ranges=[(0x1000, 0x103F), (0x1040, 0x1050)])
    assert list(array("Q", flow.instructions(10)["ip"])) == [0x1000, 0x1001, 0x1040, 0x1041]
    with pytest.raises(ValueError, match="5 filter ranges"):
        core.StreamDecoder(b"", made, ranges=[(0, 1)] * 5)
