"""More processes at once than there may be files open: what can be recorded is, and none waits."""

from __future__ import annotations

import resource
import socket
import subprocess
from pathlib import Path

import pytest

from rtit.capture.qemu import qemu_process
from rtit.capture.qemu.qemu_process import OpenFileLimit
from support.recordings import RTIT

FEW = 40
# All are there at once, however long it takes to start one: each waits for a byte.
SCRIPT = (
    "mkfifo gate; exec 9<>gate; for i in $(seq 24); do (head -c1 <&9 >/dev/null; :) & done;"
    "printf %24s . >&9; wait; ulimit -Sn"
)

pytestmark = pytest.mark.usefixtures("qemu")


def stat(folder: Path, soft: int, hard: int) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*RTIT, "stat", "--", "/bin/sh", "-c", SCRIPT],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard)),
    )


def test_recorder_raises_its_soft_limit_and_program_keeps_the_original(tmp_path: Path) -> None:
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    ended = stat(tmp_path, FEW, hard)
    assert ended.returncode == 0
    assert ended.stdout.split() == [str(FEW)]
    assert "too many processes" not in ended.stderr
    assert "killed" not in ended.stderr


def test_reject_connection_without_reserve_sleeps(monkeypatch: pytest.MonkeyPatch) -> None:
    """The connection is still there when the recorder looks again, which must not be at once."""
    files = OpenFileLimit()
    waited: list[float] = []
    monkeypatch.setattr(qemu_process, "_reserve_descriptor", lambda: -1)
    monkeypatch.setattr("time.sleep", waited.append)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.setblocking(False)  # it does not listen: nothing can be accepted
        for _ in range(3):
            files.reject_connection(listener)
    files.close()
    assert len(waited) == 3
    assert min(waited) > 0


def test_processes_beyond_the_hard_limit_are_ended_with_a_warning(tmp_path: Path) -> None:
    ended = stat(tmp_path, FEW, FEW)
    assert ended.stdout.split()[-1] == str(FEW)
    assert "too many processes at the same time" in ended.stderr
