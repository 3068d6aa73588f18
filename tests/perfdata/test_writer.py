"""The writer: files are valid after each flush, and errors are one message."""

from __future__ import annotations

import os
import struct
from pathlib import Path

import pytest

from rtit.errors import RecordError
from rtit.perfdata import AuxBuffer, PerfData, Writer, rotate_recording


def new(path: Path | str, **options: object) -> Writer:
    return Writer(path, config=0x2601, cpuid="GenuineIntel,6,94,3", **options)  # type: ignore[arg-type]


def data_size(path: Path) -> int:
    size: int = struct.unpack_from("<Q", path.read_bytes(), 48)[0]
    return size


def test_data_size_is_updated_with_each_chunk(tmp_path: Path) -> None:
    path = tmp_path / "perf.data"
    with new(path) as out:
        before = data_size(path)
        assert before > 0
        out.comm(7, 7, 1, "name")
        assert data_size(path) == before
        out.flush()
        assert data_size(path) == before + 16 + 8 + 24
        out.auxtrace(7, 7, bytes(1 << 20), None, 1)
        assert data_size(path) == before + 48 + 48 + (1 << 20)
        assert path.stat().st_size == 408 + data_size(path)


def test_each_thread_has_its_own_stream(tmp_path: Path) -> None:
    path = tmp_path / "perf.data"
    with new(path) as out:
        for tid, data in ((7, b"a" * 8), (8, b"b" * 8), (7, b"c" * 13), (8, b"d"), (7, b"e" * 8)):
            out.auxtrace(tid, 7, data, None, 1)
    with PerfData(path) as file:
        queues = file.auxtrace_buffers()
    pieces = queues[AuxBuffer(-1, 7)]
    assert [bytes(p.data) for p in pieces] == [b"a" * 8, b"c" * 13 + bytes(3), b"e" * 8]
    assert [p.aux_offset for p in pieces] == [0, 8, 24]
    assert [p.idx for p in pieces] == [0, 0, 0]
    other = queues[AuxBuffer(-1, 8)]
    assert [bytes(p.data) for p in other] == [b"b" * 8, b"d" + bytes(7)]
    assert [p.aux_offset for p in other] == [0, 8]
    assert [p.idx for p in other] == [1, 1]


def test_auxtrace_index_lists_each_chunk(tmp_path: Path) -> None:
    path = tmp_path / "perf.data"
    with new(path) as out:
        out.auxtrace(7, 7, b"a" * 8, None, 1)
        out.auxtrace(8, 7, b"b" * 8, None, 1)
    with PerfData(path) as file:
        index = file.feature(18)
        assert index is not None
        count, *entries = struct.unpack("<5Q", index)
        record_offsets = [r.offset for r in file.records() if r.name == "AUXTRACE"]
    assert count == 2
    assert entries == [record_offsets[0], 48, record_offsets[1], 48]


def test_chunk_data_of_any_buffer_type(tmp_path: Path) -> None:
    path = tmp_path / "perf.data"
    with new(path) as out:
        out.auxtrace(7, 7, memoryview(bytearray(b"a" * 8)), None, 1)
        out.auxtrace(7, 7, memoryview(struct.pack("<2Q", 1, 2)).cast("Q"), None, 1)
        out.auxtrace(7, 7, b"", None, 1)
    with PerfData(path) as file:
        assert [p.size for p in file.auxtrace_buffers()[AuxBuffer(-1, 7)]] == [8, 16]


@pytest.mark.parametrize("reference", [0, -1, 1 << 64])
def test_invalid_reference_tsc_raises(tmp_path: Path, reference: int) -> None:
    with new(tmp_path / "perf.data") as out, pytest.raises(ValueError, match="reference"):
        out.auxtrace(7, 7, bytes(8), None, reference)


def test_values_out_of_range_raise(tmp_path: Path) -> None:
    path = tmp_path / "perf.data"
    with new(path) as out:
        with pytest.raises(ValueError, match="sample_id"):
            out.comm(1 << 40, 7, 1, "name")
        with pytest.raises(ValueError, match="at most"):
            out.comm(7, 7, 1, "x" * 70_000)
        with pytest.raises(ValueError, match="old bytes"):
            out.text_poke(7, 7, 1, 0, b"12", b"1")
        with pytest.raises(ValueError, match="MMAP2"):
            out.mmap2(7, 7, 1, 1 << 64, 1, 0, 5, 2, 0, 0, 0, 0, "/x")
        with pytest.raises(ValueError, match="build id"):
            out.mmap2(7, 7, 1, 0, 1, 0, 5, 2, 0, 0, 0, 0, "/x", bytes(21))
        out.comm(7, 7, 1, "name")
    with PerfData(path) as file:
        assert [r.name for r in file.records()][-1] == "COMM"


@pytest.mark.parametrize("facts", [{"a=b": ""}, {"": "x"}, {"a": "x;y"}, {" a": "x"}, {"a": "x "}])
def test_facts_with_separators_raise(tmp_path: Path, facts: dict[str, str]) -> None:
    path = tmp_path / "perf.data"
    with pytest.raises(ValueError, match="fact"):
        new(path, facts=facts)
    assert not path.exists()


