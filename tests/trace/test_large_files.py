"""A large recording is read no more often than needed, and is not loaded into memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rtit.packets import encode
from rtit.perfdata import PerfData, SwitchRecords, Writer
from rtit.perfdata.records import Comm
from rtit.sideband.process_records import sort_by_time
from rtit.trace import Trace
from rtit.trace.recording.byte_source import AuxDataSource
from rtit.trace.recording.summary import summarize_recording
from support.limits import assert_peak_memory

TSC = encode("TSC", tsc=10)
PSB = encode("PSB") + TSC + encode("PSBEND") + bytes(6)
PIECE, PIECES, NAMES = 1 << 16, 1024, 70
"""Bytes, pieces, and records between two pieces: more than the sort buffer holds."""


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a recording of two alternating CPUs; each has later times than the first of the
    next.
    """
    path = tmp_path_factory.mktemp("large") / "perf.data"
    data = PSB + TSC * ((PIECE - len(PSB)) // len(TSC))
    with Writer(
        path, config=0x2401, cpuid="GenuineIntel,6,94,3", switches=SwitchRecords.CPU_WIDE
    ) as out:
        for number in range(PIECES):
            cpu, begin = number % 2, (number - number % 2) * 1_000_000
            for each in range(NAMES):
                out.comm(7, 7, begin + each * 10 + cpu + 1, f"name {each}")
            out.auxtrace(-1, -1, data, None, 10, cpu=cpu)
    return path


@pytest.mark.slow
def test_memory_does_not_grow_with_the_file(large: Path) -> None:
    with assert_peak_memory(72), Trace(large) as trace:
        assert len(trace.streams) == 2
        assert sum(each.psbs for each in summarize_recording(trace).buffers) == PIECES
        packets = Counter[str]()
        for stream in trace.streams:
            packets += stream.counts().packets
    assert packets["PSB"] == PIECES


def test_many_records_are_sorted_by_time(large: Path) -> None:
    with PerfData(large) as data:
        convert = data.time_conversion
        assert convert is not None
        found = [(time, each.comm) for time, each in sort_by_time(data) if isinstance(each, Comm)]
    assert found == [
        (convert.to_tsc(pair * 2_000_000 + number * 10 + cpu + 1), f"name {number}")
        for pair in range(PIECES // 2)
        for number in range(NAMES)
        for cpu in range(2)
    ]


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Bytes of packets that were read from a file."""
    found: list[int] = []
    parts: Callable[[AuxDataSource], Iterator[memoryview]] = AuxDataSource.chunks

    def watched(source: AuxDataSource) -> Iterator[memoryview]:
        for part in parts(source):
            found.append(len(part))
            yield part

    monkeypatch.setattr(AuxDataSource, "chunks", watched)
    return found


@pytest.mark.slow
def test_packets_are_read_once(large: Path, taken: list[int]) -> None:
    """Opening reads none of them; each listing or decoding reads them once."""
    with Trace(large) as trace:
        assert len(trace.threads) >= len(trace.streams)
        assert taken == []
        size = sum(stream.size for stream in trace.streams)
        assert size == PIECE * PIECES
        summarize_recording(trace)
        assert sum(taken) == size
        for stream in trace.streams:
            stream.counts()
        assert sum(taken) == 2 * size
