"""Packet blocks (section 33.4.1.1) and the names of their items (Table 33-47)."""

from __future__ import annotations

from typing import Any

import pytest

from rtit.packets import FORBIDDEN_IN_BLOCK, BlockContext, decode, item_name, iterate_packets

BBP8, BBP4, BEP, ITEM = "026304", "026384", "0233", "0c"


def names(raw: Any) -> Any:
    return [packet.name for packet in iterate_packets(bytes.fromhex(raw))]


@pytest.mark.spec("BIP-002", "BBP-004")
@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        (BBP8 + ITEM + "00" * 8 + BEP + ITEM, "BBP BIP BEP TNT"),
        (BBP8 + ITEM + "00" * 8 + "02b3" + ITEM, "BBP BIP BEP TNT"),
        (BBP4 + ITEM + "00" * 4 + BEP + ITEM, "BBP BIP BEP TNT"),
        (BBP8 + ITEM + "00" * 8 + BBP4 + ITEM + "00" * 4 + BEP, "BBP BIP BBP BIP BEP"),
    ],
)
def test_items_are_legal_until_the_block_ends(raw: Any, expected: Any) -> None:
    assert " ".join(names(raw)) == expected


@pytest.mark.spec("OVF-014", "BBP-004")
def test_overflow_ends_a_block() -> None:
    assert names(BBP8 + ITEM + "00" * 8 + "02f3" + ITEM) == ["BBP", "BIP", "OVF", "TNT"]


@pytest.mark.spec("TAB15-009")
@pytest.mark.parametrize(
    "raw", ["5901", "03", "00", "1901020304050607", "02030000", "0213", "d920a1", "3d0102", "0262"]
)
def test_other_packets_leave_the_block_open(raw: Any) -> None:
    raw = {"0213": "02130100"}.get(raw, raw)
    assert names(BBP4 + raw + ITEM + "00" * 4)[2] == "BIP"


@pytest.mark.spec("TAB15-010")
@pytest.mark.parametrize(
    ("name", "raw"),
    [
        ("TNT", "06"),
        ("TNT.64", "02a3ffffffffffff"),
        ("TIP", "0d"),
        ("TIP.PGE", "11"),
        ("TIP.PGD", "01"),
        ("MODE.Exec", "9901"),
        ("MODE.TSX", "9920"),
        ("PIP", "0243000000000000"),
        ("VMCS", "02c80000000000"),
        ("TraceStop", "0283"),
        ("PSB", "0282" * 8),
        ("PSBEND", "0223"),
        ("PTW", "021200000000"),
        ("MWAIT", "02c20000000000000000"),
    ],
)
def test_forbidden_packet_is_reported_and_ends_the_block(name: Any, raw: Any) -> None:
    assert name in FORBIDDEN_IN_BLOCK
    context = BlockContext()
    assert context.track_packet(decode(bytes.fromhex(BBP8)))
    assert context.item_size == 8
    packet = decode(bytes.fromhex(raw), in_block=8)
    assert packet.name == name
    assert not context.track_packet(packet)
    assert context.item_size is None
    assert context.track_packet(packet)
    assert names(BBP4 + raw + ITEM) == ["BBP", name, "TNT"]


def test_only_the_listed_packets_are_forbidden() -> None:
    assert len(FORBIDDEN_IN_BLOCK) == 14


@pytest.mark.spec("BIP-004")
def test_block_items_are_named_after_general_purpose_registers() -> None:
    expected = ["FLAGS", "IP", "AX", "CX", "DX", "BX", "SP", "BP", "SI", "DI"]
    assert [item_name(1, i) for i in range(10)] == ["R/E" + register for register in expected]
    assert [item_name(1, i) for i in (0x0A, 0x11)] == ["R8", "R15"]
    assert item_name(1, 0x12) is None


@pytest.mark.spec("BIP-005", "BIP-006")
def test_block_items_have_pebs_names() -> None:
    assert [item_name(4, i) for i in range(4)] == [
        "Instruction Pointer",
        "Applicable Counters",
        "Timestamp",
        None,
    ]
    assert [item_name(5, i) for i in range(5)] == [
        "MemAccessAddress",
        "MemAuxInfo",
        "MemAccessLatency",
        "TSXAuxInfo",
        None,
    ]


@pytest.mark.spec("BIP-007")
@pytest.mark.parametrize(
    ("block_type", "item_id", "name"),
    [
        (0x08, 0x00, "LBR[TOS-0]_FROM_IP"),
        (0x08, 0x04, "LBR[TOS-1]_TO_IP"),
        (0x08, 0x1D, "LBR[TOS-9]_INFO"),
        (0x08, 0x1F, "LBR[TOS-10]_TO_IP"),
        (0x09, 0x00, "LBR[TOS-10]_INFO"),
        (0x09, 0x10, "LBR[TOS-16]_FROM_IP"),
        (0x09, 0x1E, "LBR[TOS-20]_INFO"),
        (0x0A, 0x00, "LBR[TOS-21]_TO_IP"),
        (0x0A, 0x16, "LBR[TOS-28]_INFO"),
        (0x0A, 0x1F, "LBR[TOS-31]_INFO"),
    ],
)
def test_block_items_have_lbr_names(block_type: Any, item_id: Any, name: Any) -> None:
    assert item_name(block_type, item_id) == name


@pytest.mark.spec("BIP-008")
def test_block_items_are_named_after_xmm_registers() -> None:
    assert [item_name(0x10, i) for i in (0, 1, 2, 0x19, 0x1F)] == [
        "XMM0_Q0",
        "XMM0_Q1",
        "XMM1_Q0",
        "XMM12_Q1",
        "XMM15_Q1",
    ]


@pytest.mark.spec("BBP-002", "BIP-007")
@pytest.mark.parametrize(
    ("block_type", "item_id"), [(0, 0), (2, 0), (7, 0), (0x0B, 0), (0x11, 0), (8, 32), (8, -1)]
)
def test_reserved_items_have_no_name(block_type: Any, item_id: Any) -> None:
    assert item_name(block_type, item_id) is None
