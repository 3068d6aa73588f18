"""Effect of each packet on the path: small streams with a page of code."""

from __future__ import annotations

from array import array
from typing import Any

import pytest

from rtit.packets import encode, encode_tnt

core = pytest.importorskip("rtit._core", reason="the native module is not built")

BASE = 0x1000

# The code of most tests. 64-bit unless a test says otherwise.
CODE = bytes.fromhex(
    "e809000000"  # 1000 call 100e
    "7502"  # 1005 jnz 1009
    "9090"  # 1007 nop; nop
    "75f5"  # 1009 jnz 1000
    "ffd0"  # 100b call rax
    "90"  # 100d nop
    "90c3"  # 100e nop; ret
    "0f05"  # 1010 syscall
    "eb04"  # 1012 jmp 1018
    "f30faee0"  # 1014 ptwrite eax
    "ffe0"  # 1018 jmp rax
    "cc"  # 101a int3
    "0f22d8"  # 101b mov cr3, rax
    "f30faee0"  # 101e ptwrite eax
    "90"  # 1022 nop
    "e800000000"  # 1023 call 1028 (displacement 0)
    "58"  # 1028 pop rax
    "c3"  # 1029 ret
    "0f01c2"  # 102a vmlaunch
    "cb"  # 102d far ret
)


def ip_packet(name: str, ip: int) -> bytes:
    return encode(name, ip_bytes=6, payload=ip)


def psb(ip: int | None = None, *, mode: int = 1) -> bytes:
    fup = b"" if ip is None else ip_packet("FUP", ip)
    return encode("PSB") + bytes([0x99, mode]) + fup + encode("PSBEND")


def tnt(results: str) -> bytes:
    """`results`: T or N, oldest first."""
    bits = int(results.replace("T", "1").replace("N", "0"), 2)
    return encode_tnt(len(results), bits, long=len(results) > 6)


def space(code: bytes = CODE, base: int = BASE) -> Any:
    made = core.Space()
    made.map(0, base, code)
    return made


def ips_of(stream: bytes, code: Any = None, **settings: Any) -> tuple[list[int], Any]:
    flow = core.StreamDecoder(stream, code if code is not None else space(), **settings)
    ips = array("Q")
    while (part := flow.instructions(3)) is not None:
        ips.extend(part["ip"])
    return list(ips), flow


def exact(stream: bytes, code: Any = None, **settings: Any) -> list[int]:
    ips, flow = ips_of(stream, code, **settings)
    assert [row[2:] for row in flow.ledger()] == [("exact", None, None, None, None)]
    return ips


def errors(flow: Any) -> list[str]:
    return [row[4].partition(" at offset")[0] for row in flow.ledger() if row[4] is not None]


def events(stream: bytes, code: Any = None) -> list[tuple[str, int, int]]:
    flow = core.StreamDecoder(stream, code if code is not None else space())
    found = []
    while (rows := flow.rows(1000)) is not None:
        words = [array("Q", rows[name]) for name in ("event_ip", "event_value")]
        kinds = [flow.EVENTS[kind] for kind in rows["event_kind"]]
        found += list(zip(kinds, *words, strict=True))
    return found


def interrupt_and_disable(ip: int) -> bytes:
    """Encode an interrupt before `ip` that disables tracing."""
    return ip_packet("FUP", ip) + encode("TIP.PGD", ip_bytes=0)


@pytest.mark.spec("TNT-011", "TNT-006", "DEC-003", "TIP-003")
def test_conditional_branches_follow_tnt_results() -> None:
    stream = psb(0x1000) + tnt("TNN") + ip_packet("TIP", 0x1010) + encode("TIP.PGD", ip_bytes=0)
    assert exact(stream) == [0x1000, 0x100E, 0x100F, 0x1005, 0x1007, 0x1008, 0x1009, 0x100B, 0x1010]


