"""Batches that a caller holds do not change while decoding continues in other memory."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rtit.packets import encode
from support.properties import examples

core = pytest.importorskip("rtit._core", reason="the native module is not built")

# 1000 nop nop jz 1000; 1004 jnz 1005; 1006 jmp rax
CODE = bytes.fromhex("9090 74fc 7500 ffe0")
PSB = encode("PSB") + b"\x99\x01" + encode("FUP", ip_bytes=6, payload=0x1000) + encode("PSBEND")
KINDS = ("rows", "runs", "instructions", "branches", "block_ids")


def stream(seed: int) -> bytes:
    """Return iterations of the loop of random length, with some PSB+."""
    chosen = random.Random(seed)
    parts = []
    for _ in range(chosen.randrange(8, 12)):
        parts.append(PSB)
        for _ in range(1500):
            parts += [b"\xfe"] * chosen.choice((0, 0, 1, 9))  # six times around
            parts += [bytes([0b1000 | chosen.choice((0b000, 0b010))])]  # out, past either way
            parts.append(encode("TIP", ip_bytes=1, payload=0x1000))
    return b"".join(parts)


def batch_reader(trace: bytes, kind: str, **options: Any) -> Callable[[int], Any]:
    space = core.Space()
    space.map(0, 0x1000, CODE)
    take: Callable[[int], Any] = getattr(core.StreamDecoder(trace, space, **options), kind)
    return take


def views(batch: Any) -> list[memoryview]:
    """Return the columns of a batch; no other reference to them exists."""
    if isinstance(batch, dict):
        batch = list(batch.values())
    columns = batch if isinstance(batch, list | tuple) else [batch]
    return [memoryview(column).cast("B") for column in columns]


def decode_in_one_batch(trace: bytes, kind: str) -> list[bytes]:
    """Return the result of all packets in one batch."""
    take = batch_reader(trace, kind, walk=True)
    batch = take(1 << 30)
    assert take(1) is None
    return [bytes(view) for view in views(batch)]


@given(
    seed=st.integers(0, 1 << 32),
    kind=st.sampled_from(KINDS),
    most=st.sampled_from([700, 6000, 20_000, 65_536]),
    threads=st.sampled_from([1, 1, 2]),
)
@examples(40)
def test_held_columns_do_not_change(seed: int, kind: str, most: int, threads: int) -> None:
    trace, chosen = stream(seed), random.Random(seed)
    take = batch_reader(trace, kind, jobs=threads)
    held: list[tuple[list[memoryview], list[bytes]]] = []
    together: list[list[bytes]] = []
    while (batch := take(most)) is not None:
        columns = views(batch)
        del batch
        copies = [bytes(column) for column in columns]
        together.append(copies)
        held.append((columns, copies))
        if chosen.random() < 0.3:  # its memory comes back, to be used again
            del held[chosen.randrange(len(held))]
        for columns, copies in held:
            assert [bytes(column) for column in columns] == copies
    if kind != "block_ids":  # the ids depend on the thread that meets a block first
        expected = decode_in_one_batch(trace, kind)
        assert [b"".join(parts) for parts in zip(*together, strict=True)] == expected


def test_batch_has_the_requested_length() -> None:
    trace = stream(1)
    take = batch_reader(trace, "instructions")
    lengths = []
    while (batch := take(20_000)) is not None:
        lengths.append(len(batch["ip"]))
        assert len(batch["ip"]) == len(batch["size"])
    assert sum(lengths) * 8 == len(decode_in_one_batch(trace, "instructions")[0])
    assert all(20_000 <= length < 21_000 for length in lengths[:-1])
