"""Records of newer kernels and other machines: short clocks, PEBS counters, pauses, attrs of other
sizes.

Layouts are typed from include/uapi/linux/perf_event.h and perf's own event.h.
"""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rtit.errors import PerfDataError
from rtit.perfdata import PerfData, TimeConversion, Writer, reader, records
from rtit.perfdata.aux import index_event_ids
from rtit.perfdata.file_scan import FILE_HEADER
from rtit.perfdata.records import RECORD_HEADER
from rtit.trace import Trace
from rtit.trace.recording.decoder_settings import describe_clocks
from rtit.trace.recording.summary import describe_settings, summarize_recording

U64 = st.integers(0, (1 << 64) - 1)
ATTR = 128


def clock_of_perf(cycles: int, shift: int, mult: int, zero: int, start: int, mask: int) -> int:
    """tsc_to_perf_time, with cap_user_time_short: unsigned 64-bit arithmetic."""
    whole = (1 << 64) - 1
    cycles = (start + (((cycles - start) & whole) & mask)) & whole
    quotient, rest = cycles >> shift, cycles & ((1 << shift) - 1)
    return (zero + quotient * mult + (rest * mult >> shift)) & whole


@given(U64, st.integers(0, 63), st.integers(1, (1 << 32) - 1), U64, U64, st.integers(1, 64))
def test_conversion_of_clock_below_64_bits_equals_that_of_perf(
    cycles: int, shift: int, mult: int, zero: int, start: int, bits: int
) -> None:
    mask = (1 << bits) - 1
    clock = TimeConversion(shift, mult, zero, start, mask)
    expected = clock_of_perf(cycles, shift, mult, zero, start, mask)
    assert clock.to_nanoseconds(cycles) == expected
    assert clock.nanoseconds(cycles) == expected


@given(st.lists(U64, max_size=20), st.integers(0, 63), st.integers(1, (1 << 32) - 1), U64)
def test_array_conversion_matches_scalar(
    ticks: list[int], shift: int, mult: int, zero: int
) -> None:
    clock = TimeConversion(shift, mult, zero)
    found = clock.nanoseconds(np.array(ticks, np.uint64))
    assert found.dtype == np.uint64
    assert found.tolist() == [clock.to_nanoseconds(each) for each in ticks]
    times = np.array(ticks, np.uint64)
    assert clock.ticks(times).tolist() == [clock.to_tsc(each) for each in ticks]


def with_records(path: Path, more: bytes) -> None:
    """Append records to an unclosed file of rtit."""
    content = bytearray(path.read_bytes())
    words = list(FILE_HEADER.unpack_from(content))
    words[6] += len(more)
    FILE_HEADER.pack_into(content, 0, *words)
    path.write_bytes(bytes(content) + more)


def opened_file(path: Path) -> Writer:
    writer = Writer(path, config=0x2401, cpuid="GenuineIntel,6,94,3")
    writer.flush()
    return writer


@pytest.mark.parametrize("short", [0, 1])
def test_time_conv_record_supplies_the_clock_conversion(short: int, tmp_path: Path) -> None:
    """time_shift, time_mult, time_zero, time_cycles, time_mask, cap_user_time_zero, ..._short."""
    path = tmp_path / "perf.data"
    opened_file(path)
    # Without the clock of the file's AUXTRACE_INFO, that of the record counts.
    content = path.read_bytes()
    with PerfData(path) as data:
        header = next(each for each in data._scan.iterate_headers() if each.type == 70)
    path.write_bytes(
        content[: header.offset] + struct.pack("<I", 78) + content[header.offset + 4 :]
    )
    body = struct.pack("<5QBB6x", 4, 7, 1000, 0x5000, 0xFFF, 1, short)
    with_records(path, RECORD_HEADER.pack(79, 0, RECORD_HEADER.size + len(body)) + body)
    with PerfData(path) as data:
        clock = data.time_conversion
        assert clock is not None
        cycles = 0x5000 + (0x9123 - 0x5000 & 0xFFF) if short else 0x9123
        assert clock.to_nanoseconds(0x9123) == 1000 + (cycles * 7 >> 4)