@pytest.mark.spec("RET-004")
def test_call_to_the_next_instruction_does_not_push() -> None:
    stream = psb(0x1000) + ip_packet("TIP", 0x1023)
    ips, flow = ips_of(stream + tnt("T"))
    # the RET at 100f popped the entry of the call at 1000: none is left for the one at 1029
    assert errors(flow) == ["a compressed RET at 0x1029 without a matching call"]
    assert ips == [0x1000, 0x100E, 0x100F]


@pytest.mark.spec("RET-004")
def test_indirect_call_pushes_the_return_address() -> None:
    stream = psb(0x100B) + ip_packet("TIP", 0x100E) + tnt("T") + interrupt_and_disable(0x100E)
    assert exact(stream) == [0x100B, 0x100E, 0x100F, 0x100D]


@pytest.mark.spec("RET-005")
def test_uncompressed_return_pops_the_return_stack() -> None:
    # the first RET has a TIP and pops; the second then matches the first call
    code = bytes.fromhex(
        "e80b000000" + "90" * 11 + "e80b000000" + "90" * 11 + "c3" + "90" * 7 + "c3"
    )
    # 1000 call 1010; 1010 call 1020; 1020 ret -> 1028 by TIP; 1028 ret -> 1005 compressed
    stream = psb(0x1000) + ip_packet("TIP", 0x1028) + tnt("T") + interrupt_and_disable(0x1006)
    assert exact(stream, space(code)) == [0x1000, 0x1010, 0x1020, 0x1028, 0x1005]


@pytest.mark.spec("RET-003")
@pytest.mark.parametrize("depth", [63, 64, 65])
def test_return_stack_holds_64_calls(depth: int) -> None:
    # f: dec; jz g; call f; g: ret
    code = bytes.fromhex("ffc87405e8f7ffffffc3")
    down = "N" * (depth - 1) + "T"
    stream = psb(BASE) + b"".join(tnt(down[at : at + 6]) for at in range(0, depth, 6))
    returns = b"".join(tnt("T") for _ in range(depth - 1))
    ips, flow = ips_of(stream + returns, space(code))
    assert errors(flow) == []
    assert ips.count(0x1009) == depth - 1
    ips, flow = ips_of(stream + returns + tnt("T"), space(code))
    assert errors(flow) == ["a compressed RET at 0x1009 without a matching call"]


@pytest.mark.spec("RET-003")
def test_66th_call_drops_the_oldest() -> None:
    code = bytes.fromhex("ffc87405e8f7ffffffc3")
    down = "N" * 65 + "T"
    stream = psb(BASE) + b"".join(tnt(down[at : at + 6]) for at in range(0, 66, 6)) + tnt("T") * 65
    assert errors(ips_of(stream, space(code))[1]) == [
        "a compressed RET at 0x1009 without a matching call"
    ]


@pytest.mark.spec("RET-010")
def test_not_taken_result_at_return_is_an_error() -> None:
    ips, flow = ips_of(psb(0x1000) + tnt("N"))
    assert (ips, errors(flow)) == ([], ["a not-taken result for the RET at 0x100f"])
    ips, flow = ips_of(psb(0x100E) + tnt("T"))
    assert (ips, errors(flow)) == ([], ["a compressed RET at 0x100f without a matching call"])


@pytest.mark.spec("DEC-006", "OVF-011", "PGE-006")
@pytest.mark.parametrize("between", ["psb", "overflow", "disable"])
def test_return_is_not_compressed_across_events(between: str) -> None:
    across = {
        "psb": psb(0x100E),
        "overflow": encode("OVF") + ip_packet("FUP", 0x100E),
        "disable": interrupt_and_disable(0x100E) + ip_packet("TIP.PGE", 0x100E),
    }[between]
    walk = psb(0x1000) + (b"" if between == "overflow" else across)
    if between == "overflow":
        walk += across
    _, flow = ips_of(walk + tnt("T"))
    assert "a compressed RET at 0x100f without a matching call" in errors(flow)