def test_names_of_any_bytes_round_trip(tmp_path: Path) -> None:
    path = tmp_path / "perf.data"
    name = b"/tmp/\xff\xfe".decode(errors="surrogateescape")
    with new(path, cmdline=["rtit", name]) as out:
        out.mmap2(7, 7, 1, 0, 1, 0, 5, 2, 0, 0, 0, 0, name)
    with PerfData(path) as file:
        assert file.command_line == ["rtit", name]
        assert list(file.records())[-1].path == name  # type: ignore[attr-defined]


def test_long_command_line_is_only_in_section(tmp_path: Path) -> None:
    path = tmp_path / "perf.data"
    words = ["rtit", *("x" * 100 for _ in range(2000))]
    new(path, cmdline=words).close()
    with PerfData(path) as file:
        assert file.command_line == words


@pytest.mark.parametrize("name", ["/dev/full", "/proc/absent/perf.data", "/proc/version", "/tmp"])
def test_unwritable_path_raises(name: str) -> None:
    with pytest.raises(RecordError, match=f"cannot write {name}: ") as caught:
        new(name)
    assert caught.value.exit_code == 125
    assert "\n" not in str(caught.value)


def test_full_disk_keeps_flushed_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "perf.data"
    real = os.pwrite

    def full(fd: int, data: bytes, offset: int) -> int:
        if len(data) > 1000:
            raise OSError(28, "No space left on device")
        return real(fd, data, offset)

    out = new(path)
    out.comm(7, 7, 1, "name")
    out.auxtrace(7, 7, b"a" * 800, None, 1)
    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(RecordError, match="No space left"):
        out.auxtrace(7, 7, b"b" * 2000, None, 1)
    out.close()
    monkeypatch.undo()
    with PerfData(path) as file:
        assert [r.name for r in file.records()][-2:] == ["COMM", "AUXTRACE"]
        assert file.incomplete is not None
    with pytest.raises(RecordError, match="no more records"):
        out.comm(7, 7, 1, "late")


@pytest.mark.parametrize(("size", "good_writes"), [(64, 0), (400_000, 0), (400_000, 1)])
def test_interrupt_keeps_flushed_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int, good_writes: int
) -> None:
    path = tmp_path / "perf.data"

    real = os.pwrite
    left = [good_writes]

    def interrupted(fd: int, data: bytes, offset: int) -> int:
        if not left[0]:
            raise KeyboardInterrupt
        left[0] -= 1
        return real(fd, data, offset)

    out = new(path)
    out.comm(7, 7, 1, "name")
    out.flush()
    monkeypatch.setattr(os, "pwrite", interrupted)
    with pytest.raises(KeyboardInterrupt):
        out.auxtrace(7, 7, bytes(size), None, 1)
    monkeypatch.undo()
    out.close()
    with PerfData(path) as file:
        assert list(file.records())[-1].name == "COMM"


def test_second_close_does_nothing(tmp_path: Path) -> None:
    out = new(tmp_path / "perf.data")
    out.close()
    size = (tmp_path / "perf.data").stat().st_size
    out.close()
    assert (tmp_path / "perf.data").stat().st_size == size
    with pytest.raises(RecordError):
        out.flush()


def test_rotate_renames_old_recording(tmp_path: Path) -> None:
    path = tmp_path / "perf.data"
    rotate_recording(path)
    assert not list(tmp_path.iterdir())
    path.write_text("1")
    rotate_recording(path)
    assert (tmp_path / "perf.data.old").read_text() == "1"
    assert not path.exists()
    path.write_text("2")
    rotate_recording(path)
    assert (tmp_path / "perf.data.old").read_text() == "2"
    assert [p.name for p in tmp_path.iterdir()] == ["perf.data.old"]


def test_rotate_leaves_devices_and_refuses_directories(tmp_path: Path) -> None:
    rotate_recording("/dev/null")
    assert Path("/dev/null").exists()
    with pytest.raises(RecordError, match="directory"):
        rotate_recording(tmp_path)
    (tmp_path / "perf.data").write_text("1")
    (tmp_path / "perf.data.old").mkdir()
    with pytest.raises(RecordError, match="cannot rename"):
        rotate_recording(tmp_path / "perf.data")


def test_dev_null_is_a_valid_output() -> None:
    with new("/dev/null") as out:
        out.auxtrace(7, 7, bytes(64), None, 1)


@pytest.mark.parametrize(
    ("user", "kernel", "excluded", "modifier"),
    [(True, False, 0x20, "u"), (False, True, 0x10, "k"), (True, True, 0, "")],
)
def test_event_excludes_what_is_not_traced(
    user: bool, kernel: bool, excluded: int, modifier: str, tmp_path: Path
) -> None:
    """exclude_user and exclude_kernel are bits 4 and 5 of the flags of perf_event_attr."""
    path = tmp_path / "perf.data"
    new(path, user=user, kernel=kernel).close()
    with PerfData(path) as file:
        event = file.intel_pt
    assert event is not None
    assert event.attr.flags & 0x30 == excluded
    assert event.name.rpartition("/")[2] == modifier
