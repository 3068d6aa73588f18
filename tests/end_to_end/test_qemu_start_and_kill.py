"""QEMU that cannot be started, and kills, which end recorded processes and no others."""

from __future__ import annotations

import errno
import os
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rtit.capture.events import EVENT_RECORD, EventKind
from rtit.capture.qemu.counting import start_counting
from rtit.capture.qemu.qemu_process import RecordingFolder
from rtit.capture.qemu.session import QemuSession
from rtit.capture.qemu.start import start_qemu
from rtit.capture.request import RecordRequest
from support.processes import send_signal_and_wait
from support.recordings import RTIT, finish_recording

pytestmark = pytest.mark.usefixtures("qemu")

PYTHON = sys.executable
# Daemons close all their files. /proc does not show the files of a process that is not dumpable.
DAEMON_SCRIPT = r"""
import ctypes, os, signal, sys, time
for kind in sys.argv[1:]:
    if os.fork() == 0:
        os.setsid()
        if "closes" in kind:
            os.closerange(3, 4096)
        if "hides" in kind:
            ctypes.CDLL(None).prctl(4, 0, 0, 0, 0)
        os.write(1, b"%d\n" % os.getpid())
        while True:
            time.sleep(1000)
os.write(1, b"%d\n" % os.getpid())
time.sleep(1000)
"""


@pytest.fixture
def bystander() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["sleep", "1000"]) as process:
        yield process
        process.kill()


def make_request(folder: Path, *argv: str) -> RecordRequest:
    return RecordRequest(argv, backend="qemu", output=folder / "perf.data")


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b") ")[2][:1] != b"Z"
    except OSError:
        return False


def send_event(session: QemuSession, kind: int, pid: int) -> None:
    """Send the first event of a plugin in a process that claims the number `pid`."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as plugin:
        plugin.connect(f"{session.folder}/socket")
        plugin.send(EVENT_RECORD.pack(kind, 0, 0, pid, pid, 0, 0, 0) + b"x")
        while session.totals.threads < 2:
            session.step(0.1)


def test_kill_spares_process_with_a_pid_that_a_plugin_claims(
    tmp_path: Path, bystander: subprocess.Popen[bytes]
) -> None:
    with start_qemu(make_request(tmp_path, "sleep", "1000")) as session:
        while session.totals.threads < 1:
            session.step(0.1)
        send_event(session, EventKind.THREAD, bystander.pid)
        session.kill()
        session.kill()
        finish_recording(session)
    assert bystander.poll() is None


def test_session_does_not_wait_for_a_dead_qemu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with start_qemu(make_request(tmp_path, "sleep", "1000")) as session:
        while session.totals.threads < 1:
            session.step(0.1)
        select, waited = session._selector.select, []

        def seen(timeout: float | None = None) -> object:
            waited.append(timeout)
            return select(timeout)

        monkeypatch.setattr(session._selector, "select", seen)
        session.kill()
        while session.step(10):
            pass
        session.finish()
    assert waited[-1] == 0


def test_killed_recorder_leaves_no_temporary_folder(tmp_path: Path) -> None:
    """The kill reaches the whole process group of the recorder."""
    # the path of a socket must be short
    temporary = Path(tempfile.mkdtemp(prefix="t", dir="/tmp"))
    with subprocess.Popen(
        [*RTIT, "record", "-q", "--backend", "qemu", "--", "/bin/sh", "-c", "echo; sleep 1000"],
        cwd=tmp_path,
        env=os.environ | {"TMPDIR": str(temporary)},
        stdout=subprocess.PIPE,
        start_new_session=True,
    ) as recorder:
        try:
            assert recorder.stdout is not None
            recorder.stdout.readline()
            made = [each.name[:5] for each in temporary.iterdir()]
        finally:
            os.killpg(recorder.pid, signal.SIGKILL)
    assert made == ["rtit-"]
    limit = time.monotonic() + 300
    while list(temporary.iterdir()) and time.monotonic() < limit:
        time.sleep(0.05)
    temporary.rmdir()  # it is empty


@pytest.mark.parametrize("kinds", [["plain", "closes", "hides"], ["closes hides"]])
def test_second_signal_kills_recorded_processes(tmp_path: Path, kinds: list[str]) -> None:
    command = [
        *RTIT,
        "record",
        "--backend",
        "qemu",
        "-q",
        "--",
        PYTHON,
        "-c",
        DAEMON_SCRIPT,
        *kinds,
    ]
    pids: list[int] = []
    with subprocess.Popen(
        command, cwd=tmp_path, stdout=subprocess.PIPE, start_new_session=True
    ) as recorder:
        assert recorder.stdout is not None
        try:
            pids += [int(recorder.stdout.readline()) for _ in range(len(kinds) + 1)]
            send_signal_and_wait(recorder, signal.SIGTERM)
            send_signal_and_wait(recorder, signal.SIGTERM)
            # The first signal ends the program, unless the second one kills it before.
            assert recorder.wait(300) - 128 in (signal.SIGTERM, signal.SIGKILL)
            # Nothing proves that "closes hides" was recorded: it is left alone.
            if kinds != ["closes hides"]:
                deadline = time.monotonic() + 300
                while any(map(is_running, pids)):
                    assert time.monotonic() < deadline
                    time.sleep(0.05)
        finally:
            recorder.kill()
            for pid in filter(is_running, pids):
                os.kill(pid, signal.SIGKILL)


def start_error(folder: Path, script: str, preexec: Callable[[], None] | None = None) -> str:
    """Return the error line of a recording that cannot start."""
    text = f"from rtit.cli.main import main\n{script}\n"
    ended = subprocess.run(
        [PYTHON, "-c", text],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
        preexec_fn=preexec,
    )
    assert ended.returncode == 125, ended.stderr
    assert len(ended.stderr.splitlines()) == 1, ended.stderr
    return ended.stderr


def test_too_long_arguments_exit_125(tmp_path: Path) -> None:
    def small_stack() -> None:
        resource.setrlimit(resource.RLIMIT_STACK, (1 << 20, resource.RLIM_INFINITY))

    script = "exit(main(['record', '--backend', 'qemu', '--', '/bin/true', *['x' * 100_000] * 3]))"
    assert "Argument list too long" in start_error(tmp_path, script, small_stack)


@pytest.mark.parametrize("option", ["-o", "--truth"])
def test_unwritable_output_leaves_no_files_and_no_processes(tmp_path: Path, option: str) -> None:
    """QEMU already runs at this point, but not the program."""
    temporary = Path(tempfile.mkdtemp(prefix="t", dir="/tmp"))
    before = tmp_path / "perf.data"
    before.write_bytes(b"a recording")
    ended = subprocess.run(
        [*RTIT, "record", "--backend", "qemu", option, "nowhere/file", "--", "/bin/mkdir", "ran"],
        cwd=tmp_path,
        env=os.environ | {"TMPDIR": str(temporary)},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert ended.returncode == 125
    assert len(ended.stderr.splitlines()) == 1, ended.stderr
    assert "nowhere/file" in ended.stderr
    assert [*tmp_path.iterdir()] == [before]
    assert before.read_bytes() == b"a recording"
    temporary.rmdir()  # it is empty
    named = os.fsencode(f"{temporary}/")
    for process in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            assert named not in process.read_bytes()
        except OSError:
            continue


def test_impossible_tmpdir_is_replaced_by_another(tmp_path: Path) -> None:
    """Python's tempfile does the same."""
    script = """
import os
os.environ["TMPDIR"] = "/tmp/" + "a" * 300
exit(main(["record", "-q", "--backend", "qemu", "--", "/bin/true"]))
"""
    command = [PYTHON, "-c", f"from rtit.cli.main import main\n{script}\n"]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, check=False, timeout=300)
    assert (ended.returncode, ended.stderr) == (0, b"")


