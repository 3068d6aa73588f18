"""`rtit record --pid` records running programs, which then continue unharmed."""

from __future__ import annotations

import os
import re
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rtit.capture.events import CaptureEvent, EventFlag, EventKind
from rtit.capture.ptrace.session import PtraceTracer, start_ptrace
from rtit.capture.request import RecordRequest
from rtit.cli.main import main
from rtit.errors import RecordError, UsageError
from rtit.image.file_symbols import FileSymbols
from rtit.trace import Trace
from support.processes import running_program, thread_statuses, wait_until
from support.recordings import RTIT, Attacher, attached_recorder, finish_recording

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="recording needs Linux")

ProgramBuilder = Callable[[str], Path]

ENDS = {
    "workers": (3, "input 1 wrong 0\nall worked\n"),
    "waiting": (
        0,
        "read: 1, error 0\npoll: 1, error 0\nselect: 1, error 0\nepoll: 1, error 0\n"
        "epoll with a limit: 1, error 0\nfutex: 0, error 0\nsigwait: 10, error 0\n"
        "nanosleep: 0, error 0\nreceive: 1, error 0\ninput: 1\n",
    ),
}


def send_line_and_wait(process: subprocess.Popen[str]) -> tuple[int, str]:
    stdout, _ = process.communicate("\n", timeout=300)
    return process.returncode, stdout


def verify_threads(folder: Path, capsys: pytest.CaptureFixture[str]) -> Counter[str]:
    """Return instruction counts by thread, and the total at key "", as `rtit verify` prints
    them.
    """
    code = main(["verify", str(folder / "perf.data"), "--truth", str(folder / "truth")])
    printed = capsys.readouterr().out
    assert code == 0, printed
    counts: Counter[str] = Counter()
    for line in printed.splitlines():
        who, _, rest = line.rpartition("identical: ")
        counts[who.strip(": ")] = int(rest.split()[0].replace(",", ""))
    return counts


@pytest.mark.parametrize("name", ["workers", "waiting"])
def test_ctrl_c_detaches_and_program_ends_as_natively(
    name: str, program: ProgramBuilder, attach: Attacher, capsys: pytest.CaptureFixture[str]
) -> None:
    live = attach(program(name))
    assert (live.status, live.stdout) == ENDS[name]
    assert "warning" not in live.stderr
    counts = verify_threads(live.folder, capsys)
    # Each waiting thread executes its call again, unless it was detached before.
    assert counts[""] >= (3000 if name == "workers" else 5)


def test_record_pid_prints_the_process_and_how_to_end(
    program: ProgramBuilder, tmp_path: Path
) -> None:
    with running_program(program("workers")) as process:
        command = [*RTIT, "record", "--pid", str(process.pid)]
        with subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True) as recorder:
            assert recorder.stderr is not None
            first = recorder.stderr.readline()
            recorder.send_signal(signal.SIGINT)
            assert recorder.wait() == 0
    expected = (
        rf"rtit record: attached to {process.pid} \((\d+) threads\); Ctrl-C ends the recording"
    )
    attached = re.fullmatch(expected, first.rstrip("\n"))
    assert attached is not None
    assert int(attached[1]) > 1  # threads start while rtit attaches


def test_attaching_reports_threads_that_already_run(
    program: ProgramBuilder, attach: Attacher
) -> None:
    live = attach(program("workers"))
    first: dict[int, list[CaptureEvent]] = {}
    last: dict[int, CaptureEvent] = {}
    mapped: Counter[int] = Counter()
    for event in live.log.events():
        if event.kind == EventKind.CODE and event.flags & EventFlag.CODE_OF_MAPPING:
            continue  # of a program that was built a moment ago
        if event.kind in (EventKind.MMAP, EventKind.CODE):
            mapped[event.tid] += event.clock == 0
            continue
        first.setdefault(event.tid, []).append(event)
        last[event.tid] = event
    pid = next(iter(first))
    # A thread that an attached thread starts before any other event is at clock 0, too.
    old = [
        tid
        for tid, events in first.items()
        if events[0].clock == 0 and events[0].target in (0, pid)
    ]
    # The first thread and four workers; short-lived threads may have existed, too.
    assert len(old) >= 5
    for tid in old:
        thread, name = first[tid][:2]
        assert (thread.kind, thread.ip) == (EventKind.THREAD, pid)
        assert (thread.target, thread.extra) == ((0, 0) if tid == pid else (pid, pid))
        assert (name.kind, name.blob) == (EventKind.COMM, program("workers").name[:15].encode())
    # The program, and the vDSO, which is in no file.
    assert mapped == Counter({pid: 3})
    assert {last[tid].kind for tid in old if tid != pid} == {EventKind.EXIT}
    assert last[pid].kind == EventKind.END
    # Threads and processes that were started meanwhile are followed.
    assert {event.ip == pid for tid in first.keys() - set(old) for event in first[tid][:1]} == {
        True,
        False,
    }


