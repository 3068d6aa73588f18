"""`rtit convert --griffin` on logs that tests make of recordings, by the structs of
Griffin's kernel module.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rtit.capture.ptrace.session import replay_events
from rtit.cli.main import main
from rtit.errors import InputError
from rtit.perfdata.griffin_log import read_griffin_log
from rtit.trace import Trace
from support.griffin import (
    BUFFER,
    FORK,
    HEAD,
    IMAGE,
    PAGE,
    PROCESS,
    SECTION,
    THREAD,
    UNMAP,
    XPAGE,
    log_item,
)
from support.recordings import Recorder

ProgramBuilder = Callable[[str], Path]


def griffin_log(recording: Path, size: int) -> bytes:
    """Return the log that Griffin would write of a recording without time packets.

    Pages come first, then buffers of `size` bytes, out of order; packets may cross buffers.
    """
    made = HEAD
    with Trace(recording) as trace:
        for pid, mappings in trace.mappings().items():
            made += log_item(PROCESS, pid, 5, data=b"/a/b\0\0")
            image = trace.images.image(pid)
            for each in mappings:
                code = image.read(each.start, each.end - each.start)
                made += log_item(XPAGE, pid, each.start, len(code), data=code)
        buffers = []
        for stream in trace.streams:
            made += log_item(THREAD, stream.pid, stream.tid)
            packets = stream.read()
            for number, at in enumerate(range(0, len(packets), size)):
                part = packets[at : at + size]
                buffers.append(
                    log_item(BUFFER, stream.pid, stream.tid, number, len(part), data=part)
                )
        made += log_item(UNMAP, 1, 0x1000) + log_item(IMAGE, 1, 0, 0, 0) + log_item(SECTION, 1)
        return made + b"".join(buffers[1::2] + buffers[::2])


def executed_ips(path: Path) -> dict[int, list[int]]:
    with Trace(path) as trace:
        return {
            each.tid: [int(ip) for part in each.instructions() for ip in part.ip]
            for each in trace.streams
        }


@pytest.fixture
def recording_path(program: ProgramBuilder, record: Recorder, tmp_path: Path) -> Path:
    path = tmp_path / "perf.data"
    replay_events(record([program("threads")]).log, path, event="intel_pt/tsc=0,mtc=0/u")
    return path


def test_converted_log_decodes_to_the_same_path(
    recording_path: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The conversion needs no file of the program, and keeps thread ids."""
    log, made = tmp_path / "pt.log", tmp_path / "made"
    log.write_bytes(griffin_log(recording_path, 1001))
    assert main(["convert", "--griffin", str(log), "-o", str(made)]) == 0
    expected = executed_ips(recording_path)
    assert f"{len(expected):,} threads" in capsys.readouterr().out
    assert executed_ips(made) == expected
    with Trace(made) as trace:
        assert trace.comms[min(expected)] == "b"
        assert all(span.kind == "exact" for each in trace.streams for span in each.ledger())


def test_forked_process_has_the_pages_of_its_parent(tmp_path: Path) -> None:
    code = bytes.fromhex("90").ljust(PAGE, b"\x90")
    made = HEAD + log_item(XPAGE, 5, 0x1000, PAGE, data=code) + log_item(FORK, 5, 5, 6, 6)
    log = tmp_path / "log"
    log.write_bytes(made + log_item(BUFFER, 6, 6, 0, 16, data=b"\x02\x82" * 8))
    assert main(["convert", "--griffin", str(log), "-o", str(tmp_path / "made")]) == 0
    with Trace(tmp_path / "made") as trace:
        assert trace.images.image(6).read(0x1000, PAGE) == code
        (stream,) = trace.streams
        assert (stream.pid, stream.tid, stream.size) == (6, 6, 16)


def test_truncated_log_gives_beginnings_of_paths_and_exit_code_3(
    recording_path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log, made = tmp_path / "pt.log", tmp_path / "made"
    log.write_bytes(griffin_log(recording_path, 1 << 20)[:-5])
    assert main(["convert", "--griffin", str(log), "-o", str(made)]) == 3
    assert "is incomplete: it ends within an item at offset" in capsys.readouterr().err
    found, expected = executed_ips(made), executed_ips(recording_path)
    assert found
    assert all(expected[tid] == path for tid, path in found.items())


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "empty"),
        (b"PERFILE2", "not a log of Griffin"),
        (struct.pack("<II", 0x51C0FFEE, 2), "unknown version"),
        (HEAD + struct.pack("<II", 0, 4), "bad size of an item"),
        (HEAD + log_item(BUFFER, 5, 5, 0, 100, data=b"x"), "bad item of kind 0"),
        (HEAD + log_item(BUFFER, 5), "bad item of kind 0"),
        (HEAD + log_item(THREAD, 0, 5), "is not the id of a process or thread"),
        (HEAD + log_item(THREAD, 1 << 40, 5), "is not the id of a process or thread"),
        (HEAD + log_item(XPAGE, 5, (1 << 64) - 1, 8, data=bytes(8)), "pages at"),
    ],
)
def test_malformed_log_is_an_error(
    content: bytes, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "log").write_bytes(content)
    words = ["convert", "--griffin", str(tmp_path / "log"), "-o", str(tmp_path / "made")]
    assert main(words) == 1
    assert message in capsys.readouterr().err
    assert not (tmp_path / "made").exists()


@given(st.binary(max_size=200))
def test_arbitrary_bytes_raise_input_error_or_are_read(body: bytes) -> None:
    try:
        log = read_griffin_log(memoryview(HEAD + body), "log")
    except InputError as error:
        assert error.offset is not None  # noqa: PT017 - either of both is right
    else:
        assert sum(len(data) for parts in log.packets.values() for _, data in parts) <= len(body)


@pytest.mark.parametrize("more", [["--raw", "x"], ["--maps", "x"], ["--split", "x"], ["file"]])
def test_conflicting_options_are_a_usage_error(more: list[str], tmp_path: Path) -> None:
    assert main(["convert", "--griffin", "log", "-o", str(tmp_path / "made"), *more]) == 2
    assert main(["convert", "--griffin", "log"]) == 2
