"""A recording as `perf record --aux-sample` has it: its packets in samples, a piece each."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from pathlib import Path

from rtit.perfdata import PerfData, SampleType
from rtit.perfdata.attr import WRITTEN
from rtit.perfdata.features import Feature, pack_index
from rtit.perfdata.header import FLAGS_OFFSET, SECTION
from rtit.perfdata.records import HEADER, SAMPLE
from rtit.perfdata.scan import Place

AUXTRACE, ID_INDEX = 71, 69
# struct perf_event_attr
SAMPLE_TYPE_AT, AUX_SAMPLE_SIZE_AT = 24, 112
SIDEBAND_ID = 2


def sample(ip: int, pid: int, tid: int, time: int, data: bytes, more: bytes = b"") -> bytes:
    """IDENTIFIER, IP, TID, TIME; `more` and AUX."""
    body = struct.pack("<QQiiQ", SIDEBAND_ID, ip, pid, tid, time) + more
    body += struct.pack("<Q", len(data)) + data
    return HEADER.pack(SAMPLE, 2, HEADER.size + len(body)) + body


def as_samples(
    source: Path,
    output: Path,
    cuts: Sequence[tuple[int, int]],
    *,
    kinds: int = 0,
    more: bytes = b"",
) -> int:
    """The recording of one thread with each of `cuts` (start, end) of its stream as a sample of the
    sideband's event, which also has `kinds` with the bytes `more`; returns the thread.
    """
    data = source.read_bytes()
    with PerfData(source) as file:
        ((queue, pieces),) = file.auxtrace_buffers().items()
        convert = file.time_conversion
        assert convert is not None
        stream = b"".join(piece.data for piece in pieces)
        scan = file._scan
        places: list[Place] = list(scan.walk())
        start, attrs = scan._start, file.header.attrs
        pid = process(file, queue.tid)
        last = convert.to_nanoseconds(pieces[-1].reference)
        first = convert.to_nanoseconds(pieces[0].reference)
    assert attrs is not None
    ids = struct.pack("<QQQqq", 1, SIDEBAND_ID, 0, -1, queue.tid)
    # perf has it before AUXTRACE_INFO, and needs it there.
    body = bytearray(HEADER.pack(ID_INDEX, 0, HEADER.size + len(ids)) + ids)
    for place in places:
        if place.number != AUXTRACE:
            body += data[place.offset : place.offset + place.size]
    for number, (begin, stop) in enumerate(cuts, 1):
        when = first + (last - first) * number // len(cuts)
        body += sample(0, pid, queue.tid, when, stream[begin:stop], more)
    head = bytearray(data[:start])
    sideband = attrs.offset + WRITTEN + SECTION.size
    (kind,) = struct.unpack_from("<Q", head, sideband + SAMPLE_TYPE_AT)
    struct.pack_into("<Q", head, sideband + SAMPLE_TYPE_AT, kind | SampleType.AUX | kinds)
    struct.pack_into("<I", head, sideband + AUX_SAMPLE_SIZE_AT, 4096)
    struct.pack_into("<Q", head, 48, len(body))
    # An index without entries: perf prints where branches led only if there is one.
    struct.pack_into("<4Q", head, FLAGS_OFFSET, 1 << Feature.AUXTRACE, 0, 0, 0)
    index = pack_index([])
    table = SECTION.pack(len(head) + len(body) + SECTION.size, len(index))
    output.write_bytes(bytes(head + body) + table + index)
    return queue.tid


def process(file: PerfData, tid: int) -> int:
    """The process of a thread."""
    return next(
        record.sample_id.pid or tid
        for record in file.records()
        if record.sample_id is not None and record.sample_id.tid == tid
    )
