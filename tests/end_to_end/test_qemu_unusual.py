"""Programs, names and surroundings that are out of the ordinary, recorded under QEMU: they behave
as without a recorder, and what was recorded is what was executed.
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
from rtit.capture.qemu.recording_folder import RecordingFolder, remove_stale
from rtit.cli.main import main
from support.processes import is_signal_pending, send_signal_and_wait, wait_until
from support.recordings import RTIT

pytestmark = pytest.mark.usefixtures("qemu")

CANNOT = 77


@pytest.fixture(scope="module")
def unusual(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = shutil.which("gcc") or pytest.skip("no C compiler")
    path = tmp_path_factory.mktemp("unusual") / "unusual"
    flags = ["-O1", "-pthread", "-D_GNU_SOURCE"]
    subprocess.run([compiler, *flags, "-o", path, SOURCES / "unusual.c"], check=True)
    return path


class Recorder:
    """Records in a folder of its own."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.folder = folder
        self.capsys = capsys

    def command(self, *words: str | bytes | Path) -> list[str | bytes | Path]:
        options = ["--backend", "qemu", "-q", "--truth", "truth"]
        return [*RTIT, "record", *options, "--", *words]

    def __call__(
        self, *words: str | bytes | Path, **more: object
    ) -> subprocess.CompletedProcess[bytes]:
        settings: dict[str, object] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        return subprocess.run(  # type: ignore[call-overload,no-any-return]
            self.command(*words), cwd=self.folder, check=False, timeout=300, **(settings | more)
        )

    @property
    def words(self) -> list[str]:
        """What verifies it."""
        data, truth = self.folder / "perf.data", self.folder / "truth"
        return ["verify", str(data), "--truth", str(truth)]

    def is_right(self, *, whole: bool = True) -> int:
        """Decoded as executed; the number of threads."""
        code = main(self.words)
        printed = self.capsys.readouterr().out
        assert code == (0 if whole else 3), printed
        last = printed.splitlines()[-1].split()
        assert int(last[1].replace(",", "")) > 1000
        return int(last[4])


