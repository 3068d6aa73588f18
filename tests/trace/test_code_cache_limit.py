"""The code cache is limited in bytes, however many targets a trace has."""

from __future__ import annotations

import numpy as np
import pytest

import rtit
from rtit.trace import decode
from support.limits import assert_peak_memory
from support.streams import SYNC

JUMPS = 1 << 22
JUMP = b"\xff\xe0"
"""jmp rax"""


@pytest.mark.slow
def test_memory_of_code_executed_once_is_bounded() -> None:
    tips = np.zeros(JUMPS, np.dtype([("head", "u1"), ("payload", "<u4")]))
    tips["head"] = 0x4D  # TIP with IPBytes 010B: 32 bits
    # an odd factor: every jump once, and consecutive jumps far apart
    tips["payload"] = 0x1000 + np.arange(JUMPS, dtype=np.uint64) * 40503 % JUMPS * len(JUMP)
    image = rtit.Image().add(0x1000, JUMP * JUMPS)
    (stream,) = decode(SYNC + tips.tobytes(), image).streams
    with assert_peak_memory(280):
        counts = stream.counts()
    assert (counts.instructions, counts.indirect) == (JUMPS, JUMPS)
