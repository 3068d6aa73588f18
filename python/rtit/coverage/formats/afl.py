"""The edge map of AFL: 65,536 counters of a byte.

A location is hashed from its offset and the build id (or name) of its file, so it is the same in
every run. An edge counts at the hash of its target xor half the hash of its source. A counter stops
at 255.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import PurePath
from typing import TYPE_CHECKING
from zlib import crc32

from rtit.profile.tables import iterate_rows

if TYPE_CHECKING:
    from rtit.coverage.file_coverage import FileCoverage


SIZE = 1 << 16


def afl_map(codes: Sequence[FileCoverage]) -> bytes:
    """Return the map of edges within files."""
    counters = [0] * SIZE
    for code in codes:
        seed = crc32(code.build_id or os.fsencode(PurePath(code.path).name))
        for source, target, count in iterate_rows((code.source, code.target, code.transfer_count)):
            at = _number(target, seed) ^ _number(source, seed) >> 1
            counters[at] = min(255, counters[at] + count)
    return bytes(counters)


def _number(offset: int, seed: int) -> int:
    return crc32(offset.to_bytes(8, "little"), seed) & SIZE - 1
