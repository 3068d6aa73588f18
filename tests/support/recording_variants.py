"""A recording rewritten to the layout of `perf record --aux-sample` or of `perf record -z`."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from pathlib import Path

from rtit.perfdata import PerfData, SampleType
from rtit.perfdata.attr import WRITTEN_ATTR_SIZE
from rtit.perfdata.features import Feature, pack_auxtrace_index
from rtit.perfdata.file_scan import FILE_HEADER, FLAGS_OFFSET, SECTION_ENTRY, RecordHeader
from rtit.perfdata.records import FIRST_USER_TYPE, RECORD_HEADER, SAMPLE

AUXTRACE, ID_INDEX = 71, 69
# struct perf_event_attr
SAMPLE_TYPE_AT, AUX_SAMPLE_SIZE_AT = 24, 112
SIDEBAND_ID = 2


def sample_record(ip: int, pid: int, tid: int, time: int, data: bytes, more: bytes = b"") -> bytes:
    """Return a SAMPLE record of IDENTIFIER, IP, TID, TIME, `more` and AUX."""
    body = struct.pack("<QQiiQ", SIDEBAND_ID, ip, pid, tid, time) + more
    body += struct.pack("<Q", len(data)) + data
    return RECORD_HEADER.pack(SAMPLE, 2, RECORD_HEADER.size + len(body)) + body


def write_sampled_recording(
    source: Path,
    output: Path,
    cuts: Sequence[tuple[int, int]],
    *,
    kinds: int = 0,
    more: bytes = b"",
) -> int:
    """Write a recording of one thread whose packets are in samples, as of `perf --aux-sample`.

    Each of `cuts` (start, end) of the stream becomes a sample of the sideband's event, which also
    has the sample types `kinds` with the bytes `more`. Returns the thread.
    """
    data = source.read_bytes()
    with PerfData(source) as file:
        ((queue, pieces),) = file.auxtrace_buffers().items()
        convert = file.time_conversion
        assert convert is not None
        stream = b"".join(piece.data[:] for piece in pieces)
        scan = file._scan
        headers: list[RecordHeader] = list(scan.iterate_headers())
        start, attrs = scan._start, file.header.attrs
        pid = process_of(file, queue.tid)
        last = convert.to_nanoseconds(pieces[-1].reference)
        first = convert.to_nanoseconds(pieces[0].reference)
    assert attrs is not None
    ids = struct.pack("<QQQqq", 1, SIDEBAND_ID, 0, -1, queue.tid)
    # perf has it before AUXTRACE_INFO, and needs it there.
    body = bytearray(RECORD_HEADER.pack(ID_INDEX, 0, RECORD_HEADER.size + len(ids)) + ids)
    for header in headers:
        if header.type != AUXTRACE:
            body += data[header.offset : header.offset + header.size]
    for number, (begin, stop) in enumerate(cuts, 1):
        when = first + (last - first) * number // len(cuts)
        body += sample_record(0, pid, queue.tid, when, stream[begin:stop], more)
    head = bytearray(data[:start])
    sideband = attrs.offset + WRITTEN_ATTR_SIZE + SECTION_ENTRY.size
    (kind,) = struct.unpack_from("<Q", head, sideband + SAMPLE_TYPE_AT)
    struct.pack_into("<Q", head, sideband + SAMPLE_TYPE_AT, kind | SampleType.AUX | kinds)
    struct.pack_into("<I", head, sideband + AUX_SAMPLE_SIZE_AT, 4096)
    struct.pack_into("<Q", head, 48, len(body))
    # An index without entries: perf prints where branches led only if there is one.
    struct.pack_into("<4Q", head, FLAGS_OFFSET, 1 << Feature.AUXTRACE, 0, 0, 0)
    index = pack_auxtrace_index([])
    table = SECTION_ENTRY.pack(len(head) + len(body) + SECTION_ENTRY.size, len(index))
    output.write_bytes(bytes(head + body) + table + index)
    return queue.tid


def process_of(file: PerfData, tid: int) -> int:
    """Return the process of a thread."""
    return next(
        record.sample_id.pid or tid
        for record in file.records()
        if record.sample_id is not None and record.sample_id.tid == tid
    )


COMPRESSED_TYPES = 81
BLOCK_SIZE = 30_001
"""A COMPRESSED_TYPES record has 16 bits for its size."""
UNPACKED_SIZE = 1 << 20
"""Room that perf reserves for the unpacked bytes of a record."""
ZSTD_FRAME_HEADER = bytes.fromhex("28b52ffd") + bytes([0x00, 13 << 3])
"""No checksum, no dictionary, window of 8 MB (RFC 8878, section 3.1.1.1)."""


def zstd_raw_block(data: bytes, *, last: bool = False) -> bytes:
    """Return an uncompressed block (section 3.1.1.2)."""
    return (int(last) | len(data) << 3).to_bytes(3, "little") + data


def write_compressed_recording(source: Path, output: Path) -> None:
    """Write a recording whose kernel records are in COMPRESSED_TYPES records; all others stay.

    A kernel record may span two COMPRESSED_TYPES records, but not across a record that stays.
    """
    data = source.read_bytes()
    words = list(FILE_HEADER.unpack_from(data))
    start, size = words[5:7]
    with PerfData(source) as file:
        features = sorted(file.header.features)
    sections = {
        feature: data[offset : offset + length]
        for feature, (offset, length) in zip(
            features,
            SECTION_ENTRY.iter_unpack(data[start + size :][: 16 * len(features)]),
            strict=True,
        )
    }
    body, index, waiting, begin = bytearray(), [], bytearray(), ZSTD_FRAME_HEADER

    def flush() -> None:
        nonlocal begin
        for at in range(0, len(waiting), BLOCK_SIZE):
            block = begin + zstd_raw_block(bytes(waiting[at : at + BLOCK_SIZE]))
            body.extend(
                RECORD_HEADER.pack(COMPRESSED_TYPES, 0, RECORD_HEADER.size + len(block)) + block
            )
            begin = b""
        waiting.clear()

    for number, record in _records(data[start : start + size]):
        if number < FIRST_USER_TYPE:
            waiting += record
            continue
        flush()
        if number == AUXTRACE:
            index.append(start + len(body))
        body += record
    flush()
    sections[Feature.AUXTRACE] = pack_auxtrace_index(index)
    # version, the type of Zstandard, level, ratio, room for unpacked bytes
    sections[Feature.COMPRESSED_TYPES] = struct.pack("<5I", 1, 1, 1, 1, UNPACKED_SIZE)
    words[6] = len(body)
    words[9] |= 1 << Feature.COMPRESSED_TYPES
    at = start + len(body) + SECTION_ENTRY.size * len(sections)
    table = tail = b""
    for _, section in sorted(sections.items()):
        table += SECTION_ENTRY.pack(at + len(tail), len(section))
        tail += section
    output.write_bytes(
        FILE_HEADER.pack(*words) + data[FILE_HEADER.size : start] + body + table + tail
    )


def _records(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield type and bytes of each record; an AUXTRACE record includes its data."""
    at = 0
    while at < len(data):
        number, _, size = RECORD_HEADER.unpack_from(data, at)
        if number == AUXTRACE:
            size += struct.unpack_from("<Q", data, at + RECORD_HEADER.size)[0]
        yield number, data[at : at + size]
        at += size
