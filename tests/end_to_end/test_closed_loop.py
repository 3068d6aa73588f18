"""record -> bytes -> decode gives back what the tracer saw, instruction for instruction."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from programs.build import PROGRAMS
from rtit.capture.events import EventKind
from rtit.capture.ptrace.session import replay
from rtit.capture.store.unit_output import OutputSetup
from rtit.cli.main import main
from support.both_paths import assert_interpreter_agrees
from support.linting import lint_findings
from support.recordings import RecordedProgram, Recorder, require_backend

ProgramBuilder = Callable[[str], Path]

ENDING = [name for name, program in PROGRAMS.items() if program.ends]


def verified(data: Path, truth: Path, capsys: pytest.CaptureFixture[str]) -> int:
    """Run `rtit verify`; the number of instructions that it compared."""
    code = main(["verify", str(data), "--truth", str(truth)])
    printed = capsys.readouterr().out
    assert code == 0, printed
    last = printed.splitlines()[-1]
    assert last.startswith("identical: ")
    assert_interpreter_agrees(data)
    assert lint_findings(data) == []
    return int(last.split()[1].replace(",", ""))


@pytest.mark.parametrize("name", ENDING)
def test_programs(
    name: str, program: ProgramBuilder, record: Recorder, capsys: pytest.CaptureFixture[str]
) -> None:
    wanted = PROGRAMS[name]
    live = record([program(name), *wanted.arguments])
    if live.status in wanted.may_exit:
        pytest.skip("this machine cannot show the situation")
    status = wanted.status if wanted.status >= 0 else 128 - wanted.status
    assert (live.stdout, live.status) == (wanted.stdout, status), live.stderr
    assert verified(live.data, live.truth, capsys) > 40


@pytest.mark.parametrize(
    ("argv", "stdout"),
    [
        (["/bin/true"], ""),
        pytest.param(["/bin/echo", "hello"], "hello\n", marks=pytest.mark.slow),
        pytest.param(["/bin/sh", "-c", "echo one | cat"], "one\n", marks=pytest.mark.slow),
    ],
)
def test_system_programs(
    argv: list[str], stdout: str, record: Recorder, capsys: pytest.CaptureFixture[str]
) -> None:
    live = record(argv)
    assert (live.stdout, live.status) == (stdout, 0), live.stderr
    # /bin/true is some hundred thousand instructions of dynamic loading
    assert verified(live.data, live.truth, capsys) > 50_000


@pytest.fixture
def base(
    request: pytest.FixtureRequest, program: ProgramBuilder, record: Recorder
) -> RecordedProgram:
    """A recording whose events are run under other settings."""
    return record([program(request.param)])


BASES = [
    "pointers",
    "recursion",
    "returns",
    "signal_nested",
    "threads",
    "self_modify",
    "fork",
    "rep",
]
UNTIMED = "intel_pt/tsc=0,mtc=0/u"
EVENTS = [
    "intel_pt/cyc/u",
    "intel_pt/cyc,cyc_thresh=5/u",
    "intel_pt/mtc=0/u",
    "intel_pt/mtc_period=0/u",
    "intel_pt/mtc_period=9/u",
    UNTIMED,
    "intel_pt/noretcomp/u",
    "intel_pt/psb_period=0/u",
    "intel_pt/cyc,mtc_period=0,psb_period=0,noretcomp/u",
]


@pytest.mark.parametrize("base", BASES, indirect=True)
@pytest.mark.parametrize("event", EVENTS)
def test_settings(
    base: RecordedProgram, event: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = tmp_path / "perf.data"
    recorder = replay(base.log, data, event=event)
    if event == UNTIMED and "self_modify" in base.argv[0]:
        # nothing in such a trace says when the code changed: the user is told
        assert "cannot be decoded exactly" in recorder.totals.warnings[0]
        return
    assert recorder.totals.warnings == []
    assert verified(data, base.truth, capsys) == verified(base.data, base.truth, capsys)


@pytest.mark.parametrize("base", BASES, indirect=True)
@pytest.mark.parametrize(
    "setup",
    [OutputSetup(regions=5, size=4096), OutputSetup(regions=1, size=4096), OutputSetup(size=128)],
)
def test_output_schemes(
    base: RecordedProgram, setup: OutputSetup, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = tmp_path / "perf.data"
    replay(base.log, data, unit_output=setup)
    assert verified(data, base.truth, capsys) == verified(base.data, base.truth, capsys)


FILTERS = {
    "pointers": "filter main",
    "recursion": "filter even",
    "signal_nested": "filter main",
    "threads": "filter work",
}


@pytest.mark.parametrize("base", FILTERS, indirect=True)
def test_address_filter(
    base: RecordedProgram,
    request: pytest.FixtureRequest,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    data = tmp_path / "perf.data"
    wanted = FILTERS[request.node.callspec.params["base"]]
    replay(base.log, data, filters=[f"{wanted} @ {base.argv[0]}"])
    part = verified(data, base.truth, capsys)
    whole = verified(base.data, base.truth, capsys)
    assert 0 < part < whole


STOPS = {"pointers": "tracestop fold", "recursion": "tracestop even", "threads": "tracestop main"}


@pytest.mark.parametrize("base", STOPS, indirect=True)
def test_trace_stop(
    base: RecordedProgram,
    request: pytest.FixtureRequest,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    data = tmp_path / "perf.data"
    wanted = STOPS[request.node.callspec.params["base"]]
    replay(base.log, data, filters=[f"{wanted} @ {base.argv[0]}"])
    part = verified(data, base.truth, capsys)
    whole = verified(base.data, base.truth, capsys)
    assert 0 < part < whole


@pytest.mark.parametrize("backend", ["ptrace", "qemu"])
def test_two_recordings_of_one_run_are_the_same_bytes(
    backend: str, program: ProgramBuilder, tmp_path: Path
) -> None:
    from rtit.trace import Trace
    from support.recordings import RTIT

    argv = [str(program("recursion"))]
    options = ["-q", "--no-aslr", "--backend", backend]
    if backend == "qemu":
        require_backend("qemu")
        argv = ["/bin/echo", "x"]  # loaded dynamically, at addresses that the loader chooses

    streams = []
    for name in ("first", "second"):
        subprocess.run(
            [*RTIT, "record", *options, "-o", name, "--", *argv],
            cwd=tmp_path,
            check=True,
            capture_output=True,
        )
        with Trace(tmp_path / name) as trace:
            streams.append([stream.read() for stream in trace.streams])
    assert streams[0] == streams[1]
    assert sum(map(len, streams[0])) > 1000


def test_branches_to_the_next_instruction(program: ProgramBuilder, record: Recorder) -> None:
    found = [
        event.flags & 1
        for event in record([program("branch_next")]).log.events()
        if event.kind == EventKind.CONDITIONAL and event.target == event.ip + event.length
    ]
    # What each condition is, is beside the instructions in the program.
    assert found == [1, 0, 0, 1, 1, 0, 1, 1, 0, 0, 1, 0, 1, 1, 0, 0, 0, 1]
