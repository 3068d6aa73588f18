"""Layout of capture events, and the file format."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rtit.capture import rust_events
from rtit.capture.events import (
    EVENT_RECORD,
    KINDS_WITH_BLOB,
    CaptureEvent,
    EventKind,
    EventLog,
    MmapEvent,
    ResumeReason,
    count_branches,
    iterate_events,
    parse_mmap,
)
from rtit.errors import InputError

# A conditional branch of 2 bytes at 0x401000, taken to 0x401020, as the tracer's layout has it.
CONDITIONAL = bytes.fromhex(
    "0101020007000000 0010400000000000 2010400000000000 0900000000000000 0000000000000000"
)
MMAP_BLOB = struct.pack("<QIIIIQQ", 0x2000, 5, 2, 254, 1, 77, 0) + "/tmp/naïve".encode() + b"\xff\0"


def test_record_layout_is_40_bytes() -> None:
    assert EVENT_RECORD.size == 40
    assert EVENT_RECORD.unpack(CONDITIONAL) == (1, 1, 2, 7, 0x401000, 0x401020, 9, 0)
    assert [kind.value for kind in EventKind] == list(range(1, 22))
    assert [resume.value for resume in ResumeReason] == list(range(5))


def test_iterate_events_yields_fields_and_blobs() -> None:
    comm = EVENT_RECORD.pack(EventKind.COMM, 1, 0, 7, 6, 0, 10, 1)
    first, second = iterate_events((CONDITIONAL + comm, [b"unused", b"name"]))
    assert first == CaptureEvent(EventKind.CONDITIONAL, 1, 2, 7, 0x401000, 0x401020, 9, 0, b"")
    assert (second.kind, second.ip, second.blob) == (EventKind.COMM, 6, b"name")


def test_parse_mmap_decodes_every_field_of_the_mapping() -> None:
    mapping = parse_mmap(MMAP_BLOB)
    assert mapping == MmapEvent(0x2000, 5, 2, 254, 1, 77, 0, "/tmp/naïve\udcff")
    assert parse_mmap(MMAP_BLOB + b"more") == mapping


@pytest.mark.parametrize("size", range(len(MMAP_BLOB)))
def test_truncated_mmap_blob_raises_input_error(size: int) -> None:
    with pytest.raises(InputError, match="truncated"):
        parse_mmap(MMAP_BLOB[:size])


@pytest.mark.parametrize("kind", [0, 22, 255])
def test_unknown_kind_raises_input_error(kind: int) -> None:
    bad = bytes([kind]) + CONDITIONAL[1:]
    with pytest.raises(InputError, match="unknown kind") as caught:
        list(iterate_events((CONDITIONAL + bad, [])))
    assert (caught.value.offset, caught.value.value) == (40, kind)


@pytest.mark.parametrize("kind", sorted(KINDS_WITH_BLOB))
def test_missing_blob_raises_input_error(kind: EventKind) -> None:
    with pytest.raises(InputError, match="the data of"):
        list(iterate_events((EVENT_RECORD.pack(kind, 0, 0, 1, 0, 0, 0, 2), [b"0", b"1"])))


def test_truncated_record_raises_input_error() -> None:
    found: list[CaptureEvent] = []
    with pytest.raises(InputError, match="truncated") as caught:
        found.extend(iterate_events((CONDITIONAL + CONDITIONAL[:39], [])))
    assert caught.value.offset == 40


BATCHES = st.lists(
    st.tuples(st.integers(0, 3).map(lambda n: CONDITIONAL * n), st.lists(st.binary(max_size=9)))
)


@given(batches=BATCHES)
def test_saved_log_loads_equal(
    batches: list[tuple[bytes, list[bytes]]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    log = EventLog()
    for records, blobs in batches:
        log.append(records, blobs)
    path = tmp_path_factory.getbasetemp() / "log"
    log.save(path)
    again = EventLog.load(path)
    assert list(again) == list(log) == [(records, tuple(blobs)) for records, blobs in batches]
    assert len(again) == len(batches)
    assert sum(1 for _ in again.events()) == sum(len(r) // 40 for r, _ in batches)


def save_log(tmp_path: Path) -> bytes:
    log = EventLog()
    log.append(CONDITIONAL, [b"ab", b""])
    log.save(tmp_path / "log")
    return (tmp_path / "log").read_bytes()


def test_saved_event_log_has_documented_header_and_sizes(tmp_path: Path) -> None:
    header = b"rtit-events\0\x01\0\0\0"
    sizes = struct.pack("<IIII", 40, 2, 2, 0)
    assert save_log(tmp_path) == header + sizes + CONDITIONAL + b"ab"


def test_truncated_log_raises_input_error(tmp_path: Path) -> None:
    whole = save_log(tmp_path)
    path = tmp_path / "cut"
    for size in range(len(whole)):
        path.write_bytes(whole[:size])
        if size == 16:
            assert len(EventLog.load(path)) == 0
            continue
        with pytest.raises(InputError) as caught:
            EventLog.load(path)
        assert caught.value.source == str(path)
        assert caught.value.offset is not None


@pytest.mark.parametrize(
    ("sizes", "offset"),
    [((41, 0), 16), ((40, 0xFFFF_FFFF), 24), ((0xFFFF_FFF0, 0), 24)],
    ids=["no multiple of 40", "more blobs than the file has", "more records than the file has"],
)
def test_log_with_bad_sizes_raises_input_error(
    tmp_path: Path, sizes: tuple[int, int], offset: int
) -> None:
    path = tmp_path / "bad"
    path.write_bytes(b"rtit-events\0\x01\0\0\0" + struct.pack("<II", *sizes))
    with pytest.raises(InputError) as caught:
        EventLog.load(path)
    assert caught.value.offset == offset


def test_count_branches_counts_kinds_with_packets() -> None:
    names = "CONDITIONAL JUMP CALL RETURN INDIRECT_JUMP INDIRECT_CALL FAR SYSCALL RESUME MMAP"
    kinds = [EventKind[name] for name in names.split()]
    # Fields that hold the number of a kind do not count.
    records = b"".join(EVENT_RECORD.pack(kind, 1, 1, 1, 1, 1, 1, 1) for kind in kinds)
    assert count_branches(records) == 6


def test_rust_events_are_up_to_date() -> None:
    if not rust_events.TARGET.parent.is_dir():
        pytest.skip("no source tree")
    assert rust_events.main(["--check"]) == 0
