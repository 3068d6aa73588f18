"""How a program ended, as its recording tells it: the same under both back ends.

Expected are the signals and the siginfo that the kernel gives for what the program does
(sigaction(2)), at labels that the program has there.
"""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from rtit.capture.backends import start_recording
from rtit.capture.recording import Recording
from rtit.capture.request import RecordRequest
from rtit.capture.store.size_limits import SizeLimits
from rtit.cli.look.record import _EPILOG
from rtit.cli.main import main
from rtit.image.file_symbols import FileSymbols
from rtit.perfdata import Fault
from rtit.trace import Trace
from support.processes import wait_until
from support.recordings import finish_recording, record_to_end, require_backend

ProgramBuilder = Callable[[str], Path]
THERE = 0xDEAD0010
SI_KERNEL, SEGV_MAPERR, FPE_INTDIV, ILL_ILLOPN, BUS_ADRERR = 0x80, 1, 1, 2, 2
PAGE = 0x20000010


@pytest.fixture(params=["qemu", "ptrace"])
def backend(request: pytest.FixtureRequest) -> str:
    require_backend(request.param)
    return str(request.param)


def recorded(argv: list[str], backend: str, folder: Path) -> Recording:
    return record_to_end(
        start_recording(RecordRequest(argv, backend=backend, output=folder / "data"))
    )


@dataclass(frozen=True)
class Case:
    """The argument, the signal, the label at which it comes, its si_code and si_addr (None: that
    label).
    """

    argument: str
    number: int
    label: str | None = None
    code: int = 0
    address: int | None = None


CASES = [
    Case("write", signal.SIGSEGV, "write_there", SEGV_MAPERR, THERE),
    Case("stop", signal.SIGSEGV, "stop_there", SI_KERNEL, 0),
    Case("both", signal.SIGSEGV, "stop_there", SI_KERNEL, 0),
    Case("far", signal.SIGSEGV, "far_there", SI_KERNEL, 0),
    Case("divide", signal.SIGFPE, "divide_there", FPE_INTDIV),
    Case("illegal", signal.SIGILL, "illegal_there", ILL_ILLOPN),
    Case("page", signal.SIGBUS, "page_there", BUS_ADRERR, PAGE),
    Case("kill", signal.SIGSEGV),
    Case("term", signal.SIGTERM),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: str(case.argument))
def test_signals(case: Case, backend: str, program: ProgramBuilder, tmp_path: Path) -> None:
    exe = program("endings")
    recording = recorded([str(exe), case.argument], backend, tmp_path)
    assert recording.exit_code == 128 + case.number
    with Trace(tmp_path / "data") as trace:
        [ended] = trace.endings
        [stream] = trace.streams
        assert (ended.pid, ended.tid) == (stream.pid, stream.tid)
        assert ended.time >= 1_000_000_000 + recording.instructions
    assert (ended.exit_status.signal, ended.exit_status.exit_code) == (case.number, None)
    assert ended.exit_status.took_signal
    assert recording.ending == ended.exit_status
    if case.label is None:
        assert ended.exit_status.fault is None
        return
    symbols = FileSymbols(exe)
    [label] = symbols.find_by_name(case.label)
    place = symbols.address(label.offset)
    address = place if case.address is None else case.address
    assert ended.exit_status.fault == Fault(place, case.code, address)


DEADLY = sorted(
    {number for number in signal.valid_signals() if number < signal.SIGRTMIN}
    - {signal.SIGCHLD, signal.SIGCONT, signal.SIGURG, signal.SIGWINCH}
    - {signal.SIGSTOP, signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU}
)
"""Those that end a process unless it says otherwise (signal(7)); QEMU numbers the real-time ones
otherwise.
"""


@pytest.mark.parametrize("number", DEADLY, ids=lambda number: signal.Signals(number).name)
def test_a_signal_that_is_sent(
    number: int, backend: str, program: ProgramBuilder, tmp_path: Path
) -> None:
    """No instruction causes it, though one may cause the same."""
    recording = recorded([str(program("endings")), f"x{number}"], backend, tmp_path)
    with Trace(tmp_path / "data") as trace:
        [ended] = trace.endings
    assert recording.ending == ended.exit_status
    assert (ended.exit_status.signal, ended.exit_status.fault) == (number, None)
    # by SIGKILL all threads end, and none takes it
    assert ended.exit_status.took_signal == (number != signal.SIGKILL)
    assert recording.exit_code == 128 + number
    if number != signal.SIGKILL:  # of which QEMU is not told
        assert not recording.warnings


@pytest.mark.parametrize("case", CASES, ids=lambda case: str(case.argument))
def test_what_ran_before_it(case: Case, program: ProgramBuilder, tmp_path: Path) -> None:
    """An instruction that failed is not among it."""
    ran = []
    for backend in ("qemu", "ptrace"):
        require_backend(backend)
        recorded([str(program("endings")), case.argument], backend, tmp_path)
        with Trace(tmp_path / "data") as trace:
            [stream] = trace.streams
            ran.append([ip for batch in stream.instructions() for ip in batch.ip.tolist()])
    assert ran[0] == ran[1]


def test_a_signal_from_outside(backend: str, program: ProgramBuilder, tmp_path: Path) -> None:
    """No instruction causes it, wherever it comes."""
    for _ in range(3):
        request = RecordRequest(
            [str(program("endless"))], backend=backend, output=tmp_path / "data"
        )
        with start_recording(request) as session:
            wait_until(lambda: session.step(0.2) and session.totals.pt_bytes > 500, "packets")
            session.signal(signal.SIGSEGV)
            ending = finish_recording(session).ending
        assert ending is not None
        assert (ending.signal, ending.fault) == (signal.SIGSEGV, None)


