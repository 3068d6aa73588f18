"""If a program or its recorder is stopped midway, the recording so far remains and is exact."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rtit.cli.main import main
from support.recordings import RTIT, require_backend

ProgramBuilder = Callable[[str], Path]


@pytest.fixture
def endless_recording(program: ProgramBuilder, tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A recorder of a program that never ends, in its own process group."""
    options = ["--backend", "ptrace", "-q", "--truth", "truth"]
    words = [*RTIT, "record", *options, "--", str(program("endless"))]
    with subprocess.Popen(
        words, cwd=tmp_path, stdout=subprocess.PIPE, start_new_session=True
    ) as recorder:
        assert recorder.stdout is not None
        assert recorder.stdout.read(8) == b"running\n"
        wait_for_growth(tmp_path / "perf.data")
        yield recorder
        recorder.kill()


def wait_for_growth(path: Path) -> None:
    before = path.stat().st_size
    deadline = time.monotonic() + 300
    while path.stat().st_size <= before + 256:
        assert time.monotonic() < deadline, "nothing is written"
        time.sleep(0.05)


def assert_verified(
    folder: Path, capsys: pytest.CaptureFixture[str], *, whole: bool = True
) -> None:
    code = main(["verify", str(folder / "perf.data"), "--truth", str(folder / "truth")])
    printed = capsys.readouterr().out
    assert code == (0 if whole else 3), printed
    assert printed.endswith("decoded as executed\n") == whole
    assert int(printed.splitlines()[-1].split()[1].replace(",", "")) > 1000


def test_ctrl_c_keeps_an_exact_recording(
    endless_recording: subprocess.Popen[bytes], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    os.killpg(endless_recording.pid, signal.SIGINT)
    assert endless_recording.wait(timeout=300) == 128 + signal.SIGINT
    assert_verified(tmp_path, capsys)


def test_sigterm_keeps_an_exact_recording(
    endless_recording: subprocess.Popen[bytes], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    endless_recording.terminate()
    assert endless_recording.wait(timeout=300) == 128 + signal.SIGTERM
    assert_verified(tmp_path, capsys)


def test_sighup_keeps_an_exact_recording(
    endless_recording: subprocess.Popen[bytes], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    endless_recording.send_signal(signal.SIGHUP)
    assert endless_recording.wait(timeout=300) == 128 + signal.SIGHUP
    assert_verified(tmp_path, capsys)


HANGS_UP = ["/bin/sh", "-c", "kill -HUP $PPID; echo goes on"]


@pytest.mark.parametrize("command", ["record", "stat"])
@pytest.mark.parametrize("backend", ["ptrace", "qemu"])
def test_hangup_of_recorder_reaches_program(
    command: str, backend: str, program: ProgramBuilder, tmp_path: Path
) -> None:
    """The program is a child of the recorder."""
    require_backend(backend)
    words = [*RTIT, command, "--backend", backend, "--", str(program("hangs_up"))]
    ended = subprocess.run(words, cwd=tmp_path, stdout=subprocess.PIPE, check=False, timeout=300)
    assert (ended.returncode, ended.stdout) == (3, b"hung up\n")


@pytest.mark.parametrize("command", ["record", "stat"])
def test_nohup_keeps_recorder_and_program(command: str, tmp_path: Path) -> None:
    require_backend("qemu")
    ended = subprocess.run(
        [*RTIT, command, "--", *HANGS_UP],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        check=False,
        timeout=300,
        preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN),
    )
    assert (ended.returncode, ended.stdout) == (0, b"goes on\n")


def test_kill_of_program_keeps_an_exact_recording(
    endless_recording: subprocess.Popen[bytes], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    children = Path(f"/proc/{endless_recording.pid}/task")
    program = [
        int(child)
        for task in children.iterdir()
        for child in (task / "children").read_text().split()
    ]
    os.kill(program[0], signal.SIGKILL)
    assert endless_recording.wait(timeout=300) == 128 + signal.SIGKILL
    assert_verified(tmp_path, capsys)


def test_kill_of_recorder_keeps_an_incomplete_but_exact_recording(
    endless_recording: subprocess.Popen[bytes], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    endless_recording.kill()
    assert endless_recording.wait(timeout=300) == -signal.SIGKILL
    assert_verified(tmp_path, capsys, whole=False)
    assert main(["report", str(tmp_path / "perf.data")]) == 3
    assert "incomplete" in capsys.readouterr().out
