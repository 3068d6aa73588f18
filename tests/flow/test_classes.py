"""Table 33-1: the packet that the instructions of each class generate."""

from __future__ import annotations

from array import array
from typing import Any

import pytest

from rtit.packets import encode

core = pytest.importorskip("rtit._core", reason="the native module is not built")

BASE, THERE = 0x1000, 0x1100
MODES = {64: 1, 32: 2, 16: 0}


def ip_packet(name: str, ip: int) -> bytes:
    return encode(name, ip_bytes=6, payload=ip)


def decode_path(code: str, packets: bytes, bits: int = 64) -> tuple[list[int], set[str]]:
    """Return the addresses that run from BASE to an event at THERE or at the next instruction, and
    the trusts.
    """
    space = core.Space()
    raw = bytes.fromhex(code)
    space.map(0, BASE, raw + b"\x90" * (0x200 - len(raw)))
    mode = bytes((0x99, MODES[bits]))
    psb = encode("PSB") + mode + ip_packet("FUP", BASE) + encode("PSBEND")
    flow = core.StreamDecoder(psb + packets, space)
    ips = array("Q")
    while (part := flow.instructions(100)) is not None:
        ips.extend(part["ip"])
    return list(ips), {row[2] for row in flow.ledger()}


def event_after(code: str) -> bytes:
    """Encode an event before the instruction that follows in memory."""
    return ip_packet("FUP", BASE + len(bytes.fromhex(code)))


JCC = [f"{0x70 + condition:02x}10" for condition in range(16)]
JCC += [f"0f{0x80 + condition:02x}f0000000" for condition in range(16)]


@pytest.mark.spec("COFI-001")
@pytest.mark.parametrize("code", [*JCC, "e310", "67e310", "e010", "e110", "e210"])
def test_conditional_branch_consumes_a_tnt_result(code: str) -> None:
    assert decode_path(code, encode("TNT", bits="N") + event_after(code)) == ([BASE], {"exact"})
    target = BASE + len(bytes.fromhex(code)) + (0xF0 if code.startswith("0f") else 0x10)
    assert decode_path(code, encode("TNT", bits="T") + ip_packet("FUP", target)) == (
        [BASE],
        {"exact"},
    )
    assert decode_path(code, ip_packet("TIP", THERE))[1] != {"exact"}
    assert decode_path(code, event_after(code))[0] == []


@pytest.mark.spec("COFI-002")
@pytest.mark.parametrize(
    ("code", "bits", "target"),
    [
        ("eb10", 64, 0x1012),
        ("e9fb000000", 64, THERE),
        ("e8fb000000", 64, THERE),
        ("e9fd00", 16, THERE),
        ("e8fb000000", 32, THERE),
    ],
)
def test_direct_jump_or_call_consumes_no_packet(code: str, bits: int, target: int) -> None:
    assert decode_path(code, ip_packet("FUP", target), bits) == ([BASE], {"exact"})


@pytest.mark.spec("COFI-003")
@pytest.mark.parametrize("code", ["ffe0", "ff20", "ffd0", "ff10", "c3", "c20800"])
@pytest.mark.parametrize("bits", [64, 32])
def test_indirect_branch_or_return_consumes_a_tip(code: str, bits: int) -> None:
    assert decode_path(code, ip_packet("TIP", THERE) + ip_packet("FUP", THERE), bits) == (
        [BASE],
        {"exact"},
    )
    assert decode_path(code, event_after(code), bits)[0] == []


FAR = ["cf", "48cf", "66cf", "ff28", "ff18", "cb", "ca0800", "0f05", "0f07", "480f07", "0f34"]
FAR += ["0f35", "480f35", "0f01c2", "0f01c3"]


@pytest.mark.spec("COFI-004", "TIP-003")
@pytest.mark.parametrize("code", FAR)
def test_far_transfer_consumes_a_tip(code: str) -> None:
    assert decode_path(code, ip_packet("TIP", THERE) + ip_packet("FUP", THERE)) == (
        [BASE],
        {"exact"},
    )


@pytest.mark.spec("COFI-004")
@pytest.mark.parametrize("code", ["ea001100000800", "9a001100000800"])
def test_direct_far_transfer_consumes_a_tip(code: str) -> None:
    assert decode_path(code, ip_packet("TIP", THERE) + ip_packet("FUP", THERE), 32) == (
        [BASE],
        {"exact"},
    )


@pytest.mark.spec("COFI-004")
@pytest.mark.parametrize(("code", "bits"), [("cc", 64), ("cd80", 64), ("f1", 64), ("ce", 32)])
def test_software_interrupt_is_decoded_as_an_event(code: str, bits: int) -> None:
    """They have a FUP and a TIP, never a TIP alone."""
    event = ip_packet("FUP", BASE) + ip_packet("TIP", THERE)
    found: Any = decode_path(code, event + ip_packet("FUP", THERE + 1), bits)
    assert found == ([THERE], {"exact"})
    assert "lost" in decode_path(code, ip_packet("TIP", THERE), bits)[1]
    assert decode_path(code, ip_packet("FUP", BASE + 4), bits)[0] == []