@pytest.mark.spec("DTIP-002")
def test_table_33_19_path_with_deferred_tips_is_decoded() -> None:
    code = core.Space()
    for address, data in {
        0x1000: "4885c9900f85000b0000ffe2",
        0x1308: "4885c9900f85f207000090900f85e8010000",
        0x1500: "85c090907f7a909041ffe7",
        0x1100: "4885db907ffa90904801c890",
        0xCC00: "5a",
    }.items():
        code.map(0, address, bytes.fromhex(data))
    # the layout differs from the table's in bytes, not in the branches
    plain = (
        psb(0x1000)
        + tnt("N")
        + ip_packet("TIP", 0x1308)
        + tnt("NTN")
        + ip_packet("TIP", 0x1100)
        + tnt("N")
        + ip_packet("FUP", 0x1108)
        + ip_packet("TIP", 0xCC00)
    )
    deferred = (
        psb(0x1000)
        + tnt("NNTNN")
        + ip_packet("TIP", 0x1308)
        + ip_packet("TIP", 0x1100)
        + ip_packet("FUP", 0x1108)
        + ip_packet("TIP", 0xCC00)
    )
    # baz is at 1500, the target of the conditional branch at 131x
    assert exact(plain + interrupt_and_disable(0xCC01), code) == exact(
        deferred + interrupt_and_disable(0xCC01), code
    )
    assert exact(deferred + interrupt_and_disable(0xCC01), code)[-1] == 0xCC00


@pytest.mark.spec("PGD-009", "PGD-010", "DEC-007")
def test_pgd_without_ip_replaces_a_result() -> None:
    stream = psb(0x1005) + tnt("N") + encode("TIP.PGD", ip_bytes=0)
    assert exact(stream) == [0x1005, 0x1007, 0x1008, 0x1009]
    assert events(stream)[-1] == ("disabled", 0x1009, 0x1000)


@pytest.mark.spec("PGD-009")
@pytest.mark.parametrize(("start", "last"), [(0x1010, 0x1010), (0x101B, 0x101B), (0x102A, 0x102A)])
def test_pgd_without_ip_binds_to_the_branch_or_far_transfer(start: int, last: int) -> None:
    assert exact(psb(start) + encode("TIP.PGD", ip_bytes=0))[-1] == last


@pytest.mark.spec("PGD-008")
def test_pgd_with_ip_binds_to_a_direct_branch_or_the_next_that_needs_a_packet() -> None:
    assert exact(psb(0x1000) + ip_packet("TIP.PGD", 0x100E)) == [0x1000]
    assert exact(psb(0x1000) + ip_packet("TIP.PGD", 0x9000)) == [0x1000, 0x100E, 0x100F]
    assert exact(psb(0x1012) + ip_packet("TIP.PGD", 0x9000)) == [0x1012, 0x1018]
    _, flow = ips_of(psb(0x1005) + ip_packet("TIP.PGD", 0x9000))
    assert errors(flow) == ["0x9000 is not on the path"]


@pytest.mark.spec("PGD-007", "TIP-004")
def test_event_precedes_the_instruction_at_its_ip() -> None:
    stream = (
        psb(0x1005)
        + tnt("N")
        + ip_packet("FUP", 0x100B)
        + ip_packet("TIP", 0x1022)
        + interrupt_and_disable(0x1023)
    )
    assert exact(stream.replace(tnt("N"), tnt("NN"))) == [0x1005, 0x1007, 0x1008, 0x1009, 0x1022]
    # INT3 itself has not run
    assert exact(psb(0x101A) + interrupt_and_disable(0x101A)) == []
    assert ("async disabled", 0x101A, 0) in events(psb(0x101A) + interrupt_and_disable(0x101A))
    # an event on arrival, where no code is known
    stream = (
        psb(0x1018)
        + ip_packet("TIP", 0xFFFFFFFFFF600000)
        + interrupt_and_disable(0xFFFFFFFFFF600000)
    )
    assert exact(stream) == [0x1018]


