"""The tracer from Python: batches, signals, and the life of the program."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from programs.build import CannotBuildError, build
from rtit.capture.backends import start_recording
from rtit.capture.events import CaptureEvent, EventKind, EventLog, iterate_events, parse_mmap
from rtit.capture.ptrace.session import PtraceTracer
from rtit.capture.request import RecordRequest
from rtit.errors import RecordError
from rtit.trace import Trace
from support.recordings import require_backend


@pytest.fixture(autouse=True, scope="module")
def _tracer() -> None:
    if sys.platform != "linux":
        pytest.skip("recording needs Linux")
    if not hasattr(pytest.importorskip("rtit._core"), "Tracer"):
        pytest.skip("the native module has no tracer")


def build_program(name: str) -> Path:
    try:
        return build(name)
    except CannotBuildError as error:
        pytest.skip(str(error))


def all_events(tracer: PtraceTracer) -> Iterator[CaptureEvent]:
    for batch in tracer:
        yield from iterate_events(batch)


def test_tracer_reports_events_from_program_start_to_end(tmp_path: Path) -> None:
    exe = build_program("recursion")
    log = EventLog()
    with PtraceTracer([exe], truth=tmp_path / "truth", no_aslr=True) as tracer:
        for batch in tracer:
            log.append(*batch)
        pid = tracer.pid
        stats = tracer.stats()
        assert tracer.next_batch(0) is None
    found = list(log.events())
    assert {event.tid for event in found} == {pid}
    assert [event.kind for event in found[:3]] == [EventKind.THREAD, EventKind.EXEC, EventKind.COMM]
    assert found[1].blob == os.fsencode(exe)
    assert found[2].blob == exe.name[:15].encode()
    mapped = {parse_mmap(event.blob).path for event in found if event.kind == EventKind.MMAP}
    assert mapped >= {str(exe), "[vdso]"}
    assert [event.kind for event in found[-2:]] == [EventKind.EXIT, EventKind.END]
    assert (found[-1].ip, found[-1].flags) == (0, 0)
    assert found[-1].clock == stats["retired"] > 0
    assert stats["stops"] > 0
    assert stats["processes"] == 0
    clocks = [event.clock for event in found]
    assert clocks == sorted(clocks)
    # Every call of the recursion returns, except for those that lead to the end of the program.
    kinds = Counter(event.kind for event in found)
    assert kinds[EventKind.CALL] + kinds[EventKind.INDIRECT_CALL] >= kinds[EventKind.RETURN] > 100


def test_same_program_gives_the_same_events_twice() -> None:
    exe = build_program("recursion")

    def executed_path() -> list[tuple[int, int, int]]:
        with PtraceTracer([exe], env={}, no_aslr=True) as tracer:
            return [(e.kind, e.ip, e.clock) for e in all_events(tracer) if e.kind <= EventKind.FAR]

    assert executed_path() == executed_path()


def test_signal_and_kill_end_the_program() -> None:
    exe = build_program("endless")
    for end, status, killed in [("signal", signal.SIGTERM, 0), ("kill", signal.SIGKILL, 1)]:
        tracer = PtraceTracer([exe])
        # The program never ends by itself: this returns while it runs.
        assert tracer.next_batch(30)
        if end == "signal":
            tracer.signal(signal.SIGTERM)
        else:
            tracer.kill()
        *_, gone, last = all_events(tracer)
        assert (gone.kind, gone.ip) == (EventKind.EXIT, status)
        assert (last.kind, last.ip, last.flags) == (EventKind.END, status, killed)
        tracer.signal(signal.SIGTERM)  # the program is gone
        tracer.kill()


def test_dropped_tracer_kills_the_program() -> None:
    tracer = PtraceTracer([build_program("endless")])
    pid = tracer.pid
    os.kill(pid, 0)
    del tracer
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def run_in_fork(child: Callable[[], None]) -> int:
    """Run a function in a forked process, and return its exit code: 1 if it raises."""
    pid = os.fork()
    if not pid:
        code = 1
        try:
            signal.alarm(60)
            child()
            code = 0
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def test_tracer_in_a_forked_process_does_nothing(tmp_path: Path) -> None:
    tracer = [PtraceTracer([build_program("endless")])]
    pid = tracer[0].pid

    def child() -> None:
        tracer[0].kill()
        tracer[0].signal(signal.SIGTERM)
        assert tracer[0].next_batch(0) is None
        tracer.clear()

    assert run_in_fork(child) == 0
    os.kill(pid, 0)
    assert tracer[0].next_batch(30)
    tracer[0].kill()
    *_, last = all_events(tracer[0])
    assert (last.kind, last.ip) == (EventKind.END, signal.SIGKILL)


@pytest.mark.parametrize("backend", ["ptrace", "qemu"])
def test_session_exit_in_a_forked_process_does_nothing(backend: str, tmp_path: Path) -> None:
    require_backend(backend)
    request = RecordRequest(
        [str(build_program("endless"))], backend=backend, output=tmp_path / "data"
    )
    with start_recording(request) as session:
        assert session.step(30)

        def child() -> None:
            session.__exit__(None, None, None)
            session.__exit__(ValueError, ValueError(), None)

        assert run_in_fork(child) == 0
        assert session.step(30)
        before = session.totals.clock
        session.kill()
        while session.step(30):
            pass
        assert session.finish().instructions >= before
    with Trace(tmp_path / "data") as trace:
        assert trace.incomplete is None


def test_kill_detaches_while_a_forked_copy_lives(tmp_path: Path) -> None:
    with subprocess.Popen([build_program("endless")], stdout=subprocess.PIPE) as process:
        tracer = PtraceTracer.attach([process.pid])
        with forked_copy():
            tracer.kill()
            assert [event.kind for event in all_events(tracer)][-1] == EventKind.END
        process.kill()


@contextmanager
def forked_copy() -> Iterator[None]:
    """A forked process that has copies of all open descriptors."""
    pid = os.fork()
    if not pid:
        signal.alarm(120)
        signal.pause()
        os._exit(0)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def test_program_does_not_inherit_the_recorders_signal_mask(tmp_path: Path) -> None:
    """The program gets the signals that the recorder blocks for itself."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    try:
        tracer = PtraceTracer([build_program("endless")])
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
    status = Path(f"/proc/{tracer.pid}/status").read_text()
    masks = dict(line.split(":\t") for line in status.splitlines() if line.startswith("Sig"))
    assert int(masks["SigBlk"], 16) == 0
    # Python ignores SIGPIPE; a program must not.
    assert int(masks["SigIgn"], 16) & (1 << signal.SIGPIPE - 1) == 0
    tracer.kill()
    for _ in tracer:
        pass


