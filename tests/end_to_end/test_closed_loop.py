"""record -> bytes -> decode returns exactly the instructions that the tracer saw."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from programs.build import PROGRAMS
from rtit.capture.events import EventKind
from rtit.capture.ptrace.recorder import OutputSchemeSetup
from rtit.capture.ptrace.session import replay_events
from rtit.cli.main import main
from support.both_paths import assert_interpreter_agrees
from support.linting import lint_findings
from support.recordings import RecordedProgram, Recorder, require_backend

ProgramBuilder = Callable[[str], Path]

TERMINATING_PROGRAMS = [name for name, program in PROGRAMS.items() if program.ends]


def verify_recording(data: Path, truth: Path, capsys: pytest.CaptureFixture[str]) -> int:
    """Run `rtit verify`, and return the number of instructions that it compared."""
    code = main(["verify", str(data), "--truth", str(truth)])
    printed = capsys.readouterr().out
    assert code == 0, printed
    last = printed.splitlines()[-1]
    assert last.startswith("identical: ")
    assert_interpreter_agrees(data)
    assert lint_findings(data) == []
    return int(last.split()[1].replace(",", ""))


@pytest.mark.parametrize("name", TERMINATING_PROGRAMS)
def test_test_program_decodes_as_executed(
    name: str, program: ProgramBuilder, record: Recorder, capsys: pytest.CaptureFixture[str]
) -> None:
    wanted = PROGRAMS[name]
    live = record([program(name), *wanted.arguments])
    if live.status in wanted.may_exit:
        pytest.skip("this machine cannot show the situation")
    status = wanted.status if wanted.status >= 0 else 128 - wanted.status
    assert (live.stdout, live.status) == (wanted.stdout, status), live.stderr
    assert verify_recording(live.data, live.truth, capsys) > 40


@pytest.mark.parametrize(
    ("argv", "stdout"),
    [
        (["/bin/echo", "hello"], "hello\n"),
        pytest.param(["/bin/true"], "", marks=pytest.mark.slow),
        pytest.param(["/bin/sh", "-c", "echo one | cat"], "one\n", marks=pytest.mark.slow),
    ],
)
def test_system_program_decodes_as_executed(
    argv: list[str], stdout: str, record: Recorder, capsys: pytest.CaptureFixture[str]
) -> None:
    live = record(argv)
    assert (live.stdout, live.status) == (stdout, 0), live.stderr
    # Each is some hundred thousand instructions of dynamic loading
    assert verify_recording(live.data, live.truth, capsys) > 50_000


@pytest.fixture
def base_recording(
    request: pytest.FixtureRequest, program: ProgramBuilder, record: Recorder
) -> RecordedProgram:
    """A recording; tests replay its events under other settings."""
    return record([program(request.param)])


BASE_PROGRAMS = [
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


@pytest.mark.parametrize("base_recording", BASE_PROGRAMS, indirect=True)
@pytest.mark.parametrize("event", EVENTS)
def test_packet_settings_do_not_change_the_decoded_path(
    base_recording: RecordedProgram, event: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = tmp_path / "perf.data"
    recorder = replay_events(base_recording.log, data, event=event)
    if event == UNTIMED and "self_modify" in base_recording.argv[0]:
        # without time packets, the time of the code change is unknown: a warning
        assert "cannot be decoded exactly" in recorder.totals.warnings[0]
        return
    assert recorder.totals.warnings == []
    assert verify_recording(data, base_recording.truth, capsys) == verify_recording(
        base_recording.data, base_recording.truth, capsys
    )


@pytest.mark.parametrize("base_recording", BASE_PROGRAMS, indirect=True)
@pytest.mark.parametrize(
    "setup",
    [
        OutputSchemeSetup(regions=5, size=4096),
        OutputSchemeSetup(regions=1, size=4096),
        OutputSchemeSetup(size=128),
    ],
)
def test_output_schemes_do_not_change_the_decoded_path(
    base_recording: RecordedProgram,
    setup: OutputSchemeSetup,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    data = tmp_path / "perf.data"
    replay_events(base_recording.log, data, unit_output=setup)
    assert verify_recording(data, base_recording.truth, capsys) == verify_recording(
        base_recording.data, base_recording.truth, capsys
    )


FILTERS = {
    "pointers": "filter main",
    "recursion": "filter even",
    "signal_nested": "filter main",
    "threads": "filter work",
}


@pytest.mark.parametrize("base_recording", FILTERS, indirect=True)
def test_address_filter_selects_part_of_the_path(
    base_recording: RecordedProgram,
    request: pytest.FixtureRequest,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    data = tmp_path / "perf.data"
    wanted = FILTERS[request.node.callspec.params["base_recording"]]
    replay_events(base_recording.log, data, filters=[f"{wanted} @ {base_recording.argv[0]}"])
    part = verify_recording(data, base_recording.truth, capsys)
    whole = verify_recording(base_recording.data, base_recording.truth, capsys)
    assert 0 < part < whole


STOPS = {"pointers": "tracestop fold", "recursion": "tracestop even", "threads": "tracestop main"}


@pytest.mark.parametrize("base_recording", STOPS, indirect=True)
def test_trace_stop_keeps_part_of_the_path(
    base_recording: RecordedProgram,
    request: pytest.FixtureRequest,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    data = tmp_path / "perf.data"
    wanted = STOPS[request.node.callspec.params["base_recording"]]
    replay_events(base_recording.log, data, filters=[f"{wanted} @ {base_recording.argv[0]}"])
    part = verify_recording(data, base_recording.truth, capsys)
    whole = verify_recording(base_recording.data, base_recording.truth, capsys)
    assert 0 < part < whole


@pytest.mark.parametrize("backend", ["ptrace", "qemu"])
def test_same_run_recorded_twice_gives_the_same_bytes(
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


def test_branch_to_next_instruction_is_recorded_as_taken_or_not(
    program: ProgramBuilder, record: Recorder
) -> None:
    found = [
        event.flags & 1
        for event in record([program("branch_next")]).log.events()
        if event.kind == EventKind.CONDITIONAL and event.target == event.ip + event.length
    ]
    # The comments of branch_next.c state each condition.
    assert found == [1, 0, 0, 1, 1, 0, 1, 1, 0, 0, 1, 0, 1, 1, 0, 0, 0, 1]