def test_pebs_counters_name_their_events(tmp_path: Path) -> None:
    """u64 hw_id, then the sample_id of the event: TID, TIME, IDENTIFIER."""
    path = tmp_path / "perf.data"
    opened_file(path)
    body = struct.pack("<Q", 3) + struct.pack("<iiQQ", 7, 7, 5, 2)
    with_records(path, RECORD_HEADER.pack(21, 0, RECORD_HEADER.size + len(body)) + body)
    with PerfData(path) as data:
        assert {counter: event.name for counter, event in data.pebs_counters.items()} == {
            3: "dummy:u"
        }
        assert "PEBS records of counter 3: dummy:u" in list(describe_settings(data))


def header_feature(number: int, body: bytes) -> bytes:
    return (
        RECORD_HEADER.pack(80, 0, RECORD_HEADER.size + 8 + len(body))
        + struct.pack("<Q", number)
        + body
    )


def test_info_names_clocks(tmp_path: Path) -> None:
    """HEADER_CLOCK_DATA: u32 version, u32 clockid, u64 wall clock, u64 that clock, in ns. The
    second event has use_clockid, bit 25 of the flags, and CLOCK_MONOTONIC_RAW, 4.
    """
    path = tmp_path / "perf.data"
    opened_file(path)
    # 2000-01-01 is 946684800 s after 1970
    wall = struct.pack("<IIQQ", 1, 4, 946_684_800_000_000_007, 5_000_000_003)
    with_records(path, header_feature(29, wall))
    content = bytearray(path.read_bytes())
    (attrs,) = struct.unpack_from("<Q", content, 24)
    second = attrs + ATTR + 16
    (flags,) = struct.unpack_from("<Q", content, second + 40)
    struct.pack_into("<Q", content, second + 40, flags | 1 << 25)
    struct.pack_into("<i", content, second + 92, 4)
    path.write_bytes(content)
    with PerfData(path) as data:
        words = list(describe_clocks(data))
    assert words == [
        "perf's, in ns = 0x0 + (TSC * 1024 >> 10)",
        "records have times of CLOCK_MONOTONIC_RAW: not perf's, so that packets have others",
        "CLOCK_MONOTONIC_RAW 5.000000003 was 2000-01-01 00:00:00.000000007 UTC",
    ]


def test_truncated_wall_clock_raises(tmp_path: Path) -> None:
    path = tmp_path / "perf.data"
    opened_file(path)
    with_records(path, header_feature(29, bytes(8)))
    with PerfData(path) as data, pytest.raises(PerfDataError, match="HEADER_CLOCK_DATA"):
        list(describe_clocks(data))


def test_guest_ids_of_id_index(tmp_path: Path) -> None:
    """ID_INDEX: u64 nr; for each id u64 id, idx, cpu, tid; after them for each u64 machine_pid,
    vcpu. Thread 7 of the machine in process 1234 is not thread 7 of the host.
    """
    path = tmp_path / "perf.data"
    writer = opened_file(path)
    writer.comm(7, 7, 5, "ours")
    writer.flush()
    index = struct.pack("<Q", 2) + struct.pack("<8Q", 2, 0, 0, 7, 77, 0, 0, 7)
    index += struct.pack("<4Q", 0, 0, 1234, 3)
    comm = struct.pack("<ii8s", 7, 7, b"theirs") + struct.pack("<iiQQ", 7, 7, 9, 77)
    more = RECORD_HEADER.pack(69, 0, RECORD_HEADER.size + len(index)) + index
    more += RECORD_HEADER.pack(3, 0, RECORD_HEADER.size + len(comm)) + comm
    with_records(path, more)
    with Trace(path) as trace:
        assert trace.data.guest_ids == {77: (1234, 3)}
        assert trace.comms == {7: "ours"}
        assert (
            summarize_recording(trace).machine["guest 1234"].startswith("records of 1 of its CPUs")
        )
    # an older perf has no machines there
    path.write_bytes(path.read_bytes().replace(struct.pack("<QQ", 1234, 3), bytes(16)))
    with Trace(path) as trace:
        assert trace.comms == {7: "theirs"}