@pytest.mark.spec("DEC-001")
def test_fup_may_precede_pge() -> None:
    stream = (
        psb(0x1007)
        + ip_packet("FUP", 0x1008)
        + ip_packet("TIP.PGE", 0x100E)
        + interrupt_and_disable(0x100F)
    )
    assert exact(stream) == [0x1007, 0x100E]


@pytest.mark.spec("OVF-011", "OVF-013", "PSB-012")
@pytest.mark.parametrize(
    "after",
    [
        ip_packet("FUP", 0x1022),
        encode("PAD") + encode("MTC", ctc=3) + ip_packet("FUP", 0x1022),
        ip_packet("TIP.PGE", 0x1022),
        psb(0x1022),
        psb() + ip_packet("TIP.PGE", 0x1022),
        psb() + ip_packet("FUP", 0x1022),
        psb() + encode("MTC", ctc=3) + psb() + ip_packet("FUP", 0x1022),
        encode("MODE.TSX", in_tx=1, tx_abort=0) + ip_packet("FUP", 0x1022),
    ],
)
@pytest.mark.parametrize("within_psb", [False, True])
def test_decoding_resumes_after_an_overflow(after: bytes, within_psb: bool) -> None:
    overflow = (encode("PSB") if within_psb else b"") + encode("OVF")
    ips, flow = ips_of(psb(0x1007) + overflow + after + interrupt_and_disable(0x1023))
    assert ips == [0x1022]
    assert errors(flow) == ["the processor dropped packets (OVF)"]
    assert flow.ledger()[-1][2] in ("exact", "resumed")


@pytest.mark.spec("DEC-008")
def test_tracestop_ends_tracing() -> None:
    stream = psb(0x1000) + ip_packet("TIP.PGD", 0x100E) + encode("TraceStop")
    assert exact(stream + psb() + ip_packet("TIP.PGE", 0x1022) + interrupt_and_disable(0x1023)) == [
        0x1000,
        0x1022,
    ]
    assert events(stream)[-1][0] == "stopped"


@pytest.mark.spec("DEC-010")
def test_stream_of_ptwrites_alone_has_events_only() -> None:
    ptw = encode("PTW", ip=1, payload_bytes=1, payload=0xABCD)
    stream = (
        psb() + ptw + ip_packet("FUP", 0x5000) + encode("PTW", ip=0, payload_bytes=0, payload=7)
    )
    assert exact(stream, core.Space()) == []
    found = [event for event in events(stream, core.Space()) if event[0] == "ptwrite"]
    assert found == [("ptwrite", 0x5000, 0xABCD), ("ptwrite", 0, 7)]


@pytest.mark.spec("PTW-006")
def test_ptwrite_packet_without_fup_belongs_to_the_next_ptwrite() -> None:
    stream = psb(0x1014) + encode("PTW", ip=0, payload_bytes=0, payload=7)
    assert ("ptwrite", 0x1014, 7) in events(stream)
    assert exact(stream) == [0x1014]


def test_pip_belongs_to_the_next_mov_cr3() -> None:
    """Section 33.4.2.7: without a FUP before it, the PIP belongs to the next MOV CR3, far branch or
    VM entry; so the TIP.PGD belongs to an instruction after it.
    """
    code = space(bytes.fromhex("90 0f22d8 90 0f22d8 90"))
    pip = encode("PIP", nr=0, cr3=0x5000)
    off = encode("TIP.PGD", ip_bytes=0, payload=None)
    assert exact(psb() + ip_packet("TIP.PGE", BASE) + off, code) == [0x1000, 0x1001]
    stream = psb() + ip_packet("TIP.PGE", BASE) + pip
    assert exact(stream + off, code) == [0x1000, 0x1001, 0x1004, 0x1005]
    # a PIP of no MOV CR3 does not advance the path: vmlaunch, then mov cr3
    code = space(bytes.fromhex("90 0f01c2 0f22d8 90"))
    tip = ip_packet("TIP", 0x1000)
    assert exact(stream + tip + off, code) == [0x1000, 0x1001, 0x1000, 0x1001]