@pytest.mark.parametrize("convert_path", [str, os.fsencode])
def test_tempfile_tempdir_takes_precedence_over_tmpdir(
    convert_path: Callable[[str], str | bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python's tempfile does the same."""
    temporary = tempfile.mkdtemp(prefix="t", dir="/tmp")
    monkeypatch.setattr("tempfile.tempdir", convert_path(temporary))
    monkeypatch.setenv("TMPDIR", "/var/tmp")
    folder = RecordingFolder()
    assert Path(folder.name).parent == Path(tempfile.gettempdirb().decode()) == Path(temporary)
    folder.remove_folder()
    Path(temporary).rmdir()


def test_counting_that_cannot_start_kills_qemu_and_removes_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """QEMU already runs at this point."""
    temporary = Path(tempfile.mkdtemp(prefix="t", dir="/tmp"))
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    started = []

    class RecordedPopen(subprocess.Popen[bytes]):
        def __init__(self, *arguments: object, **options: object) -> None:
            super().__init__(*arguments, **options)  # type: ignore[call-overload]
            started.append(self)

    def fail_with_emfile() -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr("rtit.capture.qemu.qemu_process.subprocess.Popen", RecordedPopen)
    monkeypatch.setattr("rtit.capture.qemu.session.selectors.DefaultSelector", fail_with_emfile)
    with pytest.raises(OSError, match="Too many open files"):
        start_counting(make_request(tmp_path, "/bin/true"), lambda file: {})
    assert started[-1].returncode == -signal.SIGKILL
    temporary.rmdir()  # it is empty


@pytest.mark.parametrize("call", ["mkdir", "mkfifo", "write_text", "write_bytes"])
def test_full_temporary_folder_exits_125(tmp_path: Path, call: str) -> None:
    script = f"""
import os, pathlib

def full(*_, **__):
    raise OSError(28, "No space left on device")
for holder in (os, pathlib.Path):
    if hasattr(holder, "{call}"):
        setattr(holder, "{call}", full)
exit(main(["record", "--backend", "qemu", "--", "/bin/true"]))
"""
    said = start_error(tmp_path, script)
    assert "No space left on device" in said
    assert "temporary" in said