def test_a_jump_to_nowhere(backend: str, program: ProgramBuilder, tmp_path: Path) -> None:
    recorded([str(program("endings")), "jump"], backend, tmp_path)
    with Trace(tmp_path / "data") as trace:
        [ended] = trace.endings
    assert ended.exit_status.fault == Fault(0xDEAD0020, SEGV_MAPERR, 0xDEAD0020)


def test_an_exit_code(backend: str, program: ProgramBuilder, tmp_path: Path) -> None:
    recording = recorded([str(program("endings"))], backend, tmp_path)
    with Trace(tmp_path / "data") as trace:
        [ended] = trace.endings
    assert (recording.exit_code, ended.exit_status.exit_code, ended.exit_status.signal) == (
        3,
        3,
        None,
    )
    assert recording.ending == ended.exit_status


def test_a_child_that_crashes(backend: str, program: ProgramBuilder, tmp_path: Path) -> None:
    recording = recorded([str(program("endings")), "child"], backend, tmp_path)
    with Trace(tmp_path / "data") as trace:
        child, parent = trace.endings
    assert recording.exit_code == 7
    assert (parent.exit_status.exit_code, recording.ending) == (7, parent.exit_status)
    assert child.pid != parent.pid
    assert child.exit_status.signal == signal.SIGSEGV
    assert child.exit_status.fault is not None
    assert child.exit_status.fault.address == THERE


def test_the_thread_that_crashes(backend: str, program: ProgramBuilder, tmp_path: Path) -> None:
    recorded([str(program("crash_thread"))], backend, tmp_path)
    with Trace(tmp_path / "data") as trace:
        [ended] = trace.endings
        titles = {stream.tid: stream.pid for stream in trace.streams}
    assert ended.tid != ended.pid
    assert titles == {ended.pid: ended.pid, ended.tid: ended.pid}
    assert ended.exit_status.fault is not None
    assert ended.exit_status.fault.address == THERE


def test_a_file_that_is_full_says_it_too(
    backend: str, program: ProgramBuilder, tmp_path: Path
) -> None:
    request = RecordRequest(
        [str(program("crash_late"))],
        backend=backend,
        output=tmp_path / "data",
        event="intel_pt/cyc,noretcomp/u",
        size_limits=SizeLimits(max_size=1 << 14),
    )
    recording = record_to_end(start_recording(request))
    assert recording.stopped is not None
    with Trace(tmp_path / "data") as trace:
        [ended] = trace.endings
    assert ended.exit_status.signal == signal.SIGSEGV


def test_record_and_report_say_it(
    backend: str,
    program: ProgramBuilder,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    exe, data = str(program("endings")), str(tmp_path / "data")
    words = ["--backend", backend, "-o", data]
    assert main(["record", *words, "--json", "-", "--", exe, "write"]) == 128 + signal.SIGSEGV
    said = capfd.readouterr()
    found = json.loads(said.out.removeprefix("ending\n"))
    assert (found["exit_code"], found["signal"]) == (128 + signal.SIGSEGV, signal.SIGSEGV)
    assert found["fault"]["address"] == THERE
    assert f"; ended by SIGSEGV at address {THERE:#x}, instruction " in said.err
    main(["report", data])
    assert f"SIGSEGV at address {THERE:#x}, instruction " in capfd.readouterr().out
    main(["report", data, "--json"])
    [ended] = json.loads(capfd.readouterr().out)["endings"]
    assert (ended["signal"], ended["fault"]["address"]) == (signal.SIGSEGV, THERE)
    assert main(["record", *words, "-q", "--json", str(tmp_path / "said"), "--", exe]) == 3
    assert capfd.readouterr() == ("ending\n", "")
    assert json.loads((tmp_path / "said").read_text())["exit_code"] == 3


def test_json_that_cannot_be_written_is_an_error_before_the_program_runs(
    program: ProgramBuilder, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    words = ["--backend", "ptrace", "-o", str(tmp_path / "data")]
    code = main(["record", *words, "--json", str(tmp_path / "no" / "x"), str(program("endings"))])
    said = capfd.readouterr()
    assert (code, said.out) == (125, "")
    assert "no/x" in said.err
    assert not (tmp_path / "data").exists()


def test_executed_is_more_than_traced(
    backend: str, program: ProgramBuilder, tmp_path: Path
) -> None:
    """The summary's numbers are those of everything that ran, and it says so."""
    argv = [str(program("recursion"))]
    whole = recorded(argv, backend, tmp_path)
    request = RecordRequest(
        argv, backend=backend, output=tmp_path / "data", filters=[f"filter main @ {argv[0]}"]
    )
    part = record_to_end(start_recording(request))
    assert (whole.partial, part.partial) == (False, True)
    assert part.instructions == whole.instructions
    assert part.pt_bytes < whole.pt_bytes


@pytest.mark.parametrize(
    ("backend", "phrase"), [("ptrace", "one clock for all threads"), ("qemu", "a clock a thread")]
)
def test_help_and_file_agree_on_the_clocks(
    backend: str, phrase: str, program: ProgramBuilder, tmp_path: Path
) -> None:
    require_backend(backend)
    recorded([str(program("endings"))], backend, tmp_path)
    with Trace(tmp_path / "data") as trace:
        assert phrase in trace.data.facts["time"]
    help_text = " ".join(_EPILOG.split())
    assert phrase in help_text
