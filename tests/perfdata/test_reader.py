"""Complete, truncated and contradictory files, those of a killed recorder, and other files."""

from __future__ import annotations

import errno
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from rtit.errors import PerfDataError, RtitError, UnsupportedError
from rtit.perfdata import AuxBuffer, PerfData, Writer

PSB = b"\x02\x82" * 8


def record_something(path: Path, *, close: bool = True) -> Writer:
    out = Writer(path, config=0x2601, cpuid="GenuineIntel,6,94,3", facts={"time": "modelled"})
    out.comm(7, 7, 10, "name", by_exec=True)
    out.mmap2(7, 7, 11, 0x401000, 0x1000, 0, 5, 2, 8, 1, 4711, 0, "/bin/true")
    out.auxtrace(7, 7, PSB, None, 1000)
    out.aux(7, 7, 12, 0, 16)
    out.auxtrace(7, 7, PSB * 2, None, 2000)
    out.exit(7, 7, 7, 7, 13)
    if close:
        out.close(build_ids={"/bin/true": b"\1" * 20}, facts={"status": "0"})
    else:
        out.flush()
    return out


def read_all(path: Path) -> tuple[list[str], dict[AuxBuffer, list[bytes]]]:
    with PerfData(path) as file:
        for value in (file.build_ids, file.command_line, file.pmus, file.facts, file.arch):
            assert value is not None
        names = [record.name for record in file.records()]
        return names, {
            queue: [bytes(piece.data) for piece in pieces]
            for queue, pieces in file.auxtrace_buffers().items()
        }


def test_complete_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "perf.data"
    record_something(path)
    with PerfData(path) as file:
        assert file.incomplete is None
        assert file.facts == {"time": "modelled", "status": "0"}
        assert file.cpuid == "GenuineIntel,6,94,3"
        assert file.arch == "x86_64"
        assert file.build_ids == {"/bin/true": b"\1" * 20}
        assert file.pmus == {1: "software", 8: "intel_pt"}
        assert file.intel_pt is not None
        assert file.intel_pt.attr.config == 0x2601
        assert [event.ids for event in file.events] == [(1,), (2,)]
    names, queues = read_all(path)
    assert [name for name in names if name != "HEADER_FEATURE"] == [
        *("AUXTRACE_INFO", "COMM", "MMAP2", "AUXTRACE", "AUX", "AUXTRACE", "EXIT")
    ]
    assert queues == {AuxBuffer(-1, 7): [PSB, PSB * 2]}


def test_file_of_killed_recorder_is_read(tmp_path: Path) -> None:
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    record_something(whole)
    out = record_something(killed, close=False)
    out.comm(7, 7, 20, "never flushed")
    assert read_all(killed) == read_all(whole)
    with PerfData(killed) as file:
        assert file.incomplete is not None
        assert file.facts == {"time": "modelled"}
        assert file.cpuid == "GenuineIntel,6,94,3"
        assert file.intel_pt is not None
        assert file.intel_pt.name == "intel_pt/pt,mtc,tsc,branch/u"


def test_data_size_0_reads_all_complete_records(tmp_path: Path) -> None:
    path = tmp_path / "perf.data"
    record_something(path, close=False)
    names, queues = read_all(path)
    data = bytearray(path.read_bytes())
    data[48:56] = bytes(8)
    path.write_bytes(data)
    assert read_all(path) == (names, queues)
    path.write_bytes(data[:-1])
    assert read_all(path) == (names[:-1], queues)
    path.write_bytes(data + bytes(64))  # a file system that grew the file before it died
    assert read_all(path) == (names, queues)


def test_file_cut_at_any_offset_is_read_or_raises(tmp_path: Path) -> None:
    """The result is the records before the cut, or an error with the offset."""
    path, cut = tmp_path / "perf.data", tmp_path / "cut"
    record_something(path)
    data = path.read_bytes()
    names, _ = read_all(path)
    start, size = struct.unpack_from("<QQ", data, 40)
    ends = []
    at = start
    while at < start + size:
        number, _, length = struct.unpack_from("<IHH", data, at)
        at += length
        if number == 71:
            at += struct.unpack_from("<Q", data, at - 40)[0]
        ends.append(at)
    assert len(ends) == len(names)
    for length in range(len(data)):
        cut.write_bytes(data[:length])
        if length < start:
            with pytest.raises(PerfDataError) as caught, PerfData(cut):
                pass
            assert caught.value.offset is not None
            continue
        with PerfData(cut) as file:
            assert file.incomplete is not None
            found = [record.name for record in file.records()]
        assert found == names[: sum(end <= length for end in ends)]


def patch_header(offset: int, value: int, kind: str = "<Q") -> Callable[[bytearray], None]:
    return lambda data: struct.pack_into(kind, data, offset, value)


