"""A recording states how its program ended, the same under both back ends.

Expected are the signals and the siginfo that the kernel gives for each failure (sigaction(2)),
at labels in the test program.
"""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from rtit.capture.backends import start_recording
from rtit.capture.request import RecordRequest, SizeLimits
from rtit.capture.session import Recording
from rtit.cli.look.record import _EPILOG
from rtit.cli.main import main
from rtit.image.file_symbols import FileSymbols
from rtit.perfdata import Fault
from rtit.trace import Trace
from support.processes import wait_until
from support.recordings import Recorder, finish_recording, record_to_end, require_backend

ProgramBuilder = Callable[[str], Path]
UNMAPPED_ADDRESS = 0xDEAD0010
SI_KERNEL, SEGV_MAPERR, FPE_INTDIV, ILL_ILLOPN, BUS_ADRERR = 0x80, 1, 1, 2, 2
PAGE = 0x20000010


@pytest.fixture(params=["qemu", "ptrace"])
def backend(request: pytest.FixtureRequest) -> str:
    require_backend(request.param)
    return str(request.param)


def record_program(argv: list[str], backend: str, folder: Path) -> Recording:
    return record_to_end(
        start_recording(RecordRequest(argv, backend=backend, output=folder / "data"))
    )


@dataclass(frozen=True)
class Case:
    """A failure: argument of the program, signal, label of the instruction, si_code and
    si_addr.

    An `address` of None means that si_addr is the label.
    """

    argument: str
    number: int
    label: str | None = None
    code: int = 0
    address: int | None = None


