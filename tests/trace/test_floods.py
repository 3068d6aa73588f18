"""Much of one kind of packet: memory stays what it is."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from floods import FLOODS, recorded
from memory import at_most
from rtit.trace import Stream, Trace

SIZE = 1 << 21
ANEW = ("mode", "targets", "calls", "deep", "overflow")
"""Floods whose places come anew all the time: what is learned of their code takes some, too."""

TAKES: list[Callable[[Stream], Iterable[object]]] = [
    Stream.rows,
    Stream.events,
    Stream.instructions,
    Stream.branches,
    lambda stream: [stream.counts()],
]


@pytest.mark.parametrize("flood", FLOODS)
def test_memory_does_not_grow_with_a_flood(flood: str, tmp_path: Path) -> None:
    path = recorded(tmp_path, flood, SIZE)
    for take in TAKES:
        with Trace(path) as trace:
            (stream,) = trace.streams
            list(zip(range(1), take(stream), strict=False))
        with Trace(path) as trace, at_most(160 if flood in ANEW else 40):
            (stream,) = trace.streams
            for _ in take(stream):
                pass
