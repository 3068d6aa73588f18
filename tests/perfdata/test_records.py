"""Records that rtit does not write, read from hand-made files."""

from __future__ import annotations

import struct
from dataclasses import fields
from pathlib import Path

import pytest

from rtit.errors import PerfDataError, UnsupportedError
from rtit.perfdata import AuxBuffer, PerfData, TimeConversion, records
from rtit.perfdata.records import Record, SampleId

TID, TIME, ID, CPU, STREAM_ID, IDENTIFIER = 1 << 1, 1 << 2, 1 << 6, 1 << 7, 1 << 9, 1 << 16
IP, ADDR, PERIOD = 1 << 0, 1 << 3, 1 << 8
SAMPLE_ID_ALL = 1 << 18
EVERYDAY = TID | TIME | CPU | IDENTIFIER


def attr(sample_type: int, flags: int = SAMPLE_ID_ALL) -> bytes:
    return struct.pack("<IIQQQQQ", 8, 64, 0, 1, sample_type, 0, flags).ljust(64, b"\0")


def record(number: int, body: bytes, misc: int = 0) -> bytes:
    return struct.pack("<IHH", number, misc, 8 + len(body)) + body


def make(path: Path, data: bytes, *attrs: tuple[bytes, tuple[int, ...]]) -> Path:
    """Write a file with these records; each attr has its event ids."""
    ids = b"".join(struct.pack(f"<{len(numbers)}Q", *numbers) for _, numbers in attrs)
    entries, section_offset = b"", 104
    for text, numbers in attrs:
        entries += text + struct.pack("<QQ", section_offset, 8 * len(numbers))
        section_offset += 8 * len(numbers)
    start = section_offset + len(entries)
    header = struct.pack(
        "<8sQQQQQQ", b"PERFILE2", 104, 80, section_offset, len(entries), start, len(data)
    )
    path.write_bytes(header.ljust(104, b"\0") + ids + entries + data)
    return path


def read(tmp_path: Path, data: bytes, *attrs: tuple[bytes, tuple[int, ...]]) -> list[Record]:
    with PerfData(make(tmp_path / "perf.data", data, *attrs)) as file:
        return list(file.records())


def read_one_record(tmp_path: Path, number: int, body: bytes, misc: int = 0) -> Record:
    """Read a record with the body and a common sample_id."""
    tail = struct.pack("<IIQIIQ", 7, 8, 99, 3, 0, 5) if number < 64 else b""
    (found,) = read(tmp_path, record(number, body + tail, misc), (attr(EVERYDAY), (5,)))
    if number < 64:
        assert found.sample_id == SampleId(pid=7, tid=8, time=99, id=5, cpu=3)
    return found


def test_mmap_fields_are_read(tmp_path: Path) -> None:
    body = struct.pack(
        "<IIQQQ", 0xFFFFFFFF, 0, 0xFFFFFFFF81000000, 0x1000, 5
    ) + b"[kernel]\0".ljust(16, b"\0")
    found = read_one_record(tmp_path, 1, body, 1)
    assert isinstance(found, records.Mmap)
    assert (found.pid, found.tid, found.address) == (-1, 0, 0xFFFFFFFF81000000)
    assert (found.length, found.pgoff, found.path) == (0x1000, 5, "[kernel]")


def test_lost_fields_are_read(tmp_path: Path) -> None:
    found = read_one_record(tmp_path, 2, struct.pack("<QQ", 5, 1000))
    assert isinstance(found, records.Lost)
    assert (found.id, found.lost) == (5, 1000)


def test_lost_samples_fields_are_read(tmp_path: Path) -> None:
    found = read_one_record(tmp_path, 13, struct.pack("<Q", 17))
    assert isinstance(found, records.LostSamples)
    assert found.lost == 17


@pytest.mark.parametrize("misc", [0, 1 << 13])
def test_switch_fields_are_read(tmp_path: Path, misc: int) -> None:
    found = read_one_record(tmp_path, 14, b"", misc)
    assert isinstance(found, records.Switch)
    assert found.is_out == bool(misc)


def test_switch_cpu_wide_fields_are_read(tmp_path: Path) -> None:
    found = read_one_record(tmp_path, 15, struct.pack("<II", 20, 21), 1 << 13)
    assert isinstance(found, records.SwitchCpuWide)
    assert (found.other_pid, found.other_tid, found.is_out) == (20, 21, True)


