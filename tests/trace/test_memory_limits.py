"""Memory does not grow with large numbers of one kind of packet or record."""

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

SIZE = 1 << 20
NEW_ADDRESSES = ("mode", "targets", "calls", "deep", "overflow")
"""Inputs with ever new addresses: the code cache takes memory, too."""

TAKES: list[Callable[[Stream], Iterable[object]]] = [
    Stream.rows,
    Stream.events,
    Stream.instructions,
    Stream.branches,
    lambda stream: [stream.counts()],
]


@pytest.mark.slow
@pytest.mark.parametrize("flood", PACKET_KINDS)
def test_repeated_records_do_not_grow_memory(flood: str, tmp_path: Path) -> None:
    path = write_oversized(tmp_path, flood, SIZE)
    for take in TAKES:
        with Trace(path) as trace:
            (stream,) = trace.streams
            list(zip(range(1), take(stream), strict=False))
        with Trace(path) as trace, assert_peak_memory(90 if flood in NEW_ADDRESSES else 24):
            (stream,) = trace.streams
            for _ in take(stream):
                pass


def _spans(stream: Stream) -> int:
    return sum(span.is_gap for span in stream.spans())


def _ledger(stream: Stream) -> int:
    kinds = stream.ledger().buffer("kind").tolist()
    return kinds.count(Trust.LOST) + kinds.count(Trust.RESUMED)


@pytest.mark.parametrize(("read_spans", "megabytes"), [(_spans, 8), (_ledger, 40)])
def test_ledger_memory_is_bounded(
    read_spans: Callable[[Stream], int], megabytes: int, tmp_path: Path
) -> None:
    """As single spans, and as columns with a text for each span."""
    with Trace(write_oversized(tmp_path, "overflow", 2 * SIZE)) as trace:
        (stream,) = trace.streams
        overflows = stream.counts().packets["OVF"]
        with assert_peak_memory(megabytes):
            gaps = read_spans(stream)
        # after the first span, which is exact, up to the limit of a stream
        assert gaps == min(2 * overflows, (1 << 18) - 1)


@pytest.mark.slow
def test_pending_losses_memory_is_bounded() -> None:
    """With several threads, whose results are combined in order."""
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
"""Megabytes for inputs of stored records. The file takes one, and the sort buffer some."""


@pytest.mark.slow
@pytest.mark.parametrize("flood", RECORD_KINDS)
def test_sideband_memory_is_bounded(flood: str, tmp_path: Path) -> None:
    small = tmp_path / "small"
    small.mkdir()
    path = write_oversized(tmp_path, flood, SIZE)
    # libraries that it loads are not counted
    with Trace(write_oversized(small, flood, 1)) as trace:
        read_sideband(trace)
    with Trace(path) as trace, assert_peak_memory(KEPT.get(flood.removeprefix("guest-"), 24)):
        read_sideband(trace)


REPORTED_FILE = {
    "exit": "threads",
    "kernel-map": "kernel",
    "kernel-poke": "kernel",
    "ksymbol": "kernel",
    "switch-cpus": "scheduling intervals",
    "fork+fork-exit+parents+mmap+mmap-process+comm-process+itrace+aux+threads": "threads",
}
"""Inputs of records that Python stores, and the file that is reported as beyond the limit."""


@pytest.mark.slow
@pytest.mark.parametrize("kinds", REPORTED_FILE)
def test_sideband_limit_applies_to_whole_recording(
    kinds: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The limit applies to the size of all stored records; each kind alone would fit."""
    room = 1 << 20 if "+" in kinds else 1 << 18
    limit_recordings(monkeypatch, bytes=room)
    small = tmp_path / "small"
    small.mkdir()
    with Trace(write_oversized(small, kinds, 1)) as trace:
        read_sideband(trace)
    path = write_oversized(tmp_path, kinds, room)
    with Trace(path) as trace:
        tracemalloc.start()
        try:
            read_sideband(trace)
            kept, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        reported = {problem.path for problem in trace.image_problems}
    assert kept < 2 * room
    assert REPORTED_FILE[kinds] in reported


def test_code_bytes_in_records_are_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are stored natively."""
    path = write_oversized(tmp_path, "poke-large", 1 << 20)
    for room, fits in ((1 << 22, False), (1 << 25, True)):
        limit_recordings(monkeypatch, bytes=room)
        monkeypatch.setattr(PerfData, "size", room)
        with Trace(path) as trace:
            read_sideband(trace)
            assert (trace.image_problems == []) == fits


def read_sideband(trace: Trace) -> None:
    """Read all sideband, and decode the first streams."""
    assert trace.processes is not None
    assert trace.mappings() is not None
    for stream in trace.streams[:10]:
        stream.counts()
