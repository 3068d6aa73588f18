"""A recording that starts and stops at a function or a number of instructions holds that part of
the whole path, to the instruction, under both back ends.
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
from rtit.capture.recording import Recording
from rtit.capture.request import RecordRequest
from rtit.cli.main import main
from rtit.errors import UsageError
from rtit.image.file_symbols import FileSymbols
from rtit.trace import Trace
from support.recordings import record_to_end, require_backend

ProgramBuilder = Callable[[str], Path]
Run = Callable[..., Recording]


@pytest.fixture(params=["qemu", "ptrace"])
def backend(request: pytest.FixtureRequest) -> str:
    require_backend(request.param)
    return str(request.param)


@pytest.fixture
def run(backend: str, tmp_path: Path) -> Run:
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


def verified(folder: Path, capsys: pytest.CaptureFixture[str]) -> int:
    """Run `rtit verify`; the number of instructions that it compared."""
    code = main(["verify", str(folder / "data"), "--truth", str(folder / "truth")])
    printed = capsys.readouterr().out
    assert code == 0, printed
    return int(printed.splitlines()[-1].split()[1].replace(",", ""))


def paths(data: Path) -> list[list[int]]:
    """The decoded addresses of each thread."""
    with Trace(data) as trace:
        return [
            [int(ip) for part in stream.instructions() for ip in part.ip]
            for stream in trace.streams
        ]


@pytest.fixture(scope="module")
def whole(program: ProgramBuilder, tmp_path_factory: pytest.TempPathFactory) -> list[int]:
    """Every instruction of `recursion`."""
    data = tmp_path_factory.mktemp("whole") / "data"
    record_to_end(
        start_recording(RecordRequest([str(program("recursion"))], backend="ptrace", output=data))
    )
    [path] = paths(data)
    return path


CUTS = [
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


def place(whole: list[int], exe: Path, text: str | None, start: int | None, default: int) -> int:
    """Where in the path an edge is."""
    if text is None:
        return default
    if text[0] == "+":
        return (start or 0) + int(text)
    if text.isdigit():
        return int(text)
    [function] = FileSymbols(exe).find_by_name(text)
    address = FileSymbols(exe).address(function.offset)
    return whole.index(address, 0 if start is None else start + 1)


@pytest.mark.parametrize(("start", "stop"), CUTS)
def test_it_is_a_slice_of_the_whole(
    start: str | None,
    stop: str | None,
    run: Run,
    program: ProgramBuilder,
    whole: list[int],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    exe = program("recursion")
    recording = run([str(exe)], start_at=start, stop_at=stop)
    assert (recording.warnings, recording.instructions) == ((), len(whole))
    first = place(whole, exe, start, None, 0)
    last = place(whole, exe, stop, first if start else None, len(whole))
    assert paths(tmp_path / "data") == [whole[first:last]]
    assert verified(tmp_path, capsys) == last - first


def test_every_instruction_of_a_block_can_be_an_edge(
    run: Run, backend: str, program: ProgramBuilder, whole: list[int], tmp_path: Path
) -> None:
    exe = program("recursion")
    for first in range(300, 312 if backend == "qemu" else 302):
        run([str(exe)], start_at=str(first), stop_at="+5")
        assert paths(tmp_path / "data") == [whole[first : first + 5]]


@pytest.mark.parametrize("name", ["signal_nested", "segv_caught", "rep", "fork", "exec_chain"])
def test_programs(
    name: str,
    run: Run,
    program: ProgramBuilder,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    recording = run(
        [str(program(name)), *PROGRAMS[name].arguments], start_at="main", stop_at="+150"
    )
    assert recording.warnings == ()
    # Another process may notice the end only when it next comes out of the kernel.
    assert verified(tmp_path, capsys) == 150 or name == "fork"


def test_threads_begin_when_one_has(
    run: Run, program: ProgramBuilder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recording = run([str(program("threads"))], start_at="work")
    assert recording.threads == 5
    assert 500 < verified(tmp_path, capsys) < recording.instructions
    assert all(paths(tmp_path / "data"))


def test_with_a_filter(
    run: Run,
    program: ProgramBuilder,
    whole: list[int],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    exe = program("recursion")
    run([str(exe)], start_at="even", stop_at="+100", filters=("filter odd",))
    [function] = FileSymbols(exe).find_by_name("odd")
    first = FileSymbols(exe).address(function.offset)
    start = place(whole, exe, "even", None, 0)
    inside = [ip for ip in whole[start : start + 100] if first <= ip < first + function.size]
    assert paths(tmp_path / "data") == [inside]
    assert verified(tmp_path, capsys) == len(inside) > 10


def test_a_function_of_another_file(
    run: Run, backend: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    libc = "/lib/x86_64-linux-gnu/libc.so.6"
    if backend == "ptrace" or not Path(libc).exists():
        pytest.skip("the dynamic loader takes long under single steps")
    recording = run(["/bin/echo", "x"], start_at=f"exit @ {libc}")
    assert recording.warnings == ()
    part = verified(tmp_path, capsys)
    assert 100 < part < recording.instructions / 10
    [function] = FileSymbols(libc).find_by_name("exit")
    [path] = paths(tmp_path / "data")
    assert path[0] & 0xFFF == function.offset & 0xFFF


def test_an_edge_that_is_not_reached(
    run: Run, program: ProgramBuilder, tmp_path: Path, whole: list[int]
) -> None:
    argv = [str(program("recursion"))]
    [warning] = run(argv, start_at="1_000_000").warnings
    assert warning == "1_000_000 (--start-at) was not reached: nothing is traced"
    assert paths(tmp_path / "data") in ([], [[]])
    [warning] = run(argv, start_at="main", stop_at="1000000").warnings
    assert warning == "1000000 (--stop-at) was not reached: the trace has no end"


@pytest.mark.parametrize(
    ("start", "stop", "reason"),
    [
        ("nothing", None, "--start-at nothing: .* has no function named 'nothing'"),
        ("mian", None, "near ones: main"),
        ("12x", None, "neither a number of instructions nor a function"),
        ("-5", None, "neither a number of instructions nor a function"),
        ("", None, "neither a number of instructions nor a function"),
        ("@/bin/ls", None, "neither a number of instructions nor a function"),
        ("main@/nowhere", None, "/nowhere is not a file"),
        ("+5", None, "counts from the start, so only --stop-at takes it"),
        ("100", "100", "leaves nothing to trace: it must be over 100"),
        ("100", "+0", "leaves nothing to trace: it must be over 0"),
        (None, "0", "leaves nothing to trace: it must be over 0"),
        (str(1 << 70), None, "no program executes so many instructions"),
    ],
)
def test_what_is_no_edge(
    start: str | None, stop: str | None, reason: str, run: Run, program: ProgramBuilder
) -> None:
    with pytest.raises(UsageError) as caught:
        run([str(program("recursion"))], start_at=start, stop_at=stop)
    assert re.search(reason, str(caught.value))
    assert "\n" not in str(caught.value)


def test_the_command(
    backend: str, program: ProgramBuilder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = [sys.executable, "-m", "rtit", "record", "--backend", backend, "--truth", "truth"]
    edges = ["--start-at", "main", "--stop-at", "+100", "-o", "data"]
    exe = str(program("recursion"))
    done = subprocess.run(
        [*command, *edges, "--", exe],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
    )
    assert "warning" not in done.stderr
    assert verified(tmp_path, capsys) == 100
    wrong = subprocess.run(
        [*command, "--start-at", "mian", "--", exe],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert wrong.returncode != 0
    assert len(wrong.stderr.strip().splitlines()) == 1
