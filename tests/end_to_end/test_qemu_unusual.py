"""Unusual programs, names and environments under QEMU behave as natively and decode as
executed.
"""

from __future__ import annotations

import importlib
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from programs.build import SOURCES
from rtit.capture.qemu.qemu_process import RecordingFolder, remove_stale_folders
from rtit.cli.main import main
from support.processes import is_signal_pending, send_signal_and_wait, wait_until
from support.recordings import RTIT

pytestmark = pytest.mark.usefixtures("qemu")

EXIT_NEEDS_ROOT = 77


@pytest.fixture(scope="module")
def unusual_program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = shutil.which("gcc") or pytest.skip("no C compiler")
    path = tmp_path_factory.mktemp("unusual") / "unusual"
    flags = ["-O1", "-pthread", "-D_GNU_SOURCE"]
    subprocess.run([compiler, *flags, "-o", path, SOURCES / "unusual.c"], check=True)
    return path


class UnusualRecorder:
    """Record into a separate folder."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.folder = folder
        self.capsys = capsys

    def command(self, *verify_words: str | bytes | Path) -> list[str | bytes | Path]:
        options = ["--backend", "qemu", "-q", "--truth", "truth"]
        return [*RTIT, "record", *options, "--", *verify_words]

    def __call__(
        self, *verify_words: str | bytes | Path, **more: object
    ) -> subprocess.CompletedProcess[bytes]:
        settings: dict[str, object] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        return subprocess.run(  # type: ignore[call-overload,no-any-return]
            self.command(*verify_words),
            cwd=self.folder,
            check=False,
            timeout=300,
            **(settings | more),
        )

    @property
    def verify_words(self) -> list[str]:
        """Arguments of `rtit verify` for the recording."""
        data, truth = self.folder / "perf.data", self.folder / "truth"
        return ["verify", str(data), "--truth", str(truth)]

    def verified_threads(self, *, whole: bool = True) -> int:
        """Verify the recording, and return its number of threads."""
        code = main(self.verify_words)
        printed = self.capsys.readouterr().out
        assert code == (0 if whole else 3), printed
        last = printed.splitlines()[-1].split()
        assert int(last[1].replace(",", "")) > 1000
        return int(last[4])


@pytest.fixture
def record(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> UnusualRecorder:
    return UnusualRecorder(tmp_path, capsys)


@pytest.mark.parametrize(
    ("mode", "status", "output", "threads"),
    [
        ("threads", 0, b"1000\n", 1001),
        ("deep", 0, b"", 1),
        ("large", 0, b"1\n1\n", 1),
        ("files", 0, b"1\n", 1),
    ],
)
def test_program_at_resource_limits_is_recorded(
    mode: str,
    status: int,
    output: bytes,
    threads: int,
    unusual_program: Path,
    record: UnusualRecorder,
) -> None:
    ended = record(unusual_program, mode)
    assert (ended.returncode, ended.stdout, ended.stderr) == (status, output, b"")
    assert record.verified_threads() == threads


def test_address_space_limit_gives_one_warning(
    unusual_program: Path, record: UnusualRecorder
) -> None:
    """The program runs without the limit, as under QEMU."""
    ended = record(unusual_program, "memory")
    assert (ended.returncode, ended.stdout) == (0, b"")
    assert ended.stderr.count(b"QEMU does not apply limits of the address space") == 1
    assert record.verified_threads() == 1


def test_stack_overflow_is_recorded(unusual_program: Path, record: UnusualRecorder) -> None:
    assert record(unusual_program, "bottomless").returncode == 128 + signal.SIGSEGV
    assert record.verified_threads() == 1


DUMPING = [signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL]
DUMPING += [signal.SIGQUIT, signal.SIGSEGV, signal.SIGTRAP]


@pytest.mark.parametrize(
    "number",
    [*DUMPING, signal.SIGSYS, signal.SIGTERM, signal.SIGUSR1],
    ids=lambda number: number.name,
)
def test_thread_running_while_a_signal_kills_the_process_is_verified(
    number: signal.Signals, unusual_program: Path, record: UnusualRecorder
) -> None:
    """Before it dumps core, QEMU stops the thread elsewhere than the plugin does."""
    ended = record(unusual_program, "killed", str(int(number)))
    assert ended.returncode == 128 + number
    assert b"missing" not in ended.stderr
    assert record.verified_threads() == 2


def test_daemon_is_recorded_to_its_end(unusual_program: Path, record: UnusualRecorder) -> None:
    result = record.folder / "result"
    ended = record(unusual_program, "daemon", result)
    assert (ended.returncode, ended.stderr) == (0, b"")
    assert result.read_text() == "done"
    assert record.verified_threads() == 3


def test_program_after_chroot_or_setuid_runs_unrecorded(
    unusual_program: Path, record: UnusualRecorder
) -> None:
    root = record.folder / "root"
    root.mkdir()
    flags = ["-static", "-O1", "-x", "c", "-"]
    built = subprocess.run(
        ["gcc", *flags, "-o", root / "inside"], input=b"int main(void) { return 0; }", check=False
    )
    if built.returncode != 0:
        pytest.skip("no static C library")
    cases: list[tuple[list[str | Path], bytes]] = [
        ([unusual_program, "root", root], b"5\n"),
        ([unusual_program, "user"], b"65534\n"),
    ]
    for verify_words, output in cases:
        ended = record(*verify_words)
        if ended.returncode == EXIT_NEEDS_ROOT:
            pytest.skip("only root may do this")
        assert (ended.returncode, ended.stdout) == (0, output)
        # One warning, and no report of a crash.
        assert ended.stderr.count(b"\n") == 1
        assert b"runs unrecorded" in ended.stderr
        record.verified_threads()


def test_names_that_are_not_utf_8_are_kept(unusual_program: Path, record: UnusualRecorder) -> None:
    name = os.fsencode(record.folder) + b"/na\xffme"
    shutil.copy(os.fsencode(unusual_program), name)
    ended = record(name, b"words", b"\xff\xfe", b"", b"a b", b"\n")
    assert (ended.returncode, ended.stdout) == (0, b"fffe..612062.0a.\n")
    record.verified_threads()


@pytest.mark.parametrize("name", ["pro gram", "-dash", "a,b=c:d;e", "line\nfeed"])
def test_names_with_special_characters_are_kept(
    name: str, unusual_program: Path, record: UnusualRecorder
) -> None:
    # A folder in PATH cannot contain a colon.
    record.folder /= "od d;x,y"
    record.folder.mkdir()
    shutil.copy(unusual_program, record.folder / name)
    ended = record(f"./{name}", "words", "--", "-plugin")
    assert (ended.returncode, ended.stdout) == (0, b"2d2d.2d706c7567696e.\n")
    record.verified_threads()
    env = {**os.environ, "PATH": f"{record.folder}:{os.environ['PATH']}"}
    assert record(name, "words", "-x", env=env).stdout == b"2d78.\n"


@pytest.mark.parametrize("name", ["x" * 200, "with blank", "missing/folder"])
def test_unusual_temporary_folder_works(
    name: str, unusual_program: Path, record: UnusualRecorder
) -> None:
    folder = record.folder / name
    if "/" not in name:
        folder.mkdir()
    ended = record(unusual_program, "words", env={**os.environ, "TMPDIR": str(folder)})
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, b"\n", b"")


def test_standard_files_are_those_of_the_recorder(record: UnusualRecorder) -> None:
    ended = record("/bin/cat", input=b"through a pipe")
    assert ended.stdout == b"through a pipe"
    closed = ["/bin/sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh"]
    script = "[ -e /proc/self/fd/0 ] || : > closed"
    verify_words = [*closed, *record.command("/bin/sh", "-c", script)]
    assert subprocess.run(verify_words, cwd=record.folder, check=False, timeout=300).returncode == 0
    record.verified_threads()
    assert (record.folder / "closed").exists()


def test_program_on_a_terminal_has_the_terminal(record: UnusualRecorder) -> None:
    tool = shutil.which("script") or pytest.skip("no script(1)")
    verify_words = " ".join(map(str, record.command("/usr/bin/tty")))
    ended = subprocess.run(
        [tool, "-qec", verify_words, "/dev/null"],
        cwd=record.folder,
        capture_output=True,
        check=False,
    )
    assert (ended.returncode, ended.stdout[:5]) == (0, b"/dev/")
    record.verified_threads()


def is_running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def recording_folders(parent: Path) -> list[Path]:
    return list(parent.glob("rtit-*"))


@pytest.mark.parametrize("how", ["killed", "twice"])
def test_program_ends_with_its_recorder(
    how: str, unusual_program: Path, record: UnusualRecorder
) -> None:
    # The path of a socket in this folder must be short.
    parent = Path(tempfile.mkdtemp(prefix="t", dir="/tmp"))
    env = {**os.environ, "TMPDIR": str(parent)}
    try:
        with subprocess.Popen(
            record.command(unusual_program, "wait"),
            cwd=record.folder,
            stdout=subprocess.PIPE,
            env=env,
            start_new_session=True,
        ) as recorder:
            assert recorder.stdout is not None
            child = int(recorder.stdout.readline())
            assert is_running(child)
            if how == "killed":
                wait_until(lambda: main(record.verify_words) == 3, "something that can be verified")
                record.capsys.readouterr()
                recorder.kill()
                assert recorder.wait(300) == -signal.SIGKILL
            else:
                # The first signal ends the program; its child, in another session, continues.
                os.killpg(recorder.pid, signal.SIGINT)
                wait_until(
                    lambda: not is_signal_pending(recorder.pid, signal.SIGINT), "taking the signal"
                )
                time.sleep(0.5)
                assert recorder.poll() is None
                send_signal_and_wait(recorder, signal.SIGINT)
                assert recorder.wait(300) == 128 + signal.SIGINT
        wait_until(lambda: not is_running(child), "the end of the child")
        record.verified_threads(whole=how != "killed")
        wait_until(lambda: not recording_folders(parent), "no folder")
        assert record("/bin/true", env=env).returncode == 0
        assert recording_folders(parent) == []
    finally:
        shutil.rmtree(parent)


def test_remove_stale_keeps_folder_that_is_being_created(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another recorder may start at any point of the creation."""
    folder = "rtit.capture.qemu.qemu_process._temporary_folder"
    monkeypatch.setattr(folder, lambda: str(tmp_path))
    for name in ("os.mkfifo", "os.open", "fcntl.flock"):
        module, _, function = name.partition(".")
        real = getattr(importlib.import_module(module), function)
        here = False

        def meanwhile(*verify_words: object, real: Callable[..., object] = real) -> object:
            nonlocal here
            if not here:
                here = True
                remove_stale_folders(str(tmp_path))
                result = real(*verify_words)
                remove_stale_folders(str(tmp_path))
                here = False
                return result
            return real(*verify_words)

        with monkeypatch.context() as patch:
            patch.setattr(name, meanwhile)
            mine = RecordingFolder()
        assert Path(mine.name, "alive").exists()
        assert recording_folders(tmp_path) == [Path(mine.name)]
        mine.remove_folder()