@pytest.mark.spec("DEC-014", "MODE-007", "DEC-004", "PSB-011")
def test_mode_selects_the_instruction_set() -> None:
    # 48: REX.W in 64-bit code, dec eax in 32-bit code
    code = space(bytes.fromhex("4840cb" + "4840cb"))
    far = bytes([0x99, 2]) + ip_packet("TIP", 0x1003) + encode("TIP.PGD", ip_bytes=0)
    assert exact(psb(0x1000) + far, space(bytes.fromhex("4890cb" + "4840cb"))) == [
        0x1000, 0x1002, 0x1003, 0x1004, 0x1005,
    ]  # fmt: skip
    # and the mode stays until the next MODE.Exec
    again = far[:2] + ip_packet("TIP", 0x1003) + far[2:]
    ips = exact(psb(0x1000) + again, space(bytes.fromhex("4890cb" + "4840cb")))
    assert ips == [0x1000, 0x1002, 0x1003, 0x1004, 0x1005, 0x1003, 0x1004, 0x1005]
    # a stand-alone FUP only applies the mode at its IP
    alone = psb(0x1000, mode=2) + bytes([0x99, 6]) + ip_packet("FUP", 0x1001)
    assert exact(alone + encode("TIP.PGD", ip_bytes=0), code) == [0x1000, 0x1001, 0x1002]
    other = (
        psb(0x1000) + bytes([0x99, 2]) + ip_packet("FUP", 0x1002) + encode("TIP.PGD", ip_bytes=0)
    )
    ips = exact(other, space(bytes.fromhex("4890 4840cb")))
    assert ips == [0x1000, 0x1002, 0x1003, 0x1004]


@pytest.mark.spec("FUP-005")
def test_transaction_and_abort_are_events() -> None:
    begin = encode("MODE.TSX", in_tx=1, tx_abort=0) + ip_packet("FUP", 0x1008)
    abort = (
        encode("MODE.TSX", in_tx=0, tx_abort=1)
        + ip_packet("FUP", 0x1009)
        + ip_packet("TIP", 0x1022)
    )
    assert exact(psb(0x1007) + begin + abort + interrupt_and_disable(0x1023)) == [
        0x1007,
        0x1008,
        0x1022,
    ]


@pytest.mark.spec("CFE-006", "CFE-007", "TAB50-002")
def test_event_trace_packets_bind_to_their_fup() -> None:
    iret = (
        encode("CFE", ip=1, type=2, vector=0) + ip_packet("FUP", 0x102D) + ip_packet("TIP", 0x1022)
    )
    interrupt = (
        encode("CFE", ip=0, type=1, vector=0x20)
        + ip_packet("FUP", 0x1023)
        + ip_packet("TIP", 0x100E)
    )
    assert exact(psb(0x102D) + iret + interrupt + interrupt_and_disable(0x100F)) == [
        0x102D,
        0x1022,
        0x100E,
    ]


@pytest.mark.spec("IPC-002", "IPC-003", "IPC-004", "IPC-005", "IPC-006", "IPC-008", "IPC-009")
def test_compressed_ips_are_completed_from_last_ip() -> None:
    high = 0xFFFF800000001000
    code = space(b"\xff\xe0" * 8, high)
    stream = (
        encode("PSB") + bytes([0x99, 1]) + encode("FUP", ip_bytes=3, payload=0x800000001000)
        + encode("PSBEND") + encode("TIP", ip_bytes=1, payload=0x1002)
        + encode("TIP", ip_bytes=2, payload=0x00001004)
        + encode("TIP", ip_bytes=4, payload=0x800000001006)
        + encode("TIP", ip_bytes=6, payload=high + 8)
        + encode("FUP", ip_bytes=1, payload=0x100A)
    )  # fmt: skip
    ips, flow = ips_of(stream, code)
    assert ips == [high + offset for offset in (0, 2, 4, 6)]
    assert errors(flow) == [f"{high + 10:#x} is not on the path"]


