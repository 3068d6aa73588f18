"""Every row has the execution mode and whether it ran in a transaction."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import rtit
from rtit.packets import encode
from rtit.trace import End, Stream
from support.streams import SYNC

CODE = rtit.Image().add(0x1000, bytes.fromhex("90 90 90 90 eb fa"))
"""1000 nop; 1001 nop; 1002 nop; 1003 nop; 1004 jmp 1000"""


def fup(ip: int) -> bytes:
    return encode("FUP", ip_bytes=6, payload=ip)


def tip(ip: int) -> bytes:
    return encode("TIP", ip_bytes=6, payload=ip)


def tsx(in_tx: int, abort: int = 0) -> bytes:
    return encode("MODE.TSX", in_tx=in_tx, tx_abort=abort)


def executed_modes(stream: Stream) -> list[tuple[int, int]]:
    columns = stream.instructions().columns()
    return list(zip(columns["ip"].tolist(), columns["in_tx"].tolist(), strict=True))


@pytest.mark.spec("MTSX-003")
def test_rows_between_begin_and_commit_are_in_tx() -> None:
    # begins before 1002; commits before 1001 in the next round; a PSB says where the program is
    packets = tsx(1) + fup(0x1002) + tsx(0) + fup(0x1001) + SYNC.replace(fup(0x1000), fup(0x1003))
    stream = rtit.decode(SYNC + packets, CODE).streams[0]
    inside = [0x1002, 0x1003, 0x1004, 0x1000]
    expected = [(0x1000, 0), (0x1001, 0), *((ip, 1) for ip in inside), (0x1001, 0), (0x1002, 0)]
    assert executed_modes(stream) == expected
    assert [
        (row.start, row.instructions, row.end, row.in_tx) for row in stream.blocks().rows()
    ] == [
        (0x1000, 2, End.CUT, 0),
        (0x1002, 3, End.JUMP, 1),
        (0x1000, 1, End.CUT, 1),
        (0x1001, 2, End.END_OF_STREAM, 0),
    ]


def test_abort_ends_transaction() -> None:
    packets = (
        tsx(1) + fup(0x1002) + tsx(0, 1) + fup(0x1004) + tip(0x1000) + fup(0x1001) + tip(0x1000)
    )
    stream = rtit.decode(SYNC + packets, CODE).streams[0]
    assert executed_modes(stream) == [
        (0x1000, 0),
        (0x1001, 0),
        (0x1002, 1),
        (0x1003, 1),
        (0x1000, 0),
    ]


def test_psb_reports_open_transaction() -> None:
    begun = SYNC.replace(fup(0x1000), tsx(1) + fup(0x1000))
    stream = rtit.decode(begun + fup(0x1002) + tip(0x1000), CODE).streams[0]
    assert executed_modes(stream) == [(0x1000, 1), (0x1001, 1)]


@given(transactions=st.lists(st.tuples(st.integers(0, 4), st.booleans()), max_size=12))
def test_rows_and_instructions_agree_on_transactions(transactions: list[tuple[int, bool]]) -> None:
    """Transactions at any addresses; an address before the current one takes another iteration."""
    packets = b"".join(tsx(inside) + fup(0x1000 + offset) for offset, inside in transactions)
    stream = rtit.decode(SYNC + packets + fup(0x1004) + tip(0x1000), CODE).streams[0]
    instructions = stream.instructions().columns()
    blocks = stream.blocks().columns()
    count = blocks["instructions"]
    for name in ("in_tx", "bits", "time"):
        assert np.array_equal(np.repeat(blocks[name], count), instructions[name]), name
    inside, at, expected = False, 0, []
    for offset, begins in transactions:
        while at != offset:
            expected.append(inside)
            at = (at + 1) % 5
        inside = begins
    while at != 4:
        expected.append(inside)
        at += 1
    assert instructions["in_tx"].astype(bool).tolist() == expected


@pytest.mark.parametrize("bits", [16, 32, 64])
def test_rows_have_their_execution_mode(bits: int) -> None:
    stream = rtit.decode(
        tip(0x1000) * 3, rtit.Image().add(0x1000, b"\xff\xe0"), start=rtit.Start(0x1000, bits)
    ).streams[0]
    assert stream.blocks().columns()["bits"].tolist() == [bits] * 3
    assert stream.instructions().columns()["bits"].tolist() == [bits] * 3


def test_far_transfer_changes_mode() -> None:
    # 1000 retf, to 32-bit code: 2000 dec eax (a REX prefix in 64-bit code); 2001 jmp eax
    image = rtit.Image().add(0x1000, b"\xcb").add(0x2000, bytes.fromhex("48 ffe0"))
    packets = encode("MODE.Exec", csl=0, csd=1, iflag=0) + tip(0x2000) + tip(0x2000)
    stream = rtit.decode(SYNC + packets, image).streams[0]
    assert [(row.start, row.bits) for row in stream.blocks().rows()] == [(0x1000, 64), (0x2000, 32)]
    columns = stream.instructions().columns()
    assert columns["ip"].tolist() == [0x1000, 0x2000, 0x2001]
    assert columns["bits"].tolist() == [64, 32, 32]


def test_published_cases_decode_in_their_execution_mode(traces: Path) -> None:
    """In every case, the modes of the rows are modes that a MODE.Exec names."""
    folder = traces / "libipt-cases"
    cases: list[dict[str, Any]] = json.loads((folder / "index.json").read_text())
    seen = set()
    for case in cases:
        name = case["name"]
        image = rtit.Image().add_file(folder / f"{name}.bin", int(case["image_base"], 16))
        stream = rtit.decode((folder / f"{name}.pt").read_bytes(), image).streams[0]
        bits = set(stream.blocks().columns()["bits"].tolist())
        wanted_bits = {
            64 if row.fields["csl"] else 32 if row.fields["csd"] else 16
            for row in stream.packets().rows()
            if row.name == "MODE.Exec"
        }
        assert bits <= (wanted_bits or {64}), name
        seen |= bits
    assert seen == {32, 64}
