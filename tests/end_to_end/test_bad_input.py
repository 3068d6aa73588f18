"""What is bad gets one clear sentence and an exit code: no traceback, no hang."""

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


def run(
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


def one_sentence(ended: subprocess.CompletedProcess[str], code: int) -> str:
    assert ended.returncode == code, ended.stderr
    assert "Traceback" not in ended.stderr
    assert len(ended.stderr.strip().splitlines()) == 1, ended.stderr
    return ended.stderr


@pytest.mark.parametrize("verb", ["report", "packets", "instructions", "verify"])
def test_no_such_file(verb: str, tmp_path: Path) -> None:
    more = ["--truth", "none"] if verb == "verify" else []
    ended = run([verb, "nothing.data", *more], tmp_path)
    assert (ended.returncode, ended.stdout) == (1, "")
    first, second = ended.stderr.splitlines()
    assert first == f"rtit {verb}: no recording at nothing.data"
    assert second == "  record one first:  rtit record -- PROGRAM"


def test_not_a_perf_data(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("this is text\n" * 100)
    ended = run(["report", "text"], tmp_path)
    assert (ended.returncode, ended.stdout) == (1, "")
    assert ended.stderr.startswith("rtit report: text is not a perf.data file: it begins with ")


@pytest.fixture
def small(program: ProgramBuilder, record: Recorder) -> bytes:
    return record([program("returns")]).data.read_bytes()


def test_truncated_at_every_offset(small: bytes, tmp_path: Path) -> None:
    path = tmp_path / "cut.data"
    # every offset of the header and the first records, every 13th of the rest
    offsets = [*range(600), *range(600, len(small), 13)]
    for size in offsets:
        path.write_bytes(small[:size])
        with contextlib.suppress(RtitError), Trace(path) as trace:
            for stream in trace.streams:
                stream.native_decoder().count()


def test_each_byte_of_a_stream_flipped(program: ProgramBuilder, record: Recorder) -> None:
    live = record([program("pointers")])
    with Trace(live.data) as trace:
        (stream,) = trace.streams
        good = stream.read()
        space = trace.images.image(stream.tid).native
        for index in range(len(good)):
            for flip in (0x01, 0x80, 0xFF):
                bad = bytearray(good)
                bad[index] ^= flip
                flow = _core.Flow(bytes(bad), space)
                flow.count()
                spans = flow.ledger()
                assert spans[0][0] == 0
                assert spans[-1][1] == len(good)
                assert all(before[1] == after[0] for before, after in pairwise(spans))


def test_a_missing_program_file_is_reported(program: ProgramBuilder, tmp_path: Path) -> None:
    copy = shutil.copy(program("returns"), tmp_path / "copy")
    assert run(["record", "-q", "--", "./copy"], tmp_path).returncode == 0
    Path(copy).unlink()
    ended = run(["report", "perf.data"], tmp_path)
    assert ended.returncode == 3
    assert "copy" in ended.stdout
    assert "Traceback" not in ended.stderr


def test_a_changed_program_file_is_reported(program: ProgramBuilder, tmp_path: Path) -> None:
    copy = shutil.copy(program("returns"), tmp_path / "copy")
    assert run(["record", "-q", "--", "./copy"], tmp_path).returncode == 0
    shutil.copy(program("recursion"), copy)
    ended = run(["report", "perf.data"], tmp_path)
    assert ended.returncode == 3
    assert "build id" in ended.stdout or "modified" in ended.stdout or "changed" in ended.stdout


def test_a_program_that_does_not_exist(tmp_path: Path) -> None:
    (tmp_path / "perf.data").write_text("an older recording")
    assert "nosuchprogram" in one_sentence(run(["record", "--", "nosuchprogram"], tmp_path), 127)
    assert (tmp_path / "perf.data").read_text() == "an older recording"
    assert not (tmp_path / "perf.data.old").exists()


def test_a_program_that_is_not_executable(tmp_path: Path) -> None:
    (tmp_path / "plain").write_text("not a program")
    assert "plain" in one_sentence(run(["record", "--", "./plain"], tmp_path), 126)


def forbid_ptrace() -> None:
    """A seccomp filter that answers ptrace with EPERM, as a container does."""
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


def test_ptrace_forbidden(tmp_path: Path) -> None:
    ended = run(["record", "--backend", "ptrace", "--", "/bin/true"], tmp_path, forbid_ptrace)
    if ended.returncode == 99:
        pytest.skip("seccomp filters cannot be installed here")
    assert "ptrace" in one_sentence(ended, 125)
    assert not (tmp_path / "perf.data").exists()


def test_an_output_that_cannot_be_written(tmp_path: Path) -> None:
    assert "nowhere" in one_sentence(
        run(["record", "-o", "nowhere/perf.data", "--", "/bin/true"], tmp_path), 125
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
def test_a_wrong_option_gets_the_valid_ones(
    arguments: list[str], expected: str, tmp_path: Path
) -> None:
    ended = run(arguments, tmp_path)
    assert ended.returncode == 2
    assert "Traceback" not in ended.stderr
    assert expected in ended.stderr
    assert not (tmp_path / "perf.data").exists()


def test_verify_compares_something(
    program: ProgramBuilder, record: Recorder, tmp_path: Path
) -> None:
    live = record([program("returns")])
    truth = tmp_path / "truth"
    whole = live.truth.read_bytes()

    def code(content: bytes) -> int:
        truth.write_bytes(content)
        return main(["verify", str(live.data), "--truth", str(truth)])

    assert code(whole) == 0
    # without its records: nothing to compare
    assert code(whole[:16]) == 1
    # another thread number: one thread is missing, one too many
    assert code(other_thread(whole)) == 1
    # one instruction more in the first run
    assert code(longer_run(whole)) == 1
    # the truth of another program
    assert code(record([program("recursion")]).truth.read_bytes()) == 1


def other_thread(truth: bytes) -> bytes:
    tid = truth[24:28]
    return truth.replace(tid, struct.pack("<I", struct.unpack("<I", tid)[0] ^ 0x4000))


def longer_run(truth: bytes) -> bytes:
    at = 16
    while truth[at : at + 4] != struct.pack("<I", 2):
        at += 8 + struct.unpack_from("<I", truth, at + 4)[0]
    count = at + 8 + 8 + 8
    (found,) = struct.unpack_from("<I", truth, count)
    return truth[:count] + struct.pack("<I", found + 1) + truth[count + 4 :]


def test_a_gap_fails_verification(
    program: ProgramBuilder, record: Recorder, tmp_path: Path
) -> None:
    live = record([program("pointers")])
    content = bytearray(live.data.read_bytes())
    with Trace(live.data) as trace:
        ((piece,),) = trace.data.auxtrace_buffers().values()
        middle = piece.file_offset + piece.size // 2
    content[middle : middle + 64] = b"\xff\x05" * 32
    (tmp_path / "perf.data").write_bytes(content)
    assert main(["verify", str(tmp_path / "perf.data"), "--truth", str(live.truth)]) == 1


def test_errors_carry_the_place(tmp_path: Path) -> None:
    (tmp_path / "bad").write_bytes(b"PERFILE2" + bytes(96))
    with pytest.raises(PerfDataError) as caught:
        Trace(tmp_path / "bad")
    assert caught.value.source == str(tmp_path / "bad")
    assert caught.value.offset is not None
