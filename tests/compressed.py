"""A recording as `perf record -z` has it: the kernel's records in a stream of Zstandard."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path

from rtit.perfdata import PerfData
from rtit.perfdata.features import Feature, pack_index
from rtit.perfdata.header import FILE, SECTION
from rtit.perfdata.records import FIRST_USER_TYPE, HEADER

COMPRESSED, AUXTRACE = 81, 71
ROOM = 30_001
"""Bytes of a block; a COMPRESSED record has 16 bits for its size."""
UNPACKED = 1 << 20
"""perf makes so much room for what comes out of a record."""
FRAME = bytes.fromhex("28b52ffd") + bytes([0x00, 13 << 3])
"""No checksum, no dictionary, window of 8 MB (RFC 8878, section 3.1.1.1)."""


def raw(data: bytes, *, last: bool = False) -> bytes:
    """A block that is not compressed (section 3.1.1.2)."""
    return (int(last) | len(data) << 3).to_bytes(3, "little") + data


def as_compressed(source: Path, output: Path) -> None:
    """Kernel records become COMPRESSED records, and all others stay. A record may begin in one and
    end in the next, but not behind a record that stays.
    """
    data = source.read_bytes()
    words = list(FILE.unpack_from(data))
    start, size = words[5:7]
    with PerfData(source) as file:
        features = sorted(file.header.features)
    sections = {
        feature: data[offset : offset + length]
        for feature, (offset, length) in zip(
            features, SECTION.iter_unpack(data[start + size :][: 16 * len(features)]), strict=True
        )
    }
    body, index, waiting, begin = bytearray(), [], bytearray(), FRAME

    def flush() -> None:
        nonlocal begin
        for at in range(0, len(waiting), ROOM):
            block = begin + raw(bytes(waiting[at : at + ROOM]))
            body.extend(HEADER.pack(COMPRESSED, 0, HEADER.size + len(block)) + block)
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
    sections[Feature.AUXTRACE] = pack_index(index)
    # version, the type of Zstandard, level, ratio, room for what comes out of a record
    sections[Feature.COMPRESSED] = struct.pack("<5I", 1, 1, 1, 1, UNPACKED)
    words[6] = len(body)
    words[9] |= 1 << Feature.COMPRESSED
    at = start + len(body) + SECTION.size * len(sections)
    table = tail = b""
    for _, section in sorted(sections.items()):
        table += SECTION.pack(at + len(tail), len(section))
        tail += section
    output.write_bytes(FILE.pack(*words) + data[FILE.size : start] + body + table + tail)


def _records(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Type and bytes of each, an AUXTRACE's with its data."""
    at = 0
    while at < len(data):
        number, _, size = HEADER.unpack_from(data, at)
        if number == AUXTRACE:
            size += struct.unpack_from("<Q", data, at + HEADER.size)[0]
        yield number, data[at : at + size]
        at += size
