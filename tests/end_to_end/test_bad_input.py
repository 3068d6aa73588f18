"""Bad input gives one clear error line and an exit code: no traceback, no hang."""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import struct
import subprocess
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path

import pytest

from rtit import _core
from rtit.cli.main import main
from rtit.errors import PerfDataError, RtitError
from rtit.trace import Trace
from support.recordings import RTIT, Recorder

ProgramBuilder = Callable[[str], Path]


def run_rtit(
    arguments: Sequence[str], folder: Path, preexec: Callable[[], None] | None = None
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*RTIT, *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
        preexec_fn=preexec,
    )


def single_error_line(ended: subprocess.CompletedProcess[str], code: int) -> str:
    assert ended.returncode == code, ended.stderr
    assert "Traceback" not in ended.stderr
    assert len(ended.stderr.strip().splitlines()) == 1, ended.stderr
    return ended.stderr


@pytest.mark.parametrize("command", ["report", "packets", "instructions", "verify"])
def test_missing_recording_is_an_error_with_a_next_step(command: str, tmp_path: Path) -> None:
    more = ["--truth", "none"] if command == "verify" else []
    ended = run_rtit([command, "nothing.data", *more], tmp_path)
    assert (ended.returncode, ended.stdout) == (1, "")
    first, second = ended.stderr.splitlines()
    assert first == f"rtit {command}: no recording at nothing.data"
    assert second == "  make a recording first:  rtit record -- PROGRAM"


def test_other_file_format_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("this is text\n" * 100)
    ended = run_rtit(["report", "text"], tmp_path)
    assert (ended.returncode, ended.stdout) == (1, "")
    assert ended.stderr.startswith("rtit report: text is not a perf.data file: it begins with ")


@pytest.fixture
def small_recording(program: ProgramBuilder, record: Recorder) -> bytes:
    return record([program("returns")]).data.read_bytes()


def test_file_truncated_anywhere_raises_no_other_error(
    small_recording: bytes, tmp_path: Path
) -> None:
    path = tmp_path / "cut.data"
    # every offset of the header and the first records, every 13th of the rest
    offsets = [*range(600), *range(600, len(small_recording), 13)]
    for size in offsets:
        path.write_bytes(small_recording[:size])
        with contextlib.suppress(RtitError), Trace(path) as trace:
            for stream in trace.streams:
                stream.native_decoder().count()


def test_flipped_byte_anywhere_keeps_the_ledger_complete(
    program: ProgramBuilder, record: Recorder
) -> None:
    live = record([program("pointers")])
    with Trace(live.data) as trace:
        (stream,) = trace.streams
        good = stream.read()
        space = trace.images.image(stream.tid).native
        for index in range(len(good)):
            for flip in (0x01, 0x80, 0xFF):
                bad = bytearray(good)
                bad[index] ^= flip
                flow = _core.StreamDecoder(bytes(bad), space)
                flow.count()
                spans = flow.ledger()
                assert spans[0][0] == 0
                assert spans[-1][1] == len(good)
                assert all(before[1] == after[0] for before, after in pairwise(spans))


def test_missing_program_file_is_reported(program: ProgramBuilder, tmp_path: Path) -> None:
    copy = shutil.copy(program("returns"), tmp_path / "copy")
    assert run_rtit(["record", "-q", "--", "./copy"], tmp_path).returncode == 0
    Path(copy).unlink()
    ended = run_rtit(["report", "perf.data"], tmp_path)
    assert ended.returncode == 3
    assert "copy" in ended.stdout
    assert "Traceback" not in ended.stderr


def test_changed_program_file_is_reported(program: ProgramBuilder, tmp_path: Path) -> None:
    copy = shutil.copy(program("returns"), tmp_path / "copy")
    assert run_rtit(["record", "-q", "--", "./copy"], tmp_path).returncode == 0
    shutil.copy(program("recursion"), copy)
    ended = run_rtit(["report", "perf.data"], tmp_path)
    assert ended.returncode == 3
    assert "build id" in ended.stdout or "modified" in ended.stdout or "changed" in ended.stdout


def test_nonexistent_program_exits_127_and_keeps_older_recording(tmp_path: Path) -> None:
    (tmp_path / "perf.data").write_text("an older recording")
    assert "nosuchprogram" in single_error_line(
        run_rtit(["record", "--", "nosuchprogram"], tmp_path), 127
    )
    assert (tmp_path / "perf.data").read_text() == "an older recording"
    assert not (tmp_path / "perf.data.old").exists()


def test_non_executable_program_exits_126(tmp_path: Path) -> None:
    (tmp_path / "plain").write_text("not a program")
    assert "plain" in single_error_line(run_rtit(["record", "--", "./plain"], tmp_path), 126)