def test_ksymbol_fields_are_read(tmp_path: Path) -> None:
    found = read_one_record(
        tmp_path, 17, struct.pack("<QIHH", 0xFFFFFFFFC0000000, 0x40, 1, 1) + b"bpf_prog"
    )
    assert isinstance(found, records.Ksymbol)
    assert (found.address, found.length, found.kind, found.flags) == (
        0xFFFFFFFFC0000000,
        0x40,
        1,
        1,
    )
    assert found.symbol == "bpf_prog"


def test_aux_output_hw_id_fields_are_read(tmp_path: Path) -> None:
    found = read_one_record(tmp_path, 21, struct.pack("<Q", 3))
    assert isinstance(found, records.AuxOutputHwId)
    assert found.hw_id == 3


def test_id_index_fields_are_read(tmp_path: Path) -> None:
    body = struct.pack("<Q", 2) + struct.pack("<QQqqQQqq", 1, 0, 2, -1, 2, 1, -1, 77)
    found = read_one_record(tmp_path, 69, body)
    assert isinstance(found, records.IdIndex)
    assert found.entries == [(1, 0, 2, -1), (2, 1, -1, 77)]


def test_time_conv_fields_are_read(tmp_path: Path) -> None:
    data = record(79, struct.pack("<QQQ", 31, 1 << 30, 1000))
    with PerfData(make(tmp_path / "perf.data", data, (attr(EVERYDAY), (5,)))) as file:
        assert file.time_conversion == TimeConversion(31, 1 << 30, 1000)


def test_unknown_type_is_raw_record(tmp_path: Path) -> None:
    found = read_one_record(tmp_path, 19, struct.pack("<Q", 1) + b"/\0\0\0\0\0\0\0")
    assert isinstance(found, records.RawRecord)
    assert (found.name, found.body) == ("CGROUP", struct.pack("<Q", 1) + b"/\0\0\0\0\0\0\0")
    unknown = read_one_record(tmp_path, 4711, b"12345678")
    assert (unknown.name, unknown.type) == ("TYPE_4711", 4711)


def test_every_fixed_field_of_a_sample_is_read(tmp_path: Path) -> None:
    kinds = IDENTIFIER | IP | TID | TIME | ADDR | ID | STREAM_ID | CPU | PERIOD
    # identifier, ip, pid, tid, time, addr, id, stream_id, cpu, reserved, period
    body = (
        struct.pack("<QQIIQQQQIIQ", 5, 0x401000, 7, 8, 99, 0x7FFF, 5, 6, 3, 0, 4000) + b"restrest"
    )
    (found,) = read(tmp_path, record(9, body), (attr(kinds), (5,)))
    assert isinstance(found, records.Sample)
    assert (found.ip, found.address, found.period, found.event) == (0x401000, 0x7FFF, 4000, 0)
    assert found.sample_id == SampleId(pid=7, tid=8, time=99, id=5, stream_id=6, cpu=3)
    assert found.body == b"restrest"


def test_every_field_of_a_sample_id_is_read(tmp_path: Path) -> None:
    kinds = TID | TIME | ID | STREAM_ID | CPU | IDENTIFIER
    tail = struct.pack("<IIQQQIIQ", 7, 8, 99, 5, 6, 3, 0, 5)
    (found,) = read(tmp_path, record(14, tail), (attr(kinds), (5,)))
    assert found.sample_id == SampleId(pid=7, tid=8, time=99, id=5, stream_id=6, cpu=3)


def test_identifier_selects_layout(tmp_path: Path) -> None:
    short = record(14, struct.pack("<IIQ", 1, 2, 11))
    long = record(14, struct.pack("<IIQIIQ", 7, 8, 99, 3, 0, 12))
    made_up = record(14, struct.pack("<IIQ", 0, 0, 0))
    sample = record(9, struct.pack("<QIIQII", 12, 7, 8, 99, 3, 0))
    unknown = record(9, struct.pack("<QIIQII", 13, 7, 8, 99, 3, 0))
    found = read(
        tmp_path,
        short + long + made_up + sample + unknown,
        (attr(TID | IDENTIFIER), (10, 11)),
        (attr(EVERYDAY), (12,)),
    )
    assert found[0].sample_id == SampleId(pid=1, tid=2, id=11)
    assert found[1].sample_id == SampleId(pid=7, tid=8, time=99, id=12, cpu=3)
    assert found[2].sample_id == SampleId(pid=0, tid=0, id=0)
    assert isinstance(found[3], records.Sample)
    assert (found[3].event, found[3].time) == (1, 99)
    assert isinstance(found[4], records.RawRecord)


