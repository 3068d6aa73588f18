"""Memory that is refused is MemoryError, and the process goes on."""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

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


def test_who_is_asked_in_the_midst_of_a_call_makes_calls_of_his_own(tmp_path: Path) -> None:
    """There has to be memory for their results as well, before objects are made of them."""
    truth = tmp_path / "truth"
    records = struct.pack("<IIII", 1, 8, 1, 1) + struct.pack("<IIIIQQ", 4, 24, 1, 0, 0, 0)
    truth.write_bytes(b"rtit-truth\0\0" + struct.pack("<I", 1) + records)
    asked: list[str] = []

    def ask(who: str) -> Iterator[Any]:
        with limited(0), pytest.raises(MemoryError):
            _core.Code(b"")
        asked.append(who)
        yield from ()

    def work() -> str:
        space = _core.Space()
        _core.Flow(ask("stream"), space)
        space.set_missing(lambda _page: next(ask("page"), None))
        space.read(0, 0, 1)
        _core.TruthFile(str(truth)).compare(1, ask("path"))
        return " ".join(asked)

    assert apart(work) == "stream page path"


def test_a_space_has_not_changed_and_a_bitmap_is_not_touched() -> None:
    image = rtit.Image().add(START, JUMPS * (CODE // 8))
    data = flood("targets", 1 << 12)
    decoder = rtit.Decoder(image, cpu="6/94/3", index="afl")

    def work() -> str:
        space, changes = _core.Space(), 0
        with limited(0), contextlib.suppress(MemoryError):
            space.map(0, START, b"\x90")
            changes = 1
        assert space.changes == changes
        bitmap = bytearray(1 << 16)
        decoder.run(data)
        with limited(0), pytest.raises(MemoryError):
            decoder.run(data, bitmap)
        assert not any(bitmap)
        return "as before"

    assert apart(work) == "as before"


def test_a_space_of_many_pieces() -> None:
    space = _core.Space()
    for at in range(1 << 17):
        space.map(at, at * 16, b"\x90")
    check(lambda: digest([space.epochs]))