def test_remove_stale_keeps_folders_of_running_recorders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = "rtit.capture.qemu.qemu_process._temporary_folder"
    monkeypatch.setattr(folder, lambda: str(tmp_path))
    mine = RecordingFolder()
    (tmp_path / "rtit-of-another-kind").mkdir()
    remove_stale_folders(str(tmp_path))
    assert len(recording_folders(tmp_path)) == 2
    mine.remove_folder()
    mine.remove_folder()
    assert recording_folders(tmp_path) == [tmp_path / "rtit-of-another-kind"]


def test_remove_stale_removes_unnamed_folder_after_an_hour(tmp_path: Path) -> None:
    """Its recorder was killed while it created the folder."""
    new, old = (tmp_path / f"new-rtit-{name}" for name in ("one", "two"))
    new.mkdir()
    old.mkdir()
    then = time.time() - 3700
    os.utime(old, (then, then))
    remove_stale_folders(str(tmp_path))
    assert list(tmp_path.iterdir()) == [new]


def test_remove_stale_removes_folder_of_killed_recorder(tmp_path: Path) -> None:
    """No process holds the pipe of the folder."""
    left = tmp_path / "rtit-left"
    left.mkdir()
    os.mkfifo(left / "alive")
    remove_stale_folders(str(tmp_path))
    assert recording_folders(tmp_path) == []


def test_remove_stale_does_not_follow_links(tmp_path: Path) -> None:
    """A user who may write into the parent folder could create a link there."""
    other = tmp_path / "other"
    other.mkdir()
    os.mkfifo(other / "alive")
    (tmp_path / "rtit-left").symlink_to(other)
    remove_stale_folders(str(tmp_path))
    assert (other / "alive").exists()
