"""Instructions by function of more code than the cache holds."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import rtit
from support.oversized import CODE_SIZE, JUMPS, PSB_PLUS, recording_with_code, tip

NOPS = b"\x90" * 1021 + b"\xff\xe0\x90"
"""Straight code, then jmp rax."""


def _jumps() -> tuple[list[bytes], int]:
    """Encode TIPs to more than 2^19 jumps."""
    count = (1 << 19) + 5000
    return [tip(number * 40503 % (CODE_SIZE // 2) * 2) for number in range(count)], count


def _straight() -> tuple[list[bytes], int]:
    """Encode TIPs into straight code of more than 2^24 instructions; each TIP starts a run."""
    packets, ran = [], 0
    for number in range(2**16):
        block, nops = number % (CODE_SIZE // 1024), number * 7 % 1022
        packets.append(tip(block * 1024 + 1021 - nops))
        ran += nops + 1
    return packets, ran


@pytest.mark.parametrize(("code", "made"), [(JUMPS, _jumps), (NOPS, _straight)])
def test_counts_by_function_are_complete_for_large_code(
    tmp_path: Path, code: bytes, made: Callable[[], tuple[list[bytes], int]]
) -> None:
    packets, ran = made()
    path = tmp_path / "flood.data"
    with recording_with_code(path, code) as out:
        # the path after the last packet is unknown
        flood = PSB_PLUS + b"".join(packets) + tip(0)
        out.auxtrace(1, 1, flood, None, 3)
    ran += code.index(b"\xff") + 1
    with rtit.Trace(path) as trace:
        (stream,) = trace.streams
        assert sum(count for *_, count in stream.instructions_by_function(trace.symbols)) == ran
        assert stream.counts().instructions == ran
