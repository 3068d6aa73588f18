"""After missing or repeated bytes, rtit invents no more instructions than libipt.

The stream comes from hardware; the executed path is what both decode of the whole stream.
"""

from __future__ import annotations

from array import array
from difflib import SequenceMatcher
from pathlib import Path
from random import Random
from typing import Any

import pytest

from differential.oracles import libipt
from differential.oracles.raw import code_sections
from rtit import _core as core

CPU = (6, 0x55, 7)
DAMAGES = 20
MAX_INVENTED = 200
"""Limit for each damage, so that one that no packet contradicts for long cannot dominate."""


def decoded_ips(stream: bytes, space: Any) -> list[int]:
    flow = core.StreamDecoder(stream, space, cpu=CPU)
    ips = array("Q")
    while (part := flow.instructions(1 << 16)) is not None:
        ips.extend(part["ip"])
    return list(ips)


def count_invented(ips: list[int], executed: list[int]) -> int:
    """Return how many of `ips` are not in the executed path, in its order."""
    start, end, stop = 0, len(ips), len(executed)
    while start < min(end, stop) and ips[start] == executed[start]:
        start += 1
    while end > start and stop > start and ips[end - 1] == executed[stop - 1]:
        end, stop = end - 1, stop - 1
    left = ips[start:end]
    found = SequenceMatcher(None, left, executed[start:stop], autojunk=False)
    return len(left) - sum(block.size for block in found.get_matching_blocks())


def damage_stream(stream: bytes, random: Random) -> bytes:
    start = random.randrange(100, len(stream) - 100)
    end = start + random.choice((1, 1, 2, 3, 5, 8, 30))
    if random.random() < 0.5:
        return stream[:start] + stream[end:]
    return stream[:end] + stream[start:]


@pytest.mark.spec("DEC-013")
def test_missing_and_repeated_bytes_invent_no_more_than_libipt(traces: Path) -> None:
    folder = traces / "dynamorio" / "sleeping"
    stream = (folder / "pt.bin").read_bytes()
    sections = code_sections(folder / "hello")
    try:
        executed = libipt.decode(stream, sections, CPU).ips
    except libipt.LibiptMissingError as error:
        pytest.skip(str(error))
    space = core.Space()
    for each in sections:
        code = each.path.read_bytes()[each.offset : each.offset + each.size]
        space.map(0, each.address, code)
    assert decoded_ips(stream, space) == executed
    random = Random(2)
    rtit = theirs = 0
    for _ in range(DAMAGES):
        bad = damage_stream(stream, random)
        rtit += min(MAX_INVENTED, count_invented(decoded_ips(bad, space), executed))
        theirs += min(MAX_INVENTED, count_invented(libipt.decode(bad, sections, CPU).ips, executed))
    assert 0 < rtit <= theirs