CASES = [
    Case("write", signal.SIGSEGV, "write_there", SEGV_MAPERR, UNMAPPED_ADDRESS),
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
def test_deadly_signal_is_recorded_with_its_fault(
    case: Case, backend: str, program: ProgramBuilder, tmp_path: Path
) -> None:
    exe = program("endings")
    recording = record_program([str(exe), case.argument], backend, tmp_path)
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
    label_address = symbols.address(label.offset)
    address = label_address if case.address is None else case.address
    assert ended.exit_status.fault == Fault(label_address, case.code, address)


DEADLY = sorted(
    {number for number in signal.valid_signals() if number < signal.SIGRTMIN}
    - {signal.SIGCHLD, signal.SIGCONT, signal.SIGURG, signal.SIGWINCH}
    - {signal.SIGSTOP, signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU}
)
"""The signals that end a process by default (signal(7)), without real-time ones, which QEMU numbers
differently.
"""


@pytest.mark.parametrize("number", DEADLY, ids=lambda number: signal.Signals(number).name)
def test_sent_signal_has_no_fault(
    number: int, backend: str, program: ProgramBuilder, tmp_path: Path
) -> None:
    """No instruction causes the signal, although one could cause the same one."""
    recording = record_program([str(program("endings")), f"x{number}"], backend, tmp_path)
    with Trace(tmp_path / "data") as trace:
        [ended] = trace.endings
    assert recording.ending == ended.exit_status
    assert (ended.exit_status.signal, ended.exit_status.fault) == (number, None)
    # SIGKILL ends all threads; no thread takes it
    assert ended.exit_status.took_signal == (number != signal.SIGKILL)
    assert recording.exit_code == 128 + number
    if number != signal.SIGKILL:  # QEMU does not see SIGKILL
        assert not recording.warnings


@pytest.mark.parametrize("case", CASES, ids=lambda case: str(case.argument))
def test_path_before_the_signal_is_the_same_in_both_back_ends(
    case: Case, program: ProgramBuilder, tmp_path: Path
) -> None:
    """The path does not include the instruction that faulted."""
    ran = []
    for backend in ("qemu", "ptrace"):
        require_backend(backend)
        record_program([str(program("endings")), case.argument], backend, tmp_path)
        with Trace(tmp_path / "data") as trace:
            [stream] = trace.streams
            ran.append([ip for batch in stream.instructions() for ip in batch.ip.tolist()])
    assert ran[0] == ran[1]


def test_signal_from_another_process_has_no_fault(
    backend: str, program: ProgramBuilder, tmp_path: Path
) -> None:
    """No instruction causes the signal, wherever it arrives."""
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


def test_jump_to_unmapped_address_is_a_fault_there(
    backend: str, program: ProgramBuilder, tmp_path: Path
) -> None:
    record_program([str(program("endings")), "jump"], backend, tmp_path)
    with Trace(tmp_path / "data") as trace:
        [ended] = trace.endings
    assert ended.exit_status.fault == Fault(0xDEAD0020, SEGV_MAPERR, 0xDEAD0020)


def test_exit_code_is_recorded(backend: str, program: ProgramBuilder, tmp_path: Path) -> None:
    recording = record_program([str(program("endings"))], backend, tmp_path)
    with Trace(tmp_path / "data") as trace:
        [ended] = trace.endings
    assert (recording.exit_code, ended.exit_status.exit_code, ended.exit_status.signal) == (
        3,
        3,
        None,
    )
    assert recording.ending == ended.exit_status


def test_crash_of_child_is_recorded_beside_exit_of_parent(
    backend: str, program: ProgramBuilder, tmp_path: Path
) -> None:
    recording = record_program([str(program("endings")), "child"], backend, tmp_path)
    with Trace(tmp_path / "data") as trace:
        child, parent = trace.endings
    assert recording.exit_code == 7
    assert (parent.exit_status.exit_code, recording.ending) == (7, parent.exit_status)
    assert child.pid != parent.pid
    assert child.exit_status.signal == signal.SIGSEGV
    assert child.exit_status.fault is not None
    assert child.exit_status.fault.address == UNMAPPED_ADDRESS


def test_crash_names_the_thread_that_faulted(
    backend: str, program: ProgramBuilder, tmp_path: Path
) -> None:
    record_program([str(program("crash_thread"))], backend, tmp_path)
    with Trace(tmp_path / "data") as trace:
        [ended] = trace.endings
        titles = {stream.tid: stream.pid for stream in trace.streams}
    assert ended.tid != ended.pid
    assert titles == {ended.pid: ended.pid, ended.tid: ended.pid}
    assert ended.exit_status.fault is not None
    assert ended.exit_status.fault.address == UNMAPPED_ADDRESS


def test_process_exit_during_thread_starts_and_exits_loses_no_end(
    backend: str,
    program: ProgramBuilder,
    record: Recorder,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    if backend == "ptrace":
        live = record([program("threads_ending")])
        assert (live.status, live.stdout, live.stderr) == (3, "", "")
        assert main(["verify", str(live.data), "--truth", str(live.truth)]) == 0
        return
    words = ["--backend", backend, "-q", "-o", str(tmp_path / "data")]
    truth = str(tmp_path / "truth")
    assert main(["record", *words, "--truth", truth, "--", str(program("threads_ending"))]) == 3
    assert capfd.readouterr() == ("", "")
    assert main(["verify", str(tmp_path / "data"), "--truth", truth]) == 0


def test_full_file_still_records_the_crash(
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


def test_record_and_report_print_the_crash(
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
    assert found["fault"]["address"] == UNMAPPED_ADDRESS
    assert f"; ended by SIGSEGV at address {UNMAPPED_ADDRESS:#x}, instruction " in said.err
    main(["report", data])
    assert f"SIGSEGV at address {UNMAPPED_ADDRESS:#x}, instruction " in capfd.readouterr().out
    main(["report", data, "--json"])
    [ended] = json.loads(capfd.readouterr().out)["endings"]
    assert (ended["signal"], ended["fault"]["address"]) == (signal.SIGSEGV, UNMAPPED_ADDRESS)
    assert main(["record", *words, "-q", "--json", str(tmp_path / "said"), "--", exe]) == 3
    assert capfd.readouterr() == ("ending\n", "")
    assert json.loads((tmp_path / "said").read_text())["exit_code"] == 3


def test_unwritable_json_is_an_error_before_the_program_runs(
    program: ProgramBuilder, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    words = ["--backend", "ptrace", "-o", str(tmp_path / "data")]
    code = main(["record", *words, "--json", str(tmp_path / "no" / "x"), str(program("endings"))])
    said = capfd.readouterr()
    assert (code, said.out) == (125, "")
    assert "no/x" in said.err
    assert not (tmp_path / "data").exists()


def test_totals_of_filtered_recording_count_all_executed_instructions(
    backend: str, program: ProgramBuilder, tmp_path: Path
) -> None:
    """The recording is marked as partial."""
    argv = [str(program("recursion"))]
    whole = record_program(argv, backend, tmp_path)
    request = RecordRequest(
        argv, backend=backend, output=tmp_path / "data", filters=[f"filter main @ {argv[0]}"]
    )
    part = record_to_end(start_recording(request))
    assert (whole.partial, part.partial) == (False, True)
    assert part.instructions == whole.instructions
    assert part.pt_bytes < whole.pt_bytes


@pytest.mark.parametrize(
    ("backend", "fact", "help_phrase"),
    [
        (
            "ptrace",
            "one clock for all threads",
            "With --backend ptrace all threads share one clock",
        ),
        ("qemu", "one clock for each thread", "With --backend qemu each thread has its own clock"),
    ],
)
def test_help_and_recording_describe_the_same_clock(
    backend: str, fact: str, help_phrase: str, program: ProgramBuilder, tmp_path: Path
) -> None:
    require_backend(backend)
    record_program([str(program("endings"))], backend, tmp_path)
    with Trace(tmp_path / "data") as trace:
        assert fact in trace.data.facts["time"]
    assert help_phrase in " ".join(_EPILOG.split())
