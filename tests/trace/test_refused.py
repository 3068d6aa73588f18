"""Memory that is refused is MemoryError, and the process goes on."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import numpy as np
import pytest

import rtit
from floods import CODE, JUMPS, START, flood, recorded
from refusals import apart, digest, limited, tried
from rtit import _core
from rtit.trace import Stream, Trace


def columns(batches: Iterable[object]) -> Iterator[object]:
    """All arrays of batches."""
    for batch in batches:
        names = (name for name in dir(batch) if not name.startswith("_"))
        values = (getattr(batch, name, None) for name in names)
        yield from (value for value in values if isinstance(value, np.ndarray))


TAKES: dict[str, Callable[[Stream], Iterable[object]]] = {
    "rows": lambda stream: columns(stream.rows()),
    "instructions": lambda stream: columns(stream.instructions()),
    "branches": lambda stream: columns(stream.branches()),
    "events": lambda stream: stream.events(),
    "edges": lambda stream: columns([stream.edges()]),
    "counts": lambda stream: [stream.counts(), stream.ledger()],
    "packets": lambda stream: columns(stream.packets()),
}


def check(work: Callable[[], str]) -> None:
    """Refused under the least limit, whole under the last, and nothing else between."""
    ended = tried(work)
    assert {code for _, code in ended} == {0, 1}, ended
    assert ended[-1][1] == 0, ended


@pytest.mark.parametrize("take", TAKES)
def test_a_stream(take: str, tmp_path: Path) -> None:
    path = recorded(tmp_path, "targets", 1 << 17)

    def work() -> str:
        with Trace(path) as trace:
            return digest(part for stream in trace.streams for part in TAKES[take](stream))

    check(work)


@pytest.mark.parametrize("take", ["rows", "counts"])
def test_several_threads(take: str) -> None:
    image = rtit.Image().add(START, JUMPS * (CODE // 8))
    data = flood("targets", 1 << 17) * 4

    def work() -> str:
        (stream,) = rtit.decode(data, image, cpu="6/94/3", threads=3).streams
        return digest(TAKES[take](stream))

    check(work)


def test_a_decoder_goes_on() -> None:
    image = rtit.Image().add(START, JUMPS * (CODE // 8))
    data = flood("targets", 1 << 17)
    decoder = rtit.Decoder(image, cpu="6/94/3", index="afl")

    def work() -> str:
        decoder.forget()
        bitmap = bytearray(1 << 16)
        run = decoder.run(data, bitmap)
        return digest([run.branches, bytes(bitmap), *columns([decoder.edges()])])

    check(work)


def test_a_flow_that_was_refused_has_nothing_to_tell() -> None:
    space = _core.Space()
    space.map(0, START, JUMPS * (CODE // 8))
    data = flood("targets", 1 << 17)

    def work() -> str:
        flow = _core.Flow(data, space)
        asked: list[Callable[[], object]] = [
            flow.count,
            flow.ledger,
            flow.counts,
            lambda: flow.turn,
            lambda: flow.visited,
        ]
        with limited(0), pytest.raises(MemoryError):
            flow.count()
        for ask in asked:
            with pytest.raises(MemoryError):
                ask()
        return "nothing"

    assert apart(work) == "nothing"


def test_a_stream_that_was_refused_begins_anew(tmp_path: Path) -> None:
    path = recorded(tmp_path, "targets", 1 << 17)
    with Trace(path) as trace:
        expected = trace.streams[0].counts()

    def work() -> str:
        with Trace(path) as trace:
            (stream,) = trace.streams
            with limited(1 << 20), pytest.raises(MemoryError):
                list(stream.rows())
            assert stream.counts() == expected
        return "whole"

    assert apart(work) == "whole"