@pytest.mark.parametrize(
    ("change", "offset", "value"),
    [
        (patch_header(8, 17), 8, 17),
        (patch_header(16, 8), 16, 8),
        (patch_header(16, 1 << 40), 16, 1 << 40),
        (patch_header(24, 1 << 63), 24, 1 << 63),
        (patch_header(32, 145), 32, 145),
        (patch_header(40, 8), 40, 8),
        (patch_header(120 + 128, 1 << 62), 248, 8),
        (patch_header(120 + 136, 12), 248, 12),
        (patch_header(408 + 6, 7, "<H"), 408, 7),
        (patch_header(408 + 6, 0, "<H"), 408, 0),
        (patch_header(408 + 6, 0xFFFF, "<H"), 408, 0xFFFF),
    ],
)
def test_contradictory_header_raises(
    tmp_path: Path, change: Callable[[bytearray], None], offset: int, value: int
) -> None:
    path = tmp_path / "perf.data"
    record_something(path)
    data = bytearray(path.read_bytes())
    change(data)
    path.write_bytes(data)
    with pytest.raises(PerfDataError) as caught, PerfData(path):
        pass
    assert caught.value.source == str(path)
    assert caught.value.offset == offset
    assert caught.value.value == value


def test_event_ids_may_overlap(tmp_path: Path) -> None:
    """A small file cannot claim more ids than it has."""
    entry = struct.pack("<IIQQQQQ", 8, 64, 0, 1, 0, 0, 0).ljust(64, b"\0")
    entries = (entry + struct.pack("<QQ", 0, 8000)) * 100
    header = struct.pack("<8sQQQQQQ", b"PERFILE2", 104, 80, 104, len(entries), 8104, 8)
    path = tmp_path / "perf.data"
    path.write_bytes(header.ljust(104, b"\0") + entries + struct.pack("<IHH", 68, 0, 8))
    with pytest.raises(PerfDataError, match="ids") as caught, PerfData(path):
        pass
    assert caught.value.offset == 104 + 80 + 64
    assert caught.value.value == 8000


def test_aux_data_beyond_records_raises(tmp_path: Path) -> None:
    path = tmp_path / "perf.data"
    record_something(path)
    with PerfData(path) as file:
        record_offset = next(r.offset for r in file.records() if r.name == "AUXTRACE")
    data = bytearray(path.read_bytes())
    struct.pack_into("<Q", data, record_offset + 8, 1 << 62)
    path.write_bytes(data)
    with pytest.raises(PerfDataError) as caught, PerfData(path):
        pass
    assert caught.value.offset == record_offset


@pytest.mark.parametrize(
    ("content", "error"),
    [
        (b"", PerfDataError),
        (b"\x7fELF", PerfDataError),
        (b"PERFILE2", PerfDataError),
        (b"2ELIFREP" + bytes(96), UnsupportedError),
        (b"PERFFILE" + bytes(96), UnsupportedError),
    ],
)
def test_file_of_another_format_raises(
    tmp_path: Path, content: bytes, error: type[RtitError]
) -> None:
    path = tmp_path / "file"
    path.write_bytes(content)
    with pytest.raises(error):
        PerfData(path)


def test_devices_and_folders_raise(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError):
        PerfData(tmp_path)
    with pytest.raises(UnsupportedError):
        PerfData("/dev/null")


def test_missing_recording_raises_file_not_found(tmp_path: Path) -> None:
    path = tmp_path / "missing"
    with pytest.raises(PerfDataError) as raised:
        PerfData(path)
    error = raised.value
    assert str(error) == f"no recording at {path}"
    assert isinstance(error, FileNotFoundError)
    assert (error.filename, error.errno, error.source) == (str(path), errno.ENOENT, str(path))


def test_views_outlive_the_file(tmp_path: Path) -> None:
    path = tmp_path / "perf.data"
    record_something(path)
    with PerfData(path) as file:
        pieces = file.auxtrace_buffers()[AuxBuffer(-1, 7)]
    assert bytes(pieces[0].data) == PSB


def test_pipe_mode_file_is_read(tmp_path: Path) -> None:
    """The same records after the short header; attrs, ids and features are records, too."""
    path = tmp_path / "perf.data"
    record_something(path)
    data = path.read_bytes()
    start, size = struct.unpack_from("<QQ", data, 40)
    attrs = b""
    for i in range(2):
        body = data[120 + 144 * i :][:128] + struct.pack("<Q", i + 1)
        attrs += struct.pack("<IHH", 64, 0, 8 + len(body)) + body
    piped = struct.pack("<8sQ", b"PERFILE2", 16) + attrs + data[start : start + size]
    path.write_bytes(piped)
    with PerfData(path) as file:
        assert file.incomplete is None
        assert [event.ids for event in file.events] == [(1,), (2,)]
        assert [event.name for event in file.events] == ["intel_pt/pt,mtc,tsc,branch/u", "dummy:u"]
        assert file.cpuid == "GenuineIntel,6,94,3"
        last = list(file.records())[-1]
        assert (last.name, last.time) == ("EXIT", 13)
        assert [p.size for p in file.auxtrace_buffers()[AuxBuffer(-1, 7)]] == [16, 32]
    path.write_bytes(piped[:-1])
    with PerfData(path) as file:
        assert file.incomplete is not None
        assert list(file.records())[-1].name == "AUXTRACE"
