"""The bytes of a stream from its pieces in a file."""

from __future__ import annotations

from pathlib import Path

import pytest

from rtit.perfdata import AuxBuffer, AuxChunk, PerfData, Writer
from rtit.trace import AuxDataSource

STREAM = bytes(range(64))


@pytest.fixture
def data(tmp_path: Path) -> PerfData:
    with Writer(tmp_path / "perf.data", config=0x2601, cpuid="GenuineIntel,6,94,3"):
        pass
    return PerfData(tmp_path / "perf.data")


def piece(start: int, end: int, *, padding: int = 0) -> AuxChunk:
    return AuxChunk(0, start, 1, 0, 1, -1, memoryview(STREAM[start:end] + bytes(padding)))


def read(source: AuxDataSource) -> bytes:
    found = b"".join(source.chunks())
    assert source.size == len(found)
    assert b"".join(source.chunks()) == found
    return found


def test_uncounted_padding_is_dropped(data: PerfData) -> None:
    pieces = [piece(0, 13, padding=3), piece(13, 24), piece(24, 64)]
    assert read(AuxDataSource(data, pieces, is_snapshot=False)) == STREAM


def test_bytes_shared_by_snapshots_are_read_once(data: PerfData) -> None:
    pieces = [piece(8, 40), piece(16, 48), piece(48, 56)]
    assert read(AuxDataSource(data, pieces, is_snapshot=True)) == STREAM[8:56]


def test_repeated_snapshot_adds_no_bytes(data: PerfData) -> None:
    pieces = [piece(8, 40), piece(8, 40), piece(8, 48)]
    assert read(AuxDataSource(data, pieces, is_snapshot=True)) == STREAM[8:48]


def test_restarted_buffer_is_read_completely(data: PerfData) -> None:
    """Without snapshots an offset that does not grow begins a new part, not an overlap."""
    pieces = [piece(8, 16), piece(8, 16)]
    assert read(AuxDataSource(data, pieces, is_snapshot=False)) == STREAM[8:16] * 2


def test_large_piece_is_read_in_chunks(tmp_path: Path) -> None:
    stream = bytes(range(1, 251)) * 20_000
    with Writer(tmp_path / "perf.data", config=0x2601, cpuid="GenuineIntel,6,94,3") as out:
        out.auxtrace(7, 7, stream, None, 1)
    with PerfData(tmp_path / "perf.data") as data:
        source = AuxDataSource(data, data.auxtrace_buffers()[AuxBuffer(-1, 7)], is_snapshot=False)
        parts = [bytes(part) for part in source.chunks()]
    assert b"".join(parts) == stream
    assert max(map(len, parts)) <= 1 << 20 < len(stream)