def forbid_ptrace() -> None:
    """Install a seccomp filter that answers ptrace with EPERM, as a container does."""
    libc = ctypes.CDLL(None, use_errno=True)
    ld_nr, jump_if_ptrace, deny, allow = (
        (0x20, 0, 0, 0),
        (0x15, 0, 1, 101),
        (0x06, 0, 0, 0x0005_0001),
        (0x06, 0, 0, 0x7FFF_0000),
    )
    rules = [ld_nr, jump_if_ptrace, deny, allow]
    code = ctypes.create_string_buffer(b"".join(struct.pack("<HBBI", *rule) for rule in rules))
    program = ctypes.create_string_buffer(
        struct.pack("<HxxxxxxQ", len(rules), ctypes.addressof(code))
    )
    if libc.prctl(38, 1, 0, 0, 0) or libc.prctl(22, 2, program, 0, 0):
        os._exit(99)


def test_forbidden_ptrace_exits_125_and_writes_no_file(tmp_path: Path) -> None:
    ended = run_rtit(["record", "--backend", "ptrace", "--", "/bin/true"], tmp_path, forbid_ptrace)
    if ended.returncode == 99:
        pytest.skip("seccomp filters cannot be installed here")
    assert "ptrace" in single_error_line(ended, 125)
    assert not (tmp_path / "perf.data").exists()


def test_unwritable_output_exits_125(tmp_path: Path) -> None:
    assert "nowhere" in single_error_line(
        run_rtit(["record", "-o", "nowhere/perf.data", "--", "/bin/true"], tmp_path), 125
    )


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["recrod", "ls"], "record"),
        (["record", "-e", "intel_pt/cyx=1/u", "--", "ls"], "cyc"),
        (["record", "-e", "intel_pt/psb_period=99/u", "--", "ls"], "psb_period"),
        (["record", "-e", "cycles:u", "--", "ls"], "intel_pt"),
        (["record", "--filter", "filtr main", "--", "/bin/true"], "filter"),
        (["record"], "program"),
        (["instructions", "--fields", "ip,colour"], "asm"),
    ],
)
def test_wrong_option_error_suggests_valid_ones(
    arguments: list[str], expected: str, tmp_path: Path
) -> None:
    ended = run_rtit(arguments, tmp_path)
    assert ended.returncode == 2
    assert "Traceback" not in ended.stderr
    assert expected in ended.stderr
    assert not (tmp_path / "perf.data").exists()


def test_verify_fails_on_truths_of_other_executions(
    program: ProgramBuilder, record: Recorder, tmp_path: Path
) -> None:
    live = record([program("returns")])
    truth = tmp_path / "truth"
    whole = live.truth.read_bytes()

    def verify_exit_code(content: bytes) -> int:
        truth.write_bytes(content)
        return main(["verify", str(live.data), "--truth", str(truth)])

    assert verify_exit_code(whole) == 0
    # without its records: nothing to compare
    assert verify_exit_code(whole[:16]) == 1
    # another thread number: one thread is missing, one too many
    assert verify_exit_code(with_other_thread_id(whole)) == 1
    # one instruction more in the first run_rtit
    assert verify_exit_code(with_longer_run(whole)) == 1
    # the truth of another program
    assert verify_exit_code(record([program("recursion")]).truth.read_bytes()) == 1


def with_other_thread_id(truth: bytes) -> bytes:
    tid = truth[24:28]
    return truth.replace(tid, struct.pack("<I", struct.unpack("<I", tid)[0] ^ 0x4000))


def with_longer_run(truth: bytes) -> bytes:
    at = 16
    while truth[at : at + 4] != struct.pack("<I", 2):
        at += 8 + struct.unpack_from("<I", truth, at + 4)[0]
    count = at + 8 + 8 + 8
    (found,) = struct.unpack_from("<I", truth, count)
    return truth[:count] + struct.pack("<I", found + 1) + truth[count + 4 :]


def test_verify_fails_on_a_gap(program: ProgramBuilder, record: Recorder, tmp_path: Path) -> None:
    live = record([program("pointers")])
    content = bytearray(live.data.read_bytes())
    with Trace(live.data) as trace:
        ((piece,),) = trace.data.auxtrace_buffers().values()
        middle = piece.file_offset + piece.size // 2
    content[middle : middle + 64] = b"\xff\x05" * 32
    (tmp_path / "perf.data").write_bytes(content)
    assert main(["verify", str(tmp_path / "perf.data"), "--truth", str(live.truth)]) == 1


def test_format_error_has_source_and_offset(tmp_path: Path) -> None:
    (tmp_path / "bad").write_bytes(b"PERFILE2" + bytes(96))
    with pytest.raises(PerfDataError) as caught:
        Trace(tmp_path / "bad")
    assert caught.value.source == str(tmp_path / "bad")
    assert caught.value.offset is not None