@pytest.mark.spec("IPC-009", "PSB-017")
def test_last_ip_is_zero_after_psb() -> None:
    short = encode("FUP", ip_bytes=1, payload=0x1022)
    status = encode("PSB") + b"\x99\x01" + short + encode("PSBEND")
    high = psb(0xFFFF800000001234)
    stream = high + status + encode("FUP", ip_bytes=1, payload=0x1023)
    _, flow = ips_of(stream + encode("TIP.PGD", ip_bytes=0))
    # the segments do not meet, and that is all that is wrong
    assert errors(flow) == ["PSB+ gives 0x1022, which is not on the path"]
    assert exact(status + interrupt_and_disable(0x1023)) == [0x1022]


@pytest.mark.spec("DTNT-003")
def test_without_tnt_decoding_stops_at_a_possibly_compressed_return() -> None:
    # 2000 call 2007; 2005 jmp rax; 2007 ret
    code = core.Space()
    code.map(0, 0x2000, bytes.fromhex("e802000000 ffe0 c3"))
    # the RET was compressed: no packet; the TIP is that of the jump
    stream = psb(0x2000) + ip_packet("TIP", 0x1022)
    flow = core.StreamDecoder(stream, code, no_tnt=True)
    assert flow.count()["instructions"] == 0
    row = next(row for row in flow.ledger() if row[2] == "lost")
    assert (row[3], row[6]) == ("unsupported", 0x2007)
    # without compression the TIP is the RET's
    flow = core.StreamDecoder(stream, code, no_tnt=True, no_retcomp=True)
    assert flow.count()["instructions"] == 2
    # and a RET without a call cannot have been compressed
    flow = core.StreamDecoder(psb(0x2007) + ip_packet("TIP", 0x1022), code, no_tnt=True)
    assert flow.count()["instructions"] == 1


@pytest.mark.spec("DTNT-003")
def test_without_tnt_decoding_stops_at_a_conditional_branch() -> None:
    ips, flow = ips_of(
        psb(0x1005) + ip_packet("TIP", 0x1022) + psb(0x1022) + interrupt_and_disable(0x1023),
        no_tnt=True,
    )
    assert ips == [0x1022]
    row = next(row for row in flow.ledger() if row[2] == "lost")
    assert (row[3], row[6]) == ("unsupported", 0x1005)


@pytest.mark.spec("PSB-011", "DEC-002")
def test_ip_of_psb_must_be_on_the_path() -> None:
    ips, flow = ips_of(psb(0x1007) + psb(0x1008) + psb(0x1022) + interrupt_and_disable(0x1023))
    assert ips == [0x1007, 0x1022]
    assert errors(flow) == ["PSB+ gives 0x1022, which is not on the path"]
    ips, flow = ips_of(
        psb(0x1007) + psb() + ip_packet("TIP.PGE", 0x1022) + interrupt_and_disable(0x1023)
    )
    assert ips == [0x1022]
    assert errors(flow) == ["PSB+ gives no IP though no TIP.PGD turned tracing off"]


def test_fup_in_psb_before_pge_is_ignored() -> None:
    # erratum BDM70, without mapped code
    stream = psb() + encode("PSB") + ip_packet("FUP", 0x9999) + bytes([0x99, 1]) + encode("PSBEND")
    assert exact(stream + ip_packet("TIP.PGE", 0x1022) + interrupt_and_disable(0x1023)) == [0x1022]
