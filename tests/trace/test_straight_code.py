"""Long code without packets is decoded in batches, in bounded memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

import rtit
from rtit.cli.main import main
from rtit.packets import encode
from rtit.trace import Stream, Trace, decode
from support.limits import assert_peak_memory
from support.streams import SYNC

NOP, JUMP = b"\x90", b"\xeb\x00"
"""Jumps to the next instruction: each is a row and a branch."""


def size(code: bytes) -> int:
    """Return the size of the code."""
    return 1 << 25 if code == NOP else 1 << 23


def packets(code: bytes) -> bytes:
    """Encode a FUP at the last instruction of the code at 1000, and TIP.PGD."""
    last = 0x1000 + size(code) - len(code)
    return SYNC + encode("FUP", ip_bytes=6, payload=last) + encode("TIP.PGD", ip_bytes=0)


def open_code(code: bytes, threads: int) -> Trace:
    image = rtit.Image().add(0x1000, code * (size(code) // len(code)))
    return decode(packets(code), image, jobs=threads)


def rows(stream: Stream) -> Iterator[int]:
    for batch in stream.rows():
        yield int(batch.instructions.sum())


def instructions(stream: Stream) -> Iterator[int]:
    following = 0x1000
    for batch in stream.instructions():
        assert (batch.ip[0], batch.size.min()) == (following, batch.size.max())
        assert (np.diff(batch.ip) == batch.size[:-1]).all()
        following = int(batch.ip[-1] + batch.size[-1])
        yield len(batch)


def count_with_times(stream: Stream) -> Iterator[int]:
    for batch in stream.instructions(timing=True):
        yield len(batch)


def branches(stream: Stream) -> Iterator[int]:
    for batch in stream.branches():
        assert (batch.target == batch.source + 2).all()
        yield len(batch)


def hashed(stream: Stream) -> Iterator[int]:
    for _start, counts, _hash in stream.runs():
        yield int(np.asarray(counts).sum())


def count_instructions(stream: Stream) -> Iterator[int]:
    yield stream.counts().instructions


@pytest.mark.slow
@pytest.mark.parametrize(
    ("code", "take", "threads"),
    [
        *((NOP, take, 1) for take in (rows, instructions, hashed, count_instructions)),
        *((JUMP, take, 1) for take in (rows, count_with_times, branches)),
        (NOP, instructions, 2),
        (JUMP, branches, 2),
        *((NOP, count_with_times, 1), (JUMP, instructions, 1), (JUMP, hashed, 1)),
        *((NOP, count_instructions, 2), (JUMP, rows, 2)),
    ],
)
def test_packetless_code_does_not_grow_memory(
    code: bytes, take: Callable[[Stream], Iterator[int]], threads: int
) -> None:
    (stream,) = open_code(code, threads).streams
    # the code cache, once: a byte for a NOP, a node for a jump
    jumps = 370 if take is count_with_times else 310
    with assert_peak_memory(260 if code == NOP else jumps):
        assert sum(take(stream)) == size(code) // len(code) - 1


def test_lines_of_packetless_code_take_bounded_memory(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "pt.bin").write_bytes(packets(NOP))
    (tmp_path / "code.bin").write_bytes(NOP * size(NOP))
    ways = ["--raw", str(tmp_path / "pt.bin"), "--image", f"{tmp_path / 'code.bin'}@1000"]
    with assert_peak_memory(260):
        assert main(["instructions", *ways, "--head", "3", "--fields", "ip"]) == 0
    assert capfd.readouterr().out.split() == ["1000", "1001", "1002"]