@pytest.fixture
def record(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Recorder:
    return Recorder(tmp_path, capsys)


@pytest.mark.parametrize(
    ("mode", "status", "output", "threads"),
    [
        ("threads", 0, b"1000\n", 1001),
        ("deep", 0, b"", 1),
        ("large", 0, b"1\n1\n", 1),
        ("files", 0, b"1\n", 1),
    ],
)
def test_at_the_limits(
    mode: str, status: int, output: bytes, threads: int, unusual: Path, record: Recorder
) -> None:
    ended = record(unusual, mode)
    assert (ended.returncode, ended.stdout, ended.stderr) == (status, output, b"")
    assert record.is_right() == threads


def test_a_limit_that_qemu_passes_over(unusual: Path, record: Recorder) -> None:
    """It is told once, the program behaves as under QEMU."""
    ended = record(unusual, "memory")
    assert (ended.returncode, ended.stdout) == (0, b"")
    assert ended.stderr.count(b"QEMU does not apply limits of the address space") == 1
    assert record.is_right() == 1


def test_recursion_without_end(unusual: Path, record: Recorder) -> None:
    assert record(unusual, "bottomless").returncode == 128 + signal.SIGSEGV
    assert record.is_right() == 1


DUMPING = [signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL]
DUMPING += [signal.SIGQUIT, signal.SIGSEGV, signal.SIGTRAP]


@pytest.mark.parametrize(
    "number",
    [*DUMPING, signal.SIGSYS, signal.SIGTERM, signal.SIGUSR1],
    ids=lambda number: number.name,
)
def test_a_thread_that_runs_while_a_signal_ends_all(
    number: signal.Signals, unusual: Path, record: Recorder
) -> None:
    """Before it dumps core QEMU stops the thread, elsewhere than the plugin does."""
    ended = record(unusual, "killed", str(int(number)))
    assert ended.returncode == 128 + number
    assert b"missing" not in ended.stderr
    assert record.is_right() == 2


def test_a_daemon_is_recorded_to_its_end(unusual: Path, record: Recorder) -> None:
    result = record.folder / "result"
    ended = record(unusual, "daemon", result)
    assert (ended.returncode, ended.stderr) == (0, b"")
    assert result.read_text() == "done"
    assert record.is_right() == 3


def test_out_of_reach_of_the_plugin(unusual: Path, record: Recorder) -> None:
    root = record.folder / "root"
    root.mkdir()
    flags = ["-static", "-O1", "-x", "c", "-"]
    built = subprocess.run(
        ["gcc", *flags, "-o", root / "inside"], input=b"int main(void) { return 0; }", check=False
    )
    if built.returncode != 0:
        pytest.skip("no static C library")
    cases: list[tuple[list[str | Path], bytes]] = [
        ([unusual, "root", root], b"5\n"),
        ([unusual, "user"], b"65534\n"),
    ]
    for words, output in cases:
        ended = record(*words)
        if ended.returncode == CANNOT:
            pytest.skip("only root may do this")
        assert (ended.returncode, ended.stdout) == (0, output)
        # Said once, and not taken for a death.
        assert ended.stderr.count(b"\n") == 1
        assert b"runs unrecorded" in ended.stderr
        record.is_right()


def test_names_that_are_not_text(unusual: Path, record: Recorder) -> None:
    name = os.fsencode(record.folder) + b"/na\xffme"
    shutil.copy(os.fsencode(unusual), name)
    ended = record(name, b"words", b"\xff\xfe", b"", b"a b", b"\n")
    assert (ended.returncode, ended.stdout) == (0, b"fffe..612062.0a.\n")
    record.is_right()


@pytest.mark.parametrize("name", ["pro gram", "-dash", "a,b=c:d;e", "line\nfeed"])
def test_names_with_a_meaning_elsewhere(name: str, unusual: Path, record: Recorder) -> None:
    # A folder of the PATH cannot have a colon.
    record.folder /= "od d;x,y"
    record.folder.mkdir()
    shutil.copy(unusual, record.folder / name)
    ended = record(f"./{name}", "words", "--", "-plugin")
    assert (ended.returncode, ended.stdout) == (0, b"2d2d.2d706c7567696e.\n")
    record.is_right()
    env = {**os.environ, "PATH": f"{record.folder}:{os.environ['PATH']}"}
    assert record(name, "words", "-x", env=env).stdout == b"2d78.\n"


@pytest.mark.parametrize("name", ["x" * 200, "with blank", "missing/folder"])
def test_temporary_folders(name: str, unusual: Path, record: Recorder) -> None:
    folder = record.folder / name
    if "/" not in name:
        folder.mkdir()
    ended = record(unusual, "words", env={**os.environ, "TMPDIR": str(folder)})
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, b"\n", b"")


def test_standard_files(record: Recorder) -> None:
    ended = record("/bin/cat", input=b"through a pipe")
    assert ended.stdout == b"through a pipe"
    closed = ["/bin/sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh"]
    script = "[ -e /proc/self/fd/0 ] || : > closed"
    words = [*closed, *record.command("/bin/sh", "-c", script)]
    assert subprocess.run(words, cwd=record.folder, check=False, timeout=300).returncode == 0
    record.is_right()
    assert (record.folder / "closed").exists()


def test_on_a_terminal(record: Recorder) -> None:
    tool = shutil.which("script") or pytest.skip("no script(1)")
    words = " ".join(map(str, record.command("/usr/bin/tty")))
    ended = subprocess.run(
        [tool, "-qec", words, "/dev/null"], cwd=record.folder, capture_output=True, check=False
    )
    assert (ended.returncode, ended.stdout[:5]) == (0, b"/dev/")
    record.is_right()


def running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def folders(parent: Path) -> list[Path]:
    return list(parent.glob("rtit-*"))


