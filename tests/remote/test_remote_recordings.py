"""Recordings by URL: the results are those of the local file, and only what is used is read."""

from __future__ import annotations

import shutil
import struct
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from email.utils import format_datetime
from pathlib import Path

import pytest

import rtit
from rtit import remote_files
from rtit.cli.main import main
from rtit.errors import MissingRecordingError, PerfDataError, UnsupportedError
from rtit.perfdata import PerfData, Writer, sparse_copy
from rtit.perfdata.file_scan import DATA_SIZE_OFFSET, SECTION_ENTRY
from support.recording_variants import write_compressed_recording
from support.recordings import RTIT, Recorder
from support.remote import RangeHandler, RangeServer, RunCommand, StoreFile, range_server

AUXTRACE = 71
PADDING = 32 << 20
COMMANDS = {
    "report": ["report"],
    "report as JSON": ["report", "--json"],
    "coverage": ["coverage"],
    "stat": ["stat"],
    "stat by function": ["stat", "--per", "function", "--json"],
    "instructions": ["instructions", "--head", "20"],
    "info": ["info"],
    "calls": ["calls"],
    "profile": ["profile", "--for", "bolt"],
    "packets": ["packets", "--head", "20"],
    "timeline": ["timeline"],
}


@pytest.fixture(scope="module")
def padded(record: Recorder, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a recording whose packets end with 32 MB of PAD packets."""
    source = record(["/bin/true"]).data
    data = bytearray(source.read_bytes())
    with PerfData(source) as file:
        *_, header = file._scan.indexed[AUXTRACE]
        [[*_, chunk]] = file.auxtrace_buffers().values()
        table, count = file.header.data.end, len(file.header.features)
    for at, growth in [(header.offset + 8, PADDING), (DATA_SIZE_OFFSET, PADDING)] + [
        (table + number * SECTION_ENTRY.size, PADDING) for number in range(count)
    ]:
        struct.pack_into("<Q", data, at, struct.unpack_from("<Q", data, at)[0] + growth)
    end = chunk.file_offset + chunk.size
    path = tmp_path_factory.mktemp("padded") / "perf.data"
    path.write_bytes(bytes(data[:end]) + bytes(PADDING) + bytes(data[end:]))
    return path


# Results


@pytest.mark.parametrize("command", COMMANDS)
def test_output_for_a_url_is_that_for_the_local_file(
    command: str,
    recording: Path,
    server: RangeServer,
    memory: StoreFile,
    run: RunCommand,
) -> None:
    content = recording.read_bytes()
    server.files["/runs/perf.data"] = content
    expected = run([*COMMANDS[command], recording])
    assert expected[0] == 0
    for url in (server.url("/runs/perf.data"), memory("perf.data", content)):
        code, out, errors = run([*COMMANDS[command], url])
        path = str(recording).encode()
        assert (code, out.replace(url.encode(), path), errors) == expected


@pytest.mark.parametrize("command", ["report", "coverage", "stat", "instructions"])
def test_installed_command_reads_a_url(command: str, recording: Path, server: RangeServer) -> None:
    """Also says nothing on standard error when the connections are closed."""
    server.files["/perf.data"] = recording.read_bytes()
    url = server.url("/perf.data")
    local, remote = (
        subprocess.run([*RTIT, *COMMANDS[command], name], capture_output=True, check=True)
        for name in (recording, url)
    )
    assert remote.stdout.replace(url.encode(), str(recording).encode()) == local.stdout
    assert remote.stderr == local.stderr == b""


def test_trace_of_a_url_has_the_counts_of_the_local_file(
    recording: Path, server: RangeServer
) -> None:
    server.files["/perf.data"] = recording.read_bytes()
    with rtit.Trace(recording) as local, rtit.Trace(server.url("/perf.data")) as remote:
        assert remote.path == server.url("/perf.data")
        assert remote.command_line == local.command_line
        assert [each.counts().instructions for each in remote.streams] == [
            each.counts().instructions for each in local.streams
        ]


def test_compressed_records_of_a_url_are_decompressed(
    recording: Path,
    tmp_path: Path,
    memory: StoreFile,
    run: RunCommand,
) -> None:
    compressed = tmp_path / "compressed.data"
    write_compressed_recording(recording, compressed)
    expected = run(["stat", "--json", recording])
    url = memory("perf.data", compressed.read_bytes())
    assert run(["stat", "--json", url]) == expected


def test_pack_at_a_url_has_its_code(
    recording: Path,
    tmp_path: Path,
    server: RangeServer,
    memory: StoreFile,
    run: RunCommand,
) -> None:
    pack = tmp_path / "a.rtit.zip"
    assert main(["pack", str(recording), "-o", str(pack)]) == 0
    server.files["/a.rtit.zip"] = pack.read_bytes()
    expected = run(["coverage", "--symfs", tmp_path, pack])
    assert expected[0] == 0
    for url in (server.url("/a.rtit.zip"), memory("a.rtit.zip", pack.read_bytes())):
        assert run(["coverage", "--symfs", tmp_path, url]) == expected
    # The directory at the end is read once more than the members.
    assert server.sent_bytes < 2 * pack.stat().st_size + (1 << 20)


def test_pack_of_a_recording_at_a_url_has_all_its_bytes(
    padded: Path, server: RangeServer, tmp_path: Path
) -> None:
    content = bytearray(padded.read_bytes())
    content[len(content) // 2] = 0x55
    server.files["/perf.data"] = bytes(content)
    pack = tmp_path / "a.zip"
    assert main(["pack", server.url("/perf.data"), "-o", str(pack)]) == 0
    shutil.unpack_archive(pack, tmp_path / "unpacked")
    assert (tmp_path / "unpacked" / "recording" / "perf.data").read_bytes() == content


def test_features_of_a_url_are_read_beyond_the_records(tmp_path: Path, memory: StoreFile) -> None:
    path = tmp_path / "perf.data"
    build_ids = {f"/lib/{number:0100}.so": number.to_bytes(20, "little") for number in range(3000)}
    with Writer(path, config=0x2401, cpuid="GenuineIntel,6,94,3") as out:
        out.close(build_ids)
    with PerfData(memory("perf.data", path.read_bytes())) as data:
        assert data.build_ids == build_ids


def test_modification_time_is_that_of_the_server(recording: Path, server: RangeServer) -> None:
    """A file with code that is newer than the recording is reported."""
    date = datetime(2020, 2, 3, 4, 5, 6, tzinfo=UTC)

    def answer(handler: RangeHandler, content: bytes) -> None:
        handler.send_range(content, headers={"Last-Modified": format_datetime(date, usegmt=True)})

    server.files["/perf.data"] = recording.read_bytes()
    server.answer = answer
    with PerfData(server.url("/perf.data")) as data:
        assert data.modified == date.timestamp()


# Ranges


def test_opening_reads_a_fraction_of_the_file(padded: Path, server: RangeServer) -> None:
    server.files["/perf.data"] = padded.read_bytes()
    with rtit.Trace(server.url("/perf.data")) as trace:
        assert trace.command_line
        assert trace.streams[0].size > PADDING
    assert 0 < server.sent_bytes < PADDING // 64


def test_head_reads_a_fraction_of_the_file(
    padded: Path, server: RangeServer, run: RunCommand
) -> None:
    server.files["/perf.data"] = padded.read_bytes()
    words = ["instructions", "--head", "20"]
    expected = run([*words, padded])
    assert run([*words, server.url("/perf.data")]) == expected
    assert server.sent_bytes < PADDING // 4


def test_no_byte_is_requested_twice(padded: Path, server: RangeServer) -> None:
    server.files["/perf.data"] = padded.read_bytes()
    with rtit.Trace(server.url("/perf.data")) as trace:
        for _ in range(2):
            assert sum(len(chunk) for chunk in trace.streams[0].chunks()) > PADDING
    assert server.sent_bytes == padded.stat().st_size
    assert len(server.requests) < 100


def test_local_copy_of_packets_is_bounded(
    padded: Path, server: RangeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Packets beyond the bound are requested each time."""
    monkeypatch.setattr(sparse_copy, "_MAX_KEPT_BLOCKS", 64)
    server.files["/perf.data"] = padded.read_bytes()
    with rtit.Trace(padded) as local, rtit.Trace(server.url("/perf.data")) as remote:
        for _ in range(2):
            assert b"".join(remote.streams[0].chunks()) == b"".join(local.streams[0].chunks())
        assert remote.data._copy is not None
        assert len(remote.data._copy._loaded) < 200
    assert server.sent_bytes > 1.5 * PADDING


# Servers that answer wrong


def send_whole_file(handler: RangeHandler, content: bytes) -> None:
    handler.send_whole_file(content)


def break_off(handler: RangeHandler, content: bytes) -> None:
    handler.send_range(content, break_off=True)


def claim_huge_size(handler: RangeHandler, content: bytes) -> None:
    handler.send_range(content, total=1 << 62)


def change_size(handler: RangeHandler, content: bytes) -> None:
    handler.send_range(content, total=len(content) + len(handler.server.requests))


def change_content(handler: RangeHandler, content: bytes) -> None:
    handler.send_range(content, headers={"ETag": f'"{len(handler.server.requests)}"'})


def send_another_range(handler: RangeHandler, content: bytes) -> None:
    handler.send_range(content, headers={"Content-Range": f"bytes 9-{len(content)}/{len(content)}"})


def wait_for_end(handler: RangeHandler, content: bytes) -> None:
    handler.server.stopped.wait()


def refuse(handler: RangeHandler, content: bytes) -> None:
    handler.send_error(403)


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (send_whole_file, "the server does not support range requests: copy the file"),
        (send_another_range, "the server does not support range requests: copy the file"),
        (break_off, "the connection ended too early"),
        (claim_huge_size, "no temporary file in .* can have its size"),
        (change_size, "the file changed while it was read"),
        (change_content, "the file changed while it was read"),
        (refuse, "cannot be read: the server answers 403"),
    ],
)
def test_wrong_answer_is_one_sentence(
    answer: Callable[[RangeHandler, bytes], None],
    message: str,
    padded: Path,
    server: RangeServer,
    capfd: pytest.CaptureFixture[str],
) -> None:
    server.files["/perf.data"] = padded.read_bytes()
    server.answer = answer
    url = server.url("/perf.data")
    with pytest.raises(PerfDataError, match=message), rtit.Trace(url) as trace:
        trace.streams[0].counts()
    assert main(["report", url]) == 1
    errors = capfd.readouterr().err
    assert errors.startswith(f"rtit report: {url}: ")
    assert errors.count("\n") == 1


