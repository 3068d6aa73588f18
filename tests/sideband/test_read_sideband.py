"""read_sideband: records of any file order reach threads and images in order of time."""

from __future__ import annotations

from pathlib import Path

import pytest

from rtit.errors import PerfDataError
from rtit.image import Images
from rtit.perfdata import PerfData, TimeConversion, Writer
from rtit.perfdata.records import RECORD_HEADER, Comm, Fork, TextPoke
from rtit.sideband import read_sideband
from rtit.sideband.process_records import sort_by_time
from support.limits import assert_peak_memory, limit_recordings

HALF = TimeConversion(shift=1, mult=1, zero=100)
"""A TSC of 2 GHz that is 0 at 100 ns of the perf clock."""


def write_recording(path: Path) -> Path:
    with Writer(path, config=0x2601, cpuid="GenuineIntel,6,94,3", time=HALF) as out:
        out.fork(3, 1, 3, 1, 300)
        out.comm(1, 1, 200, "sh")
        out.text_poke(1, 1, 150, 0x1000, b"\x90\xc3")
        out.comm(3, 3, 400, "ls", by_exec=True)
    return path


def test_records_are_sorted_by_time(tmp_path: Path) -> None:
    with PerfData(write_recording(tmp_path / "perf.data")) as data:
        timed = list(sort_by_time(data))
    ours = [(time, type(record)) for time, record in timed if time]
    assert ours == [(100, TextPoke), (200, Comm), (400, Fork), (600, Comm)]


def test_threads_and_images_see_all_records(tmp_path: Path) -> None:
    images = Images()
    with PerfData(write_recording(tmp_path / "perf.data")) as data:
        threads = read_sideband(data, images)
    assert threads.names == {1: "sh", 3: "ls"}
    assert images.pids == [1, 3]
    assert images.image(1).native.read(100, 0x1000, 2) == b"\x90\xc3"
    # The fork copied the mapping, and the exec ended it.
    assert images.image(3).native.read(500, 0x1000, 2) == b"\x90\xc3"
    assert images.image(3).native.read(600, 0x1000, 2) == b""


@pytest.mark.parametrize("kept", [0, 2, 1 << 16])
def test_many_records_are_sorted_by_offset(
    kept: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The order is the same, also if they are sorted already."""
    monkeypatch.setattr("rtit.sideband.process_records._MAX_SORTED_RECORDS", kept)
    test_records_are_sorted_by_time(tmp_path)
    with Writer(tmp_path / "two", config=0x2601, cpuid="GenuineIntel,6,94,3", time=HALF) as out:
        for tid in range(1, 9):
            out.comm(1, tid, 100 + tid, "x")
    with PerfData(tmp_path / "two") as data:
        found = [record.tid for _, record in sort_by_time(data) if isinstance(record, Comm)]
    assert found == list(range(1, 9))


def write_named_threads(path: Path, times: range) -> bytes:
    """Write a recording of threads whose tids are their times; return the bytes of the records."""
    with Writer(path, config=0x2601, cpuid="GenuineIntel,6,94,3", time=HALF) as out:
        out.flush()
        begin = out.size
        for time in times:
            out.comm(1, time, 100 + time, "x")
        out.flush()
        end = out.size
    return path.read_bytes()[begin:end]


@pytest.mark.parametrize("kept", [0, 1 << 16])
def test_records_of_several_files_are_sorted(
    kept: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rtit.sideband.process_records._MAX_SORTED_RECORDS", kept)
    folder = tmp_path / "folder"
    folder.mkdir()
    write_named_threads(folder / "data", range(1, 40, 4))
    (folder / "data.0").write_bytes(write_named_threads(tmp_path / "other", range(2, 40, 4)))
    (folder / "data.1").write_bytes(write_named_threads(tmp_path / "third", range(4, 40, 2)))
    with PerfData(folder) as data:
        found = [record.tid for _, record in sort_by_time(data) if isinstance(record, Comm)]
    wanted = [*range(1, 40, 4), *range(2, 40, 4), *range(4, 40, 2)]
    assert found == sorted(wanted)


@pytest.mark.parametrize("size", [0, 7, 0xFFFF])
def test_changed_file_raises_while_sorting(
    size: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rtit.sideband.process_records._MAX_SORTED_RECORDS", 0)
    path = tmp_path / "perf.data"
    body = write_named_threads(path, range(9, 0, -1))
    # the first record in the file has the last time
    at = path.read_bytes().index(body) + RECORD_HEADER.size - 2
    with PerfData(path) as data:
        records = sort_by_time(data)
        assert any(isinstance(record, Comm) for _, record in records)
        with path.open("r+b") as file:
            file.seek(at)
            file.write(size.to_bytes(2, "little"))
        with pytest.raises(PerfDataError, match="changed while") as error:
            list(records)
    assert error.value.value == size


def test_large_records_are_not_kept_while_sorting(tmp_path: Path) -> None:
    path = tmp_path / "perf.data"
    with Writer(path, config=0x2601, cpuid="GenuineIntel,6,94,3", time=HALF) as out:
        for number in range(2000):
            out.text_poke(1, 1, 10_000 - number, 0x1000, bytes(60_000))
    with assert_peak_memory(80), PerfData(path) as data:
        found = [time for time, record in sort_by_time(data) if isinstance(record, TextPoke)]
    assert len(found) == 2000
    assert found == sorted(found)


def test_threads_beyond_limit_have_no_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    limit_recordings(monkeypatch, max_threads=4)
    path = tmp_path / "perf.data"
    with Writer(path, config=0x2601, cpuid="GenuineIntel,6,94,3", time=HALF) as out:
        for tid in range(1, 100):
            out.comm(tid, tid, 100 + tid, f"name {tid}", by_exec=True)
            out.itrace_start(tid, tid, 100 + tid)
        out.comm(2, 2, 300, "later")
    images = Images()
    with PerfData(path) as data:
        threads = read_sideband(data, images)
    assert len(threads.names) == len(images.pids) == 4
    assert threads.names[2] == "later"
    (problem,) = images.problems
    assert (problem.path, problem.value) == ("threads", 4)