def test_without_sample_id_all_only_samples_have_ids(tmp_path: Path) -> None:
    (found,) = read(tmp_path, record(14, b""), (attr(EVERYDAY, flags=0), (5,)))
    assert found.sample_id is None
    assert found.time is None


def test_aux_buffers_are_of_cpus_or_threads(tmp_path: Path) -> None:
    def piece(tid: int, cpu: int, offset: int, data: bytes) -> bytes:
        fields = struct.pack("<QQQIIII", len(data), offset, 1, 0, tid, cpu, 0)
        return record(71, fields) + data

    none = 0xFFFFFFFF
    data = piece(9, 2, 0, b"a" * 8) + piece(9, none, 0, b"b" * 8) + piece(10, 2, 8, b"c" * 16)
    with PerfData(make(tmp_path / "perf.data", data, (attr(EVERYDAY), (5,)))) as file:
        queues = file.auxtrace_buffers()
        assert list(queues) == [AuxBuffer(2, -1), AuxBuffer(-1, 9)]
        assert [bytes(p.data) for p in queues[AuxBuffer(2, -1)]] == [b"a" * 8, b"c" * 16]
        assert [p.aux_offset for p in queues[AuxBuffer(2, -1)]] == [0, 8]
        raw = (tmp_path / "perf.data").read_bytes()
        for piece_ in queues[AuxBuffer(2, -1)]:
            assert raw[piece_.file_offset :][: piece_.size] == bytes(piece_.data)


@pytest.mark.parametrize(
    ("number", "body"),
    [
        (3, b""),
        (10, bytes(40)),
        (11, bytes(24)),
        (20, struct.pack("<QHH", 0, 60, 60) + bytes(28)),
        (69, struct.pack("<Q", 1 << 60)),
        (70, b""),
        (71, bytes(32)),
        (9, bytes(8)),
    ],
)
def test_record_too_short_for_its_type_raises(tmp_path: Path, number: int, body: bytes) -> None:
    path = make(
        tmp_path / "perf.data", record(68, b"") + record(number, body), (attr(EVERYDAY), (5,))
    )
    start = len(path.read_bytes()) - len(body) - 8
    with pytest.raises(PerfDataError) as caught, PerfData(path) as file:
        list(file.records())
    assert caught.value.offset == start
    assert caught.value.value == len(body) + 8


@pytest.mark.parametrize(("number", "body"), [(81, b""), (83, struct.pack("<Q", 8))])
def test_invalid_compressed_record_raises(tmp_path: Path, number: int, body: bytes) -> None:
    with pytest.raises(PerfDataError, match="compressed records: the data is not Zstandard"):
        read(tmp_path, record(number, body + b"12345678"), (attr(EVERYDAY), (5,)))


def test_aux_data_of_other_pmu_is_unsupported(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match="kind 3"):
        read(tmp_path, record(70, struct.pack("<II", 3, 0)), (attr(EVERYDAY), (5,)))


def test_tracing_data_follows_its_record(tmp_path: Path) -> None:
    """Pipe mode: the record has the number of bytes, rounded up to 8."""
    data = record(66, struct.pack("<II", 13, 0)) + b"x" * 16 + record(68, b"")
    found = read(tmp_path, data, (attr(EVERYDAY), (5,)))
    assert [r.name for r in found] == ["HEADER_TRACING_DATA", "FINISHED_ROUND"]


@pytest.mark.parametrize("kind", records.RECORD_CLASSES.values(), ids=lambda kind: kind.__name__)
def test_records_with_equal_fields_are_equal(kind: type[Record]) -> None:
    names = [each.name for each in fields(kind)]
    one, other = kind(*names), kind(*names)  # type: ignore[arg-type]
    assert one == other
    assert repr(one) == f"{kind.__name__}({', '.join(f'{name}={name!r}' for name in names)})"
    assert one != Record(*names[:5])  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        hash(one)
    for name in names:
        setattr(other, name, 1)
        assert one != other
        setattr(other, name, name)
