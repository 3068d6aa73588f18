"""Memory does not grow with a recording that is much of one kind of packet or record."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from rtit import decode
from rtit.packets import encode
from rtit.perfdata import PerfData
from rtit.trace import Stream, Trace, Trust
from support.limits import assert_peak_memory, limit_recordings
from support.oversized import PACKET_KINDS, PSB_PLUS, RECORD_KINDS, write_oversized

SIZE = 1 << 21
MANY_ADDRESSES = ("mode", "targets", "calls", "deep", "overflow")
"""Kinds with ever new addresses: the decoder also remembers their code."""

Reader = Callable[[Stream], Iterable[object]]
READERS: dict[str, Reader] = {
    "rows": Stream.rows,
    "counts": lambda stream: [stream.counts()],
}
SLOW_READERS: dict[str, Reader] = {
    "events": Stream.events,
    "instructions": Stream.instructions,
    "branches": Stream.branches,
}
SLOW = [pytest.param(read, id=name, marks=pytest.mark.slow) for name, read in SLOW_READERS.items()]


@pytest.mark.parametrize(
    "read", [*(pytest.param(read, id=name) for name, read in READERS.items()), *SLOW]
)
@pytest.mark.parametrize("kind", PACKET_KINDS)
def test_memory_does_not_grow_with_the_number_of_packets(
    kind: str, read: Reader, tmp_path: Path
) -> None:
    path = write_oversized(tmp_path, kind, SIZE)
    with Trace(path) as trace:  # loads the code of rtit, whose memory does not count
        (stream,) = trace.streams
        list(zip(range(1), read(stream), strict=False))
    with Trace(path) as trace, assert_peak_memory(150 if kind in MANY_ADDRESSES else 40):
        (stream,) = trace.streams
        for _ in read(stream):
            pass


def _spans(stream: Stream) -> int:
    return sum(span.is_gap for span in stream.spans())


def _ledger(stream: Stream) -> int:
    kinds = stream.ledger().buffer("kind").tolist()
    return kinds.count(Trust.LOST) + kinds.count(Trust.RESUMED)


@pytest.mark.parametrize(("look", "megabytes"), [(_spans, 8), (_ledger, 40)])
def test_memory_of_an_account(
    look: Callable[[Stream], int], megabytes: int, tmp_path: Path
) -> None:
    """Its spans one at a time, and as columns with a text each."""
    with Trace(write_oversized(tmp_path, "overflow", SIZE)) as trace:
        (stream,) = trace.streams
        overflows = stream.counts().packets["OVF"]
        with assert_peak_memory(megabytes):
            gaps = look(stream)
        # behind the first span, which is exact, and as many as are kept of a stream
        assert gaps == min(2 * overflows, (1 << 18) - 1)


def test_memory_of_losses_that_wait_for_those_before() -> None:
    """Several threads: what each finds is put together in order."""
    data = (PSB_PLUS + encode("OVF") * 30_000) * 140
    ledgers = []
    for threads in (1, 8):
        (stream,) = decode(data, jobs=threads).streams
        with assert_peak_memory(120):
            stream.counts()
        ledgers.append([*stream.ledger().column_lists(), stream.counts()])
    assert ledgers[0] == ledgers[1]


KEPT = {
    "fork": 40,
    "fork-chain": 40,
    "itrace": 32,
    "threads": 40,
    "mmap": 32,
    "mmap-process": 40,
    "comm-process": 32,
    "parents": 56,
}
"""Floods of what is kept: megabytes. The file has one, and records are kept to be sorted."""


@pytest.mark.parametrize("flood", RECORD_KINDS)
def test_memory_of_what_records_tell(flood: str, tmp_path: Path) -> None:
    small = tmp_path / "small"
    small.mkdir()
    path = write_oversized(tmp_path, flood, SIZE // 2)
    # what it loads is no part of it
    with Trace(write_oversized(small, flood, 1)) as trace:
        look(trace)
    with Trace(path) as trace, assert_peak_memory(KEPT.get(flood.removeprefix("guest-"), 24)):
        look(trace)


TOLD = {
    "exit": "threads",
    "kernel-map": "kernel",
    "kernel-poke": "kernel",
    "ksymbol": "kernel",
    "switch-cpus": "turns of threads",
    "fork+fork-exit+parents+mmap+mmap-process+comm-process+itrace+aux+threads": "threads",
}
"""Floods of what Python keeps, and what is said to be beyond."""


@pytest.mark.parametrize("kinds", TOLD)
def test_what_records_tell_has_one_end(
    kinds: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is kept of records goes by their size; each of several kinds by itself would fit."""
    room = 3 << 20 if "+" in kinds else 1 << 20
    limit_recordings(monkeypatch, bytes=room)
    small = tmp_path / "small"
    small.mkdir()
    with Trace(write_oversized(small, kinds, 1)) as trace:
        look(trace)
    path = write_oversized(tmp_path, kinds, room)
    with Trace(path) as trace:
        tracemalloc.start()
        try:
            look(trace)
            kept, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        told = {problem.path for problem in trace.image_problems}
    assert kept < 2 * room
    assert TOLD[kinds] in told


def test_bytes_that_records_bring(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are kept natively, and take room themselves."""
    path = write_oversized(tmp_path, "poke-large", 1 << 20)
    for room, fits in ((1 << 22, False), (1 << 25, True)):
        limit_recordings(monkeypatch, bytes=room)
        monkeypatch.setattr(PerfData, "size", room)
        with Trace(path) as trace:
            look(trace)
            assert (trace.image_problems == []) == fits


def look(trace: Trace) -> None:
    """At all that records tell, and a decoder for the first streams."""
    assert trace.processes is not None
    assert trace.mappings() is not None
    for stream in trace.streams[:10]:
        stream.counts()
