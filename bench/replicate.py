"""Lengthens a recording by repeating the stream of a thread.

A stream that begins with a PSB+ and ends with tracing disabled can follow itself: the decoder has
no position when a copy begins. Time decreases at each copy, which no measured decoder rejects.
"""

from __future__ import annotations

import struct
from pathlib import Path

PERF_RECORD_AUXTRACE = 71
PERF_RECORD_FINISHED_ROUND = 68
HEADER_SIZE = 104
PSB = bytes.fromhex("0282" * 8)


def copies_needed(stream: bytes, size: int) -> int:
    """Return the number of copies of `stream`, from its first PSB on, that have at least `size`
    bytes.
    """
    return max(1, -(-size // len(from_psb(stream))))


def from_psb(stream: bytes) -> bytes:
    """Return `stream` from its first PSB on. Raises ValueError if it has none."""
    at = stream.find(PSB)
    if at < 0:
        raise ValueError("the stream has no PSB")
    return stream[at:]


def perf_data(recording: Path, stream: bytes, output: Path) -> None:
    """Return a copy of a perf.data file of one PT stream with `stream` in place of its own.

    Feature sections are omitted, since they have offsets into the file. Raises ValueError for
    another file or one without PT.
    """
    content = recording.read_bytes()
    if content[:8] != b"PERFILE2":
        raise ValueError(f"{recording} is no perf.data file")
    data_at, data_size = struct.unpack_from("<QQ", content, 40)
    end = min(data_at + data_size, len(content))
    parts: list[bytes] = []
    placed = False
    at = data_at
    while at + 8 <= end:
        kind, _, length = struct.unpack_from("<IHH", content, at)
        if length < 8:
            raise ValueError(f"{recording}: record of {length} bytes at offset {at:#x}")
        record = content[at : at + length]
        at += length
        if kind == PERF_RECORD_AUXTRACE:
            (size,) = struct.unpack_from("<Q", record, 8)
            at += size
            if placed:
                continue
            placed = True
            padding = bytes(-len(stream) % 8)  # PAD packets
            total = struct.pack("<Q", len(stream) + len(padding))
            parts += [record[:8], total, record[16:], stream, padding]
        elif kind != PERF_RECORD_FINISHED_ROUND:
            parts.append(record)
    if not placed:
        raise ValueError(f"{recording} has no PT")
    data = b"".join(parts)
    header = bytearray(content[:data_at])
    struct.pack_into("<Q", header, 48, len(data))
    header[72:HEADER_SIZE] = bytes(HEADER_SIZE - 72)
    output.write_bytes(bytes(header) + data)