def test_server_without_ranges_is_not_read_to_the_end(padded: Path, server: RangeServer) -> None:
    server.files["/perf.data"] = padded.read_bytes()
    server.answer = send_whole_file
    with pytest.raises(PerfDataError):
        rtit.Trace(server.url("/perf.data"))
    server.shutdown()
    assert server.sent_bytes < PADDING


def test_answer_without_end_is_not_read_to_the_end(recording: Path, server: RangeServer) -> None:
    def answer(handler: RangeHandler, content: bytes) -> None:
        handler.send_range(content, endless=True)

    server.files["/perf.data"] = recording.read_bytes()
    server.answer = answer
    with rtit.Trace(server.url("/perf.data")) as remote, rtit.Trace(recording) as local:
        assert remote.command_line == local.command_line


def test_server_that_does_not_answer_is_an_error(
    server: RangeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote_files, "_SILENT_SECONDS", 0.1)
    server.files["/perf.data"] = b"PERFILE2"
    server.answer = wait_for_end
    with pytest.raises(PerfDataError, match="the server does not answer in time"):
        rtit.Trace(server.url("/perf.data"))


def test_missing_and_empty_files_are_errors(
    server: RangeServer, memory: StoreFile, capfd: pytest.CaptureFixture[str]
) -> None:
    server.files["/empty.data"] = b""
    url = server.url("/missing.data")
    with pytest.raises(MissingRecordingError):
        rtit.Trace(url)
    assert main(["report", url]) == 1
    assert capfd.readouterr().err == f"rtit report: no recording at {url}\n"
    for empty in (server.url("/empty.data"), memory("empty.data", b"")):
        with pytest.raises(PerfDataError, match="the file is empty"):
            rtit.Trace(empty)
    with pytest.raises(MissingRecordingError, match="no recording at memory://remote"):
        rtit.Trace("memory://remote/missing.data")


def test_server_that_is_not_there_is_an_error(capfd: pytest.CaptureFixture[str]) -> None:
    with range_server() as stopped:
        url = stopped.url("/perf.data")
    assert main(["report", url]) == 1
    errors = capfd.readouterr().err
    assert errors.startswith(f"rtit report: {url}: cannot be read: ")
    assert errors.count("\n") == 1


def test_without_the_extra_the_error_names_it(
    server: RangeServer, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    for missing in ("fsspec.core", "aiohttp"):
        with monkeypatch.context() as patch:
            patch.setitem(sys.modules, missing, None)
            with pytest.raises(UnsupportedError, match=r"pip install 'rtit\[remote\]'"):
                rtit.Trace(server.url("/perf.data"))
            assert main(["report", server.url("/perf.data")]) == 1
            assert capfd.readouterr().err.count("\n") == 1


def test_unknown_kind_of_url_is_an_error(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["report", "nosuch://host/perf.data"]) == 1
    errors = capfd.readouterr().err
    assert "nosuch" in errors
    assert errors.count("\n") == 1
