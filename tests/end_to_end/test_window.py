"""A recording that starts and stops at a function or an instruction count.

It holds that part of the complete path, to the instruction, under both back ends.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from programs.build import PROGRAMS
from rtit.capture.backends import start_recording
from rtit.capture.request import RecordRequest
from rtit.capture.session import Recording
from rtit.cli.main import main
from rtit.errors import UsageError
from rtit.image.file_symbols import FileSymbols
from rtit.trace import Trace
from support.recordings import record_to_end, require_backend

ProgramBuilder = Callable[[str], Path]
WindowRecorder = Callable[..., Recording]


@pytest.fixture(params=["qemu", "ptrace"])
def backend(request: pytest.FixtureRequest) -> str:
    require_backend(request.param)
    return str(request.param)


@pytest.fixture
def record_window(backend: str, tmp_path: Path) -> WindowRecorder:
    def recorded(argv: list[str], **options: str | tuple[str, ...]) -> Recording:
        session = start_recording(
            RecordRequest(
                argv,
                backend=backend,
                output=tmp_path / "data",
                truth=tmp_path / "truth",
                **options,  # type: ignore[arg-type]
            )
        )
        return record_to_end(session)

    return recorded


def verify_recording(folder: Path, capsys: pytest.CaptureFixture[str]) -> int:
    """Run `rtit verify`, and return the number of instructions that it compared."""
    code = main(["verify", str(folder / "data"), "--truth", str(folder / "truth")])
    printed = capsys.readouterr().out
    assert code == 0, printed
    return int(printed.splitlines()[-1].split()[1].replace(",", ""))


def decoded_paths(data: Path) -> list[list[int]]:
    """Return the decoded addresses of each thread."""
    with Trace(data) as trace:
        return [
            [int(ip) for part in stream.instructions() for ip in part.ip]
            for stream in trace.streams
        ]


@pytest.fixture(scope="module")
def complete_path(program: ProgramBuilder, tmp_path_factory: pytest.TempPathFactory) -> list[int]:
    """Every executed instruction of `recursion`."""
    data = tmp_path_factory.mktemp("whole") / "data"
    record_to_end(
        start_recording(RecordRequest([str(program("recursion"))], backend="ptrace", output=data))
    )
    [path] = decoded_paths(data)
    return path


WINDOWS = [
    ("0", None),
    ("1", "2"),
    ("1000", None),
    (None, "1000"),
    ("100", "+777"),
    ("1001", "5003"),
    ("main", None),
    (None, "even"),
    ("even", "odd"),
    ("even", "even"),
    ("say", "+100"),
    ("2000", "even"),
]


def boundary_index(
    complete_path: list[int], exe: Path, text: str | None, start: int | None, default: int
) -> int:
    """Return the index in the path of a window boundary."""
    if text is None:
        return default
    if text[0] == "+":
        return (start or 0) + int(text)
    if text.isdigit():
        return int(text)
    [function] = FileSymbols(exe).find_by_name(text)
    address = FileSymbols(exe).address(function.offset)
    return complete_path.index(address, 0 if start is None else start + 1)


@pytest.mark.parametrize(("start", "stop"), WINDOWS)
def test_window_is_a_slice_of_the_complete_path(
    start: str | None,
    stop: str | None,
    record_window: WindowRecorder,
    program: ProgramBuilder,
    complete_path: list[int],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    exe = program("recursion")
    recording = record_window([str(exe)], start_at=start, stop_at=stop)
    assert (recording.warnings, recording.instructions) == ((), len(complete_path))
    first = boundary_index(complete_path, exe, start, None, 0)
    last = boundary_index(complete_path, exe, stop, first if start else None, len(complete_path))
    assert decoded_paths(tmp_path / "data") == [complete_path[first:last]]
    assert verify_recording(tmp_path, capsys) == last - first


def test_window_may_begin_at_any_instruction_of_a_block(
    record_window: WindowRecorder,
    backend: str,
    program: ProgramBuilder,
    complete_path: list[int],
    tmp_path: Path,
) -> None:
    exe = program("recursion")
    for first in range(300, 312 if backend == "qemu" else 302):
        record_window([str(exe)], start_at=str(first), stop_at="+5")
        assert decoded_paths(tmp_path / "data") == [complete_path[first : first + 5]]


@pytest.mark.parametrize("name", ["signal_nested", "segv_caught", "rep", "fork", "exec_chain"])
def test_window_from_main_has_the_given_size(
    name: str,
    record_window: WindowRecorder,
    program: ProgramBuilder,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    recording = record_window(
        [str(program(name)), *PROGRAMS[name].arguments], start_at="main", stop_at="+150"
    )
    assert recording.warnings == ()
    # Another process may stop only when it next returns from the kernel.
    assert verify_recording(tmp_path, capsys) == 150 or name == "fork"


def test_window_starts_for_all_threads_when_one_reaches_it(
    record_window: WindowRecorder,
    program: ProgramBuilder,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    recording = record_window([str(program("threads"))], start_at="work")
    assert recording.threads == 5
    assert 500 < verify_recording(tmp_path, capsys) < recording.instructions
    assert all(decoded_paths(tmp_path / "data"))


def test_window_and_filter_select_their_intersection(
    record_window: WindowRecorder,
    program: ProgramBuilder,
    complete_path: list[int],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    exe = program("recursion")
    record_window([str(exe)], start_at="even", stop_at="+100", filters=("filter odd",))
    [function] = FileSymbols(exe).find_by_name("odd")
    first = FileSymbols(exe).address(function.offset)
    start = boundary_index(complete_path, exe, "even", None, 0)
    inside = [
        ip for ip in complete_path[start : start + 100] if first <= ip < first + function.size
    ]
    assert decoded_paths(tmp_path / "data") == [inside]
    assert verify_recording(tmp_path, capsys) == len(inside) > 10


def test_window_may_start_in_a_library(
    record_window: WindowRecorder, backend: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    libc = "/lib/x86_64-linux-gnu/libc.so.6"
    if backend == "ptrace" or not Path(libc).exists():
        pytest.skip("the dynamic loader takes long under single steps")
    recording = record_window(["/bin/echo", "x"], start_at=f"exit @ {libc}")
    assert recording.warnings == ()
    part = verify_recording(tmp_path, capsys)
    assert 100 < part < recording.instructions / 10
    [function] = FileSymbols(libc).find_by_name("exit")
    [path] = decoded_paths(tmp_path / "data")
    assert path[0] & 0xFFF == function.offset & 0xFFF


def test_unreached_boundary_gives_a_warning(
    record_window: WindowRecorder, program: ProgramBuilder, tmp_path: Path, complete_path: list[int]
) -> None:
    argv = [str(program("recursion"))]
    [warning] = record_window(argv, start_at="1_000_000").warnings
    assert warning == "1_000_000 (--start-at) was not reached, so the trace is empty"
    assert decoded_paths(tmp_path / "data") in ([], [[]])
    [warning] = record_window(argv, start_at="main", stop_at="1000000").warnings
    assert warning == "1000000 (--stop-at) was not reached, so the trace ends with the program"


@pytest.mark.parametrize(
    ("start", "stop", "reason"),
    [
        ("nothing", None, "--start-at nothing: .* has no function named 'nothing'"),
        ("mian", None, "similar names: main"),
        ("12x", None, "expected a number of instructions or a function"),
        ("-5", None, "expected a number of instructions or a function"),
        ("", None, "expected a number of instructions or a function"),
        ("@/bin/ls", None, "expected a number of instructions or a function"),
        ("main@/nowhere", None, "/nowhere is not a file"),
        ("+5", None, "counts from the start of tracing, so only --stop-at accepts"),
        ("100", "100", "leaves nothing to trace: N must be greater than 100"),
        ("100", "+0", "leaves nothing to trace: N must be greater than 0"),
        (None, "0", "leaves nothing to trace: N must be greater than 0"),
        (str(1 << 70), None, "no program executes so many instructions"),
    ],
)
def test_invalid_boundary_is_a_usage_error(
    start: str | None,
    stop: str | None,
    reason: str,
    record_window: WindowRecorder,
    program: ProgramBuilder,
) -> None:
    with pytest.raises(UsageError) as caught:
        record_window([str(program("recursion"))], start_at=start, stop_at=stop)
    assert re.search(reason, str(caught.value))
    assert "\n" not in str(caught.value)


def test_command_line_records_a_window(
    backend: str, program: ProgramBuilder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = [sys.executable, "-m", "rtit", "record", "--backend", backend, "--truth", "truth"]
    boundaries = ["--start-at", "main", "--stop-at", "+100", "-o", "data"]
    exe = str(program("recursion"))
    done = subprocess.run(
        [*command, *boundaries, "--", exe],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
    )
    assert "warning" not in done.stderr
    assert verify_recording(tmp_path, capsys) == 100
    wrong = subprocess.run(
        [*command, "--start-at", "mian", "--", exe],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert wrong.returncode != 0
    assert len(wrong.stderr.strip().splitlines()) == 2  # with the usage
