"""Limits on counts and sizes in a file, and files that are truncated while they are read."""

from __future__ import annotations

import os
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from rtit.cli.main import main
from rtit.errors import PerfDataError
from rtit.packets import encode
from rtit.perfdata import PerfData, Writer, aux
from rtit.perfdata.features import Feature
from rtit.perfdata.file_scan import FILE_HEADER
from rtit.trace import Trace

HUGE = 1 << 30
PART = encode("PSB") + encode("CBR", ratio=10) + encode("PSBEND")


@pytest.fixture
def data(tmp_path: Path) -> Path:
    path = tmp_path / "perf.data"
    with Writer(path, config=0x2601, cpuid="GenuineIntel,6,94,3", cmdline=["rtit"]) as out:
        for time in range(20_000):
            out.comm(7, 7, time, "name")
        out.auxtrace(7, 7, PART * 100_000, None, 1)
    return path


def with_hole(path: Path, feature: Feature, begin: bytes) -> None:
    """Return a file whose feature section is `begin` and a hole of a gigabyte."""
    with PerfData(path) as file:
        order = sorted(file.header.features).index(feature)
        table = file.header.data.end
    with path.open("r+b") as out:
        end = out.seek(0, os.SEEK_END)
        out.write(begin)
        out.truncate(end + HUGE)
        out.seek(table + 16 * order)
        out.write(struct.pack("<QQ", end, HUGE))


@pytest.mark.parametrize(
    ("feature", "begin"),
    [
        (Feature.CMDLINE, struct.pack("<I", HUGE // 4 - 1)),
        (Feature.EVENT_DESC, struct.pack("<II", HUGE // 8 - 1, 0)),
        (Feature.EVENT_DESC, struct.pack("<II64xII4x", 1, 64, HUGE // 16, 4)),
    ],
    ids=["words", "events", "ids"],
)
def test_huge_counts_in_sparse_file_raise(data: Path, feature: Feature, begin: bytes) -> None:
    with_hole(data, feature, begin)

    def read() -> object:
        with PerfData(data) as file:
            return file.command_line, file.events

    with pytest.raises(PerfDataError, match="more than 1048576 entries"):
        read()


def test_string_in_sparse_file_is_bounded(data: Path) -> None:
    with_hole(data, Feature.CPUID, struct.pack("<I", HUGE - 4) + b"GenuineIntel,6,94,3")
    with PerfData(data) as file:
        assert file.cpuid == "GenuineIntel,6,94,3"


@pytest.mark.parametrize(("number", "value"), [(1, HUGE), (3, HUGE)], ids=["attrs", "ids"])
def test_attrs_in_sparse_file_raise(data: Path, number: int, value: int) -> None:
    content = data.read_bytes()
    words = list(FILE_HEADER.unpack_from(content))
    entry, offset = words[2], words[3]
    end = len(content)
    with data.open("r+b") as out:
        out.truncate(end + 2 * HUGE)
        if number == 1:
            words[3:5] = [end, HUGE // entry * entry]
            out.write(FILE_HEADER.pack(*words))
        else:
            out.seek(offset + entry - 16)
            out.write(struct.pack("<QQ", end, HUGE))
    with pytest.raises(PerfDataError, match=r"attrs than any|section of an event's ids"):
        PerfData(data)


@pytest.mark.parametrize(
    "read",
    [
        lambda trace: list(trace.data.records()),
        lambda trace: trace.streams,
        lambda trace: [stream.read() for stream in trace.streams],
        lambda trace: trace.data.auxtrace_buffers(),
    ],
)
def test_truncation_while_reading_records_raises(
    data: Path, read: Callable[[Trace], object]
) -> None:
    with Trace(data) as trace:
        os.truncate(data, 8192)
        with pytest.raises(PerfDataError, match="became shorter while it was read"):
            read(trace)


def test_truncation_while_reading_packets_raises(data: Path) -> None:
    with Trace(data) as trace:
        (stream,) = trace.streams
        parts = stream.chunks()
        next(parts)
        os.truncate(data, 1 << 20)
        with pytest.raises(PerfDataError, match=r"shorter while it was read at offset 0x100000"):
            next(parts)


def test_file_that_grows_is_read_at_its_old_size(data: Path) -> None:
    with Trace(data) as trace:
        with data.open("ab") as file:
            file.write(bytes(1 << 20))
        assert [stream.size for stream in trace.streams] == [len(PART) * 100_000]
        assert len(trace.streams[0].read()) == len(PART) * 100_000


def with_buffers(path: Path, count: int, pieces_each: int) -> Path:
    with Writer(path, config=0x2601, cpuid="GenuineIntel,6,94,3") as out:
        for _ in range(pieces_each):
            for tid in range(1, count + 1):
                out.auxtrace(tid, tid, PART, None, 1)
    return path


def test_aux_buffers_beyond_limit_are_dropped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    path = with_buffers(tmp_path / "perf.data", 5, 2)
    size = path.stat().st_size
    monkeypatch.setattr(aux, "_MIN_BUFFERS", 2)
    # one more buffer for the remaining bytes
    monkeypatch.setattr(aux, "_BYTES_PER_BUFFER", size - 100)
    with Trace(path) as trace:
        assert [stream.tid for stream in trace.streams] == [1, 2, 3]
        whole = {stream.size for stream in trace.streams}
        assert trace.data.dropped_bytes == 2 * whole.pop()
        assert not whole
        (problem,) = trace.image_problems
        assert problem.value == trace.data.dropped_bytes
    for verb in ("report", "info"):
        assert main([verb, str(path)]) == 3
        assert "of buffers beyond 3" in "".join(capfd.readouterr())
    for verb in ("packets", "lint"):
        assert main([verb, str(path)]) in (1, 3)
        assert (
            "bytes belong to buffers beyond the limit on the number of buffers"
            in capfd.readouterr().err
        )
    monkeypatch.setattr(aux, "_MIN_BUFFERS", 5)
    with Trace(path) as trace:
        assert len(trace.streams) == 5
        assert not trace.data.dropped_bytes
        assert not trace.image_problems


def test_too_many_aux_chunks_raise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    path = with_buffers(tmp_path / "perf.data", 2, 5)
    monkeypatch.setattr(aux, "_BYTES_PER_CHUNK", path.stat().st_size)
    monkeypatch.setattr(aux, "_MIN_CHUNKS", 8)
    with PerfData(path) as data, pytest.raises(PerfDataError, match="more than 9 pieces") as caught:
        data.auxtrace_buffers()
    assert caught.value.offset is not None
    assert main(["report", str(path)]) == 1
    assert "more than 9 pieces of AUX data" in capfd.readouterr().err
    monkeypatch.setattr(aux, "_MIN_CHUNKS", 9)
    with PerfData(path) as data:
        assert sum(map(len, data.auxtrace_buffers().values())) == 10