@pytest.mark.parametrize("how", ["killed", "twice"])
def test_a_recorder_that_ends_first(how: str, unusual: Path, record: Recorder) -> None:
    # The path of a socket in it must not be long.
    parent = Path(tempfile.mkdtemp(prefix="t", dir="/tmp"))
    env = {**os.environ, "TMPDIR": str(parent)}
    try:
        with subprocess.Popen(
            record.command(unusual, "wait"),
            cwd=record.folder,
            stdout=subprocess.PIPE,
            env=env,
            start_new_session=True,
        ) as recorder:
            assert recorder.stdout is not None
            child = int(recorder.stdout.readline())
            assert running(child)
            if how == "killed":
                wait_until(lambda: main(record.words) == 3, "something that can be verified")
                record.capsys.readouterr()
                recorder.kill()
                assert recorder.wait(300) == -signal.SIGKILL
            else:
                # The first is the program's, which it ends; its child, in another session, goes on.
                os.killpg(recorder.pid, signal.SIGINT)
                wait_until(
                    lambda: not is_signal_pending(recorder.pid, signal.SIGINT), "taking the signal"
                )
                time.sleep(0.5)
                assert recorder.poll() is None
                send_signal_and_wait(recorder, signal.SIGINT)
                assert recorder.wait(300) == 128 + signal.SIGINT
        wait_until(lambda: not running(child), "the end of the child")
        record.is_right(whole=how != "killed")
        wait_until(lambda: not folders(parent), "no folder")
        assert record("/bin/true", env=env).returncode == 0
        assert folders(parent) == []
    finally:
        shutil.rmtree(parent)


def test_a_folder_that_is_being_made_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whenever another recorder begins."""
    folder = "rtit.capture.qemu.recording_folder._temporary_folder"
    monkeypatch.setattr(folder, lambda: str(tmp_path))
    for name in ("os.mkfifo", "os.open", "fcntl.flock"):
        module, _, function = name.partition(".")
        real = getattr(importlib.import_module(module), function)
        here = False

        def meanwhile(*words: object, real: Callable[..., object] = real) -> object:
            nonlocal here
            if not here:
                here = True
                remove_stale(str(tmp_path))
                result = real(*words)
                remove_stale(str(tmp_path))
                here = False
                return result
            return real(*words)

        with monkeypatch.context() as patch:
            patch.setattr(name, meanwhile)
            mine = RecordingFolder()
        assert Path(mine.name, "alive").exists()
        assert folders(tmp_path) == [Path(mine.name)]
        mine.cleanup()


def test_folders_of_living_recorders_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = "rtit.capture.qemu.recording_folder._temporary_folder"
    monkeypatch.setattr(folder, lambda: str(tmp_path))
    mine = RecordingFolder()
    (tmp_path / "rtit-of-another-kind").mkdir()
    remove_stale(str(tmp_path))
    assert len(folders(tmp_path)) == 2
    mine.cleanup()
    mine.cleanup()
    assert folders(tmp_path) == [tmp_path / "rtit-of-another-kind"]


def test_a_folder_that_never_got_its_name(tmp_path: Path) -> None:
    """Its recorder was killed in that moment: an hour later it goes."""
    new, old = (tmp_path / f"new-rtit-{name}" for name in ("one", "two"))
    new.mkdir()
    old.mkdir()
    then = time.time() - 3700
    os.utime(old, (then, then))
    remove_stale(str(tmp_path))
    assert list(tmp_path.iterdir()) == [new]


def test_a_folder_that_a_killed_recorder_left(tmp_path: Path) -> None:
    """Nobody holds its pipe: the next recorder removes it, if nothing else did."""
    left = tmp_path / "rtit-left"
    left.mkdir()
    os.mkfifo(left / "alive")
    remove_stale(str(tmp_path))
    assert folders(tmp_path) == []


def test_a_link_in_its_place_is_not_followed(tmp_path: Path) -> None:
    """Who may write into the folder above could put one there."""
    other = tmp_path / "other"
    other.mkdir()
    os.mkfifo(other / "alive")
    (tmp_path / "rtit-left").symlink_to(other)
    remove_stale(str(tmp_path))
    assert (other / "alive").exists()
