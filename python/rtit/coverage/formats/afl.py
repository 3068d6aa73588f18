"""The edge map of AFL: 65,536 counters of a byte.

A place is numbered by its file's build id, or name, and its offset, the same in every run; an edge
counts at the number of where it leads, mixed with half of that of where it comes from. A counter
stops at 255.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import PurePath
from typing import TYPE_CHECKING
from zlib import crc32

from rtit.profile.tables import values

if TYPE_CHECKING:
    from rtit.coverage.gather import Code


SIZE = 1 << 16


def afl(codes: Sequence[Code]) -> bytes:
    """The map of edges within files."""
    counters = [0] * SIZE
    for code in codes:
        seed = crc32(code.build_id or os.fsencode(PurePath(code.path).name))
        for source, target, count in values((code.source, code.target, code.often)):
            at = _number(target, seed) ^ _number(source, seed) >> 1
            counters[at] = min(255, counters[at] + count)
    return bytes(counters)


def _number(offset: int, seed: int) -> int:
    return crc32(offset.to_bytes(8, "little"), seed) & SIZE - 1