def test_program_inherits_no_descriptors_of_the_tracer(tmp_path: Path) -> None:
    tracer = PtraceTracer([build_program("endless")], truth=tmp_path / "truth")
    opened = {int(fd.name) for fd in Path(f"/proc/{tracer.pid}/fd").iterdir()}
    inherited = {
        int(fd.name) for fd in Path("/proc/self/fd").iterdir() if is_inherited(int(fd.name))
    }
    tracer.kill()
    assert opened <= inherited


def is_inherited(fd: int) -> bool:
    try:
        return os.get_inheritable(fd)
    except OSError:  # the descriptor that listed the folder
        return False


def test_other_children_of_the_process_are_unaffected() -> None:
    tracer = PtraceTracer([build_program("endless")])
    other = subprocess.run([sys.executable, "-Ic", "raise SystemExit(7)"], check=False)
    tracer.kill()
    assert other.returncode == 7
    assert [event.kind for event in all_events(tracer)][-1] == EventKind.END


def test_program_that_cannot_start_raises(tmp_path: Path) -> None:
    script = tmp_path / "script"
    script.write_text("#!/nowhere/interpreter\n")
    script.chmod(0o755)
    cases: list[tuple[list[str | Path], str | None, int]] = [
        (["no-such-program"], None, 127),
        (["/etc"], None, 126),
        (["/etc/passwd"], None, 126),
        ([script], None, 126),
        (["/bin/true"], "/nowhere", 125),
    ]
    for argv, cwd, exit_code in cases:
        with pytest.raises(RecordError) as caught:
            PtraceTracer(argv, cwd=cwd)
        assert caught.value.exit_code == exit_code
    with pytest.raises(RecordError, match="truth"):
        PtraceTracer(["/bin/true"], truth="/proc/absent/truth")