def test_program_that_ends_while_attached_is_verified(
    program: ProgramBuilder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with (
        running_program(program("workers")) as process,
        attached_recorder(process.pid, tmp_path) as recorder,
    ):
        assert send_line_and_wait(process) == ENDS["workers"]
        _, said = recorder.communicate(timeout=300)
        assert recorder.returncode == 0, said
    assert verify_threads(tmp_path, capsys)[""] > 100


def test_program_survives_kill_of_recorder(program: ProgramBuilder, tmp_path: Path) -> None:
    with running_program(program("workers")) as process:
        with attached_recorder(process.pid, tmp_path) as recorder:
            recorder.kill()
        assert send_line_and_wait(process) == ENDS["workers"]


IGNORES = (0, "input 1, ignored 1, slept 1, waited 1, wrong 0\n")


def ignores_sigtrap(pid: int) -> bool:
    text = Path(f"/proc/{pid}/status").read_text()
    (mask,) = (line.split()[1] for line in text.splitlines() if line.startswith("SigIgn:"))
    return bool(int(mask, 16) >> signal.SIGTRAP - 1 & 1)


@pytest.mark.parametrize("stopped", [False, True])
def test_ignored_sigtrap_is_restored_on_detach(
    stopped: bool, program: ProgramBuilder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Single steps make the kernel deliver SIGTRAP; detaching must make it ignored again."""
    with running_program(program("trap_ignored")) as process:
        with attached_recorder(process.pid, tmp_path) as recorder:
            wait_until(lambda: not ignores_sigtrap(process.pid), "a step")
            process.send_signal(signal.SIGTRAP)
            if stopped:
                process.send_signal(signal.SIGSTOP)
                wait_until(
                    lambda: {each[0] for each in thread_states(process.pid)} <= {"t", "T"}, "a stop"
                )
            recorder.terminate()
            _, said = recorder.communicate(timeout=300)
            assert (recorder.returncode, said) == (0, "")
        assert ignores_sigtrap(process.pid)
        if stopped:
            wait_until(lambda: thread_states(process.pid) == {"T0"}, "a stop")
            process.send_signal(signal.SIGCONT)
        assert send_line_and_wait(process) == IGNORES
    verify_threads(tmp_path, capsys)


def test_ignored_sigtrap_is_restored_on_detach_from_full_file(
    program: ProgramBuilder, tmp_path: Path
) -> None:
    """A program with a full file is still traced, without stops."""
    with running_program(program("trap_ignored")) as process:
        with attached_recorder(process.pid, tmp_path, "--max-size", "16K") as recorder:
            wait_until(lambda: (tmp_path / "perf.data").stat().st_size > 9000, "a trace")
            process.send_signal(signal.SIGTRAP)
            recorder.terminate()
            assert recorder.wait(timeout=300) == 0
        assert send_line_and_wait(process) == IGNORES


@pytest.mark.parametrize("tries", [10, pytest.param(100, marks=pytest.mark.slow)])
def test_detach_during_a_step_restores_ignored_sigtrap(program: ProgramBuilder, tries: int) -> None:
    """In some of 100 tries, the trap of the step is pending when the stop arrives."""
    with running_program(program("slow_steps")) as process:
        for _ in range(tries):
            with PtraceTracer.attach([process.pid]):
                wait_until(lambda: not ignores_sigtrap(process.pid), "a step")
            wait_until(
                lambda: all(each.endswith("0") for each in thread_states(process.pid)), "letting go"
            )
            assert ignores_sigtrap(process.pid)
        assert send_line_and_wait(process) == (0, "ignored 1\n")


def test_warns_if_ignored_sigtrap_cannot_be_restored(
    program: ProgramBuilder, tmp_path: Path
) -> None:
    """The program does not notice the failed system call of the recorder."""
    with running_program(program("calls_refused")) as process:
        with attached_recorder(process.pid, tmp_path) as recorder:
            wait_until(lambda: not ignores_sigtrap(process.pid), "a step")
            recorder.terminate()
            _, said = recorder.communicate(timeout=300)
            assert recorder.returncode == 0
        process.send_signal(signal.SIGUSR1)
        status, text = send_line_and_wait(process)
    if text.startswith("on 0"):
        pytest.skip("this kernel has no PR_SET_SYSCALL_USER_DISPATCH")
    assert (status, text) == (0, "on 1, input 1, refused 0\n")
    assert "ignored SIGTRAP, and does not any more" in said
    assert "its calls are refused" in said


def thread_states(pid: int) -> set[str]:
    return {each["State"][0] + each["TracerPid"] for each in thread_statuses(pid)}


def test_stopped_program_stays_stopped_after_detach(
    program: ProgramBuilder, tmp_path: Path
) -> None:
    with running_program(program("waiting")) as process:
        process.send_signal(signal.SIGSTOP)
        wait_until(lambda: thread_states(process.pid) == {"T0"}, "a stop")
        with attached_recorder(process.pid, tmp_path) as recorder:
            recorder.terminate()
            assert recorder.wait(timeout=300) == 0
        # a detached thread wakes up and stops again
        wait_until(lambda: thread_states(process.pid) == {"T0"}, "a stop")
        process.send_signal(signal.SIGCONT)
        assert send_line_and_wait(process) == ENDS["waiting"]


def test_program_stopped_while_recorded_stays_stopped_after_detach(
    program: ProgramBuilder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with running_program(program("workers")) as process:
        with attached_recorder(process.pid, tmp_path) as recorder:
            # It is written every second.
            wait_until(lambda: (tmp_path / "truth").stat().st_size > 2000, "instructions")
            process.send_signal(signal.SIGSTOP)
            recorder.terminate()
            assert recorder.wait(timeout=300) == 0
        wait_until(lambda: thread_states(process.pid) == {"T0"}, "a stop")
        process.send_signal(signal.SIGCONT)
        assert send_line_and_wait(process) == ENDS["workers"]
    verify_threads(tmp_path, capsys)


def test_function_filters_select_functions_of_attached_program(
    program: ProgramBuilder, tmp_path: Path
) -> None:
    exe = program("workers")
    with running_program(exe) as process:
        options = ["--filter", "filter odd", "--filter", "filter even"]
        with attached_recorder(process.pid, tmp_path, *options) as recorder:
            wait_until(lambda: (tmp_path / "perf.data").stat().st_size > 6000, "a trace")
            recorder.terminate()
            assert recorder.wait(timeout=300) == 0
        assert send_line_and_wait(process) == ENDS["workers"]
    with Trace(tmp_path / "perf.data") as trace:
        ips = {int(ip) for s in trace.streams for part in s.instructions() for ip in part.ip}
        (text,) = (each for each in trace.images.mappings(process.pid) if each.path == str(exe))
    symbols = FileSymbols(exe)
    names = {
        getattr(symbols.find_function(ip - text.start + text.offset), "name", None) for ip in ips
    }
    assert names == {"odd", "even"}


def test_two_programs_are_recorded_together(
    program: ProgramBuilder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with running_program(program("waiting")) as one, running_program(program("endless")) as other:
        session = start_ptrace(
            RecordRequest(
                pids=[one.pid, other.pid], output=tmp_path / "perf.data", truth=tmp_path / "truth"
            )
        )
        with session:
            wait_until(lambda: session.step(0.1) and session.totals.clock > 5000, "instructions")
            session.kill()
            recording = finish_recording(session)
        assert (recording.exit_code, recording.threads) == (0, 11)
        assert send_line_and_wait(one) == ENDS["waiting"]
        assert other.poll() is None
    assert verify_threads(tmp_path, capsys)[f"thread {other.pid}"] > 900


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--pid", "abc"], "--pid abc: expected process ids"),
        (["--pid", "12,"], "--pid 12,: expected process ids"),
        (["--pid", "0"], "--pid 0: expected process ids"),
        (["--pid", "5", "--", "ls"], "with a program to run"),
        (["--pid", "5", "--no-aslr"], "--no-aslr"),
        (["--pid", "5", "--backend", "qemu"], "QEMU"),
    ],
)
def test_wrong_options_are_a_usage_error(words: list[str], message: str) -> None:
    ended = subprocess.run(
        [*RTIT, "record", *words], capture_output=True, text=True, check=False, timeout=300
    )
    assert ended.returncode == 2
    assert message in ended.stderr
    assert len(ended.stderr.splitlines()) == 2  # with the usage


def attach_error(pid: int) -> str:
    with pytest.raises(RecordError) as caught:
        PtraceTracer.attach([pid])
    assert caught.value.exit_code == 125
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_attach_refuses_processes_that_cannot_be_traced(program: ProgramBuilder) -> None:
    assert "no process" in attach_error((1 << 31) - 1)
    assert "itself" in attach_error(os.getpid())
    assert "ancestor" in attach_error(os.getppid())
    with pytest.raises(UsageError):
        PtraceTracer.attach([-1])
    with pytest.raises(UsageError):
        PtraceTracer.attach([])
    with running_program(program("waiting")) as process:
        tids = {int(each["Pid"]) for each in thread_statuses(process.pid)} - {process.pid}
        tid = tids.pop()
        error = attach_error(tid)
        assert f"{tid} is a thread of process {process.pid}" in error
        assert f"--pid {process.pid}" in error
        assert f"rtit report --tid {tid}" in error
        with PtraceTracer.attach([process.pid]):
            assert "is traced by process" in attach_error(process.pid)
        wait_until(
            lambda: all(each.endswith("0") for each in thread_states(process.pid)), "letting go"
        )
        process.kill()
        wait_until(lambda: {each[0] for each in thread_states(process.pid)} == {"Z"}, "the end")
        assert "zombie" in attach_error(process.pid)


def test_attach_refuses_kernel_thread() -> None:
    if "kthreadd" not in Path("/proc/2/comm").read_text():
        pytest.skip("no kernel threads can be seen here")
    assert "kernel thread" in attach_error(2)


def test_attach_refuses_process_of_another_user(program: ProgramBuilder) -> None:
    setpriv = shutil.which("setpriv")
    if os.geteuid() != 0 or setpriv is None:
        pytest.skip("needs root, and setpriv")
    # Nothing can be tested where another user may not read our files.
    other = [setpriv, "--reuid=65534", "--clear-groups", *RTIT]
    if subprocess.run([*other, "--version"], capture_output=True, check=False).returncode:
        pytest.skip("another user cannot run rtit here")
    with running_program(program("waiting")) as process, tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o777)
        ended = subprocess.run(
            [*other, "record", "--pid", str(process.pid)],
            cwd=folder,
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
        )
    assert ended.returncode == 125
    assert "belongs to user 0" in ended.stderr


@pytest.fixture
def process_of_32_bits(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A 32-bit program that waits forever: a file header, a program header, and `pause`."""
    code = b"\xb8\x1d\x00\x00\x00\xcd\x80\xeb\xf7"  # mov eax, 29; int 0x80; jmp to the start
    base, start = 0x0804_8000, 52 + 32
    header = b"\x7fELF\x01\x01\x01" + bytes(9)
    header += struct.pack("<HHIIIIIHHHHHH", 2, 3, 1, base + start, 52, 0, 0, 52, 32, 1, 0, 0, 0)
    size = start + len(code)
    header += struct.pack("<8I", 1, 0, base, base, size, size, 5, 0x1000)
    path = tmp_path / "program"
    path.write_bytes(header + code)
    path.chmod(0o755)
    try:
        process = subprocess.Popen([path])
    except OSError as error:
        pytest.skip(f"no 32-bit programs here: {error}")
    with process:
        yield process
        process.kill()


def test_attach_refuses_32_bit_program(process_of_32_bits: subprocess.Popen[bytes]) -> None:
    assert "32-bit" in attach_error(process_of_32_bits.pid)
