"""Compressed records and directories: the same records as in a plain file."""

from __future__ import annotations

import os
import shutil
import struct
import subprocess
from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest

from rtit.errors import PerfDataError, UnsupportedError
from rtit.perfdata import PerfData, Writer
from rtit.perfdata.records import RECORD_HEADER, Auxtrace
from rtit.trace import Trace
from support.limits import assert_peak_memory
from support.recording_variants import ZSTD_FRAME_HEADER, zstd_raw_block

PERF, ZSTD = shutil.which("perf"), shutil.which("zstd")
core = pytest.importorskip("rtit._core", reason="the native module is not built")


def encode_repeated_byte(byte: int, count: int) -> bytes:
    """Encode a block of one byte, `count` times (section 3.1.1.2.2)."""
    return (1 << 1 | count << 3).to_bytes(3, "little") + bytes([byte])


def write_plain_file(path: Path) -> bytes:
    """Return a small file of rtit, and the bytes of its kernel records."""
    with Writer(path, config=0x2401, cpuid="GenuineIntel,6,94,3") as out:
        out.flush()
        begin = out.size
        for number in range(50):
            out.comm(7, 7 + number, number, f"name {number}")
        out.flush()
        end = out.size
        out.auxtrace(7, 7, b"\x02\x82" * 8, None, 100)
    return path.read_bytes()[begin:end]


def compressed(path: Path, pieces: list[bytes], number: int = 81) -> Path:
    """Return the file with these pieces of a stream in place of its kernel records."""
    source = path.with_suffix(".plain")
    body = write_plain_file(source)
    data = source.read_bytes()
    at = data.index(body)
    head = b"" if number == 81 else b"size"
    made = b""
    for piece in pieces:
        payload = (struct.pack("<Q", len(piece)) if head else b"") + piece
        payload += bytes(-len(payload) % 8) if head else b""
        made += RECORD_HEADER.pack(number, 0, 8 + len(payload)) + payload
    changed = bytearray(data[:at] + made + data[at + len(body) :])
    (size,) = struct.unpack_from("<Q", data, 48)
    struct.pack_into("<Q", changed, 48, size + len(made) - len(body))
    changed[72:104] = bytes(32)  # no features: their offsets changed
    path.write_bytes(changed)
    return path


def names(path: Path) -> list[str]:
    with PerfData(path) as data:
        return [str(record.comm) for record in data.records() if record.name == "COMM"]  # type: ignore[attr-defined]


TYPE_NAMES = [f"name {number}" for number in range(50)]


@pytest.mark.parametrize("number", [81, 83])
def test_compressed_stream_spans_records(tmp_path: Path, number: int) -> None:
    body = write_plain_file(tmp_path / "a")
    stream = ZSTD_FRAME_HEADER + b"".join(
        zstd_raw_block(body[at : at + 100]) for at in range(0, len(body), 100)
    )
    cuts = [0, 3, 6, 7, 150, len(stream)]
    pieces = [stream[a:b] for a, b in pairwise(cuts)]
    assert names(compressed(tmp_path / "b", pieces, number)) == TYPE_NAMES


@pytest.mark.skipif(ZSTD is None, reason="needs the zstd program")
@pytest.mark.parametrize("options", [["-1"], ["-19", "--no-check"], ["-3", "--check"]])
def test_zstd_output_is_decompressed(tmp_path: Path, options: list[str]) -> None:
    body = write_plain_file(tmp_path / "a")
    stream = subprocess.run(
        [ZSTD or "zstd", *options, "-c"], input=body, capture_output=True, check=True
    ).stdout
    pieces = [stream[at : at + 64] for at in range(0, len(stream), 64)]
    assert names(compressed(tmp_path / "b", pieces)) == TYPE_NAMES


def test_truncated_compressed_stream_raises(tmp_path: Path) -> None:
    body = write_plain_file(tmp_path / "a")
    blocks = [zstd_raw_block(body[at : at + 100]) for at in range(0, len(body), 100)]
    stream = ZSTD_FRAME_HEADER + b"".join(blocks)
    path = compressed(tmp_path / "b", [stream[: len(ZSTD_FRAME_HEADER) + 2 * len(blocks[0]) + 50]])
    found = names(path)
    assert found == TYPE_NAMES[: len(found)]
    assert 0 < len(found) < 5
    with PerfData(path) as data:
        assert data.incomplete is not None


