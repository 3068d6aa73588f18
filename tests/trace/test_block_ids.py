"""Block ids and the block table equal the rows."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import rtit
from rtit.packets import encode
from rtit.trace import BlockIdTable, End, Settings, Stream
from support.streams import SYNC, make_stream

CODE = {0x1000: "ffd0", 0x2000: "7402 90 90 ffe0"}
"""1000 call rax; 2000 jz 2004; 2002 nop; 2003 nop; 2004 jmp rax"""
CALL = encode("TIP", ip_bytes=6, payload=0x2000)
BACK = encode("TIP", ip_bytes=6, payload=0x1000)
ROUND = CALL + encode("TNT", bits="T") + BACK + CALL + encode("TNT", bits="N") + BACK
COLUMNS = ("start", "instructions", "last", "end", "bits")


def runs_from_block_ids(numbered: BlockIdTable) -> list[list[int]]:
    """Return the runs of all batches, by column."""
    found: list[list[int]] = [[] for _ in COLUMNS]
    for batch in numbered:
        runs = numbered.runs(batch)
        assert int(runs.instructions.sum()) == int(numbered.blocks.instructions[batch.id].sum())
        for column, name in zip(found, COLUMNS, strict=True):
            column.extend(runs.columns()[name].tolist())
    return found


def runs_from_rows(stream: Stream) -> list[list[int]]:
    columns = stream.blocks().columns()
    return [columns[name].tolist() for name in COLUMNS]


def test_ids_index_block_table() -> None:
    numbered = make_stream(ROUND, CODE).block_ids()
    assert len(numbered.blocks) == 0
    blocks = []
    for batch in numbered:
        assert batch.id.dtype == np.uint32
        known = numbered.blocks
        blocks += [
            (hex(known.start[one]), hex(known.last[one]), End(known.end[one]), known.continues[one])
            for one in batch
        ]
    # a conditional branch that is not taken ends a block and no run
    assert blocks == [
        ("0x1000", "0x1000", End.INDIRECT_CALL, 0),
        ("0x2000", "0x2000", End.CONDITIONAL, 0),
        ("0x2004", "0x2004", End.INDIRECT_JUMP, 0),
        ("0x1000", "0x1000", End.INDIRECT_CALL, 0),
        ("0x2000", "0x2000", End.CUT, 1),
        ("0x2002", "0x2004", End.INDIRECT_JUMP, 0),
    ]
    assert runs_from_block_ids(numbered) == runs_from_rows(make_stream(ROUND, CODE))
    known = numbered.blocks
    counts = dict(zip(known.start.tolist(), known.instructions.tolist(), strict=True))
    assert counts == {0x1000: 1, 0x2000: 1, 0x2002: 3, 0x2004: 1}


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("walk", [False, True])
def test_runs_of_block_ids_equal_rows(threads: int, walk: bool) -> None:
    # more segments than threads, and damage in some
    whole = bytearray((SYNC + ROUND * 40) * 4000)
    for at in (100_000, 700_001, 1_100_123):
        whole[at : at + 3] = b"\xff\x02\x00"
    image = rtit.Image()
    for address, code in CODE.items():
        image.add(address, bytes.fromhex(code))
    (one,) = rtit.decode(bytes(whole), image, jobs=1).streams
    (found,) = rtit.decode(bytes(whole), image, jobs=threads).streams
    assert isinstance(found.settings, Settings)
    found.settings = replace(found.settings, walk=walk)
    assert runs_from_block_ids(found.block_ids()) == runs_from_rows(one)
    assert list(found.ledger()) == list(one.ledger())
    assert len(list(one.ledger())) > 3


def test_block_ids_concatenate_to_a_table() -> None:
    numbered = make_stream(ROUND, CODE).block_ids()
    assert repr(numbered) == "<Table of BlockIds: id>"
    ids = numbered.columns()["id"]
    assert len(numbered.blocks.select_rows(ids)) == len(ids) == 6
    assert numbered.blocks.select_rows(ids).columns()["start"][1] == 0x2000
    assert hasattr(numbered, "__arrow_c_stream__")


def test_stream_without_code_has_no_blocks() -> None:
    (none,) = rtit.decode(b"").streams
    assert runs_from_block_ids(none.block_ids()) == [[]] * 5
    assert len(none.block_ids().blocks) == 0