@pytest.mark.parametrize(
    ("limit", "message"),
    [
        ("_MAX_GUEST_IDS", "events of virtual machines beyond 2"),
        ("_MAX_GUESTS", "machines beyond 2"),
    ],
)
def test_too_many_guest_ids_raise(
    limit: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Records of omitted guests would count for the host."""
    path = tmp_path / "perf.data"
    opened_file(path)
    for count in (2, 3):
        index = struct.pack("<Q", count)
        index += b"".join(struct.pack("<4Q", 70 + each, 0, 0, 7) for each in range(count))
        index += b"".join(struct.pack("<2Q", 1000 + each, 0) for each in range(count))
        with_records(path, RECORD_HEADER.pack(69, 0, RECORD_HEADER.size + len(index)) + index)
        monkeypatch.setattr(reader, limit, 2)
        with PerfData(path) as data:
            if count == 2:
                assert len(data.guest_ids) == 2
                continue
            with pytest.raises(PerfDataError, match=message):
                data.guest_cpus  # noqa: B018


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(-1, 2), st.integers(-1, 2))))
def test_event_id_index_returns_last_entry(rows: list[tuple[int, int, int]]) -> None:
    """The last entry of an id counts."""
    entries = b"".join(struct.pack("<QQqq", number, 0, cpu, tid) for number, cpu, tid in rows)
    found = index_event_ids([records.IdIndex(0, 69, 0, 0, None, len(rows), entries)], "")
    known = {number: (cpu, tid) for number, cpu, tid in rows if cpu >= 0 or tid >= 0}
    assert found == known


def test_aux_action_is_paused_pause_or_resume(tmp_path: Path) -> None:
    """attr.aux_action, after aux_sample_size: bit 0 starts paused, 1 pauses, 2 resumes."""
    path = tmp_path / "perf.data"
    Writer(path, config=0x2401, cpuid="GenuineIntel,6,94,3").close()
    content = bytearray(path.read_bytes())
    (attrs,) = struct.unpack_from("<Q", content, 24)
    struct.pack_into("<I", content, attrs + 116, 1)
    struct.pack_into("<I", content, attrs + ATTR + 16 + 116, 2 | 4)
    path.write_bytes(content)
    with PerfData(path) as data:
        words = list(describe_settings(data))
    assert "the trace begins paused" in words
    assert "samples that pause the trace: dummy:u" in words
    assert "samples that resume the trace: dummy:u" in words


@pytest.mark.parametrize("size", [64, 72, 80, 96, 104, 112, 120, 128, 136, 200, 1024])
def test_attrs_of_every_size_are_read(size: int, tmp_path: Path) -> None:
    """PERF_ATTR_SIZE_VER0 is 64; bytes after the known fields are skipped, missing ones are 0. The
    decoded path is the same.
    """
    path = tmp_path / "perf.data"
    packets = bytes.fromhex("0282028202820282028202820282028202230000")
    with Writer(path, config=0x2401, cpuid="GenuineIntel,6,94,3") as out:
        out.comm(7, 7, 5, "name")
        out.auxtrace(7, 7, packets, None, 1)
    content = path.read_bytes()
    words = list(FILE_HEADER.unpack_from(content))
    entry, start, data_start = words[2], words[3], words[5]
    attrs = [content[at : at + entry] for at in range(start, data_start, entry)]
    new = b""
    for each in attrs:
        attr = (each[:4] + struct.pack("<I", size) + each[8:ATTR])[:size].ljust(size, b"\xff")
        new += attr + each[ATTR:]
    grown = len(new) - (data_start - start)
    words[2], words[4], words[5] = size + 16, len(new), data_start + grown
    words[8:12] = [0] * 4
    path.write_bytes(
        FILE_HEADER.pack(*words) + content[FILE_HEADER.size : start] + new + content[data_start:]
    )
    with Trace(path) as trace:
        assert [event.attr.size for event in trace.data.events] == [size] * 2
        assert trace.data.intel_pt is not None
        assert trace.data.intel_pt.attr.config == 0x2401
        assert trace.comms == {7: "name"}
        assert trace.streams[0].size == len(packets) + -len(packets) % 8