@pytest.mark.parametrize(
    ("pieces", "message"),
    [
        ([b"no zstd at all"], "compressed records: the data is not Zstandard"),
        (
            [ZSTD_FRAME_HEADER + (3 << 1 | 8 << 3).to_bytes(3, "little") + bytes(8)],
            "compressed records",
        ),
        # blocks of four bytes that expand to 128 KB each: 32 MB in a record, a gigabyte in all
        (
            [ZSTD_FRAME_HEADER + encode_repeated_byte(0x41, 1 << 17) * 15000],
            "decompresses to more than",
        ),
    ],
)
def test_invalid_compressed_records_raise(
    tmp_path: Path, pieces: list[bytes], message: str
) -> None:
    path = compressed(tmp_path / "b", pieces)
    with assert_peak_memory(48), pytest.raises(PerfDataError, match=message) as error:
        PerfData(path)
    assert error.value.offset is not None


@pytest.mark.parametrize("size", [0, 4])
def test_compressed2_with_bad_size_raises(tmp_path: Path, size: int) -> None:
    path = compressed(tmp_path / "b", [ZSTD_FRAME_HEADER + zstd_raw_block(b"12345678")], 83)
    data = bytearray(path.read_bytes())
    at = data.index(ZSTD_FRAME_HEADER) - 8
    data[at : at + 8] = struct.pack("<Q", 1 << 40)
    path.write_bytes(data)
    with pytest.raises(PerfDataError, match="more bytes than its record"):
        PerfData(path)


def test_directory_is_read_with_all_files(tmp_path: Path) -> None:
    folder = tmp_path / "dir"
    folder.mkdir()
    body = write_plain_file(folder / "data")
    (folder / "data.1").write_bytes(body[: len(body) // 2 // 8 * 8])
    stream = ZSTD_FRAME_HEADER + zstd_raw_block(body)
    (folder / "data.0").write_bytes(RECORD_HEADER.pack(81, 0, 8 + len(stream)) + stream)
    (folder / "data.2").write_bytes(b"")
    os.mkfifo(folder / "data.3")
    (folder / "data.4").symlink_to("/dev/zero")
    (folder / "kcore_dir").mkdir()
    found = Counter(names(folder))
    assert set(found) == set(TYPE_NAMES)
    assert found["name 0"] == 3
    assert found["name 49"] == 2
    with PerfData(folder) as data:
        assert data.path == str(folder)
        assert [len(pieces) for pieces in data.auxtrace_buffers().values()] == [1]


@pytest.mark.slow
def test_directory_with_large_chunks_uses_little_memory(tmp_path: Path) -> None:
    """The chunks are longer than the file with the header; the header's file is not unmapped past
    its end, and read chunks do not stay in memory.
    """
    write_plain_file(tmp_path / "data")
    size = 96 << 20
    fixed = Auxtrace.layout.fixed
    head = RECORD_HEADER.pack(71, 0, RECORD_HEADER.size + fixed.size) + fixed.pack(
        size, 0, 100, 1, 8, -1, 0
    )
    (tmp_path / "data.0").write_bytes(head + b"\x02\x82" * 8)
    os.truncate(tmp_path / "data.0", len(head) + size)
    with assert_peak_memory(64), Trace(tmp_path) as trace:
        found = {stream.tid: stream.counts().packets for stream in trace.streams}
    assert found[8] == {"PSB": 1, "PAD": size - 16}


def test_directory_without_data_file_raises(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match="without a file 'data' is"):
        PerfData(tmp_path)
    os.mkfifo(tmp_path / "data")
    with pytest.raises(UnsupportedError, match="without a file 'data'"):
        PerfData(tmp_path)


@pytest.mark.skipif(PERF is None, reason="needs stock perf")
@pytest.mark.parametrize("options", [["-z"], ["-z9", "--threads"], []])
def test_directories_and_compression_of_real_perf(tmp_path: Path, options: list[str]) -> None:
    """The number of records of each kind is that of `perf script -D`."""
    path = tmp_path / "perf.data"
    work = ["sh", "-c", "for i in 1 2 3 4 5 6 7 8; do /bin/true; done"]
    environment = {**os.environ, "HOME": str(tmp_path), "LC_ALL": "C"}
    command = [PERF or "perf", "record", *options, "-o", str(path), "-e", "cpu-clock:u", *work]
    made = subprocess.run(command, capture_output=True, env=environment, check=False, timeout=300)
    if made.returncode:
        pytest.skip("perf cannot record here")
    listed = subprocess.run(
        [PERF or "perf", "script", "-D", "-i", str(path)],
        capture_output=True,
        env=environment,
        check=True,
        timeout=300,
    ).stdout.decode()
    wanted = Counter(
        word.removeprefix("PERF_RECORD_").rstrip("(:")
        for line in listed.splitlines()
        for word in line.replace("(", " ").split()
        if word.startswith("PERF_RECORD_")
    )
    with PerfData(path) as data:
        found = Counter(record.name for record in data.records())
    for name in ("COMM", "MMAP2", "FORK", "EXIT", "SAMPLE"):
        assert found[name] == wanted[name]
    assert found["FORK"] >= 8 if "-z9" not in options else found["FORK"] > 0
