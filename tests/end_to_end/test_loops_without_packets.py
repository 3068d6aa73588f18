"""A loop of direct jumps that a signal ends makes no packet.

The totals of rtit's own recordings include its iterations, and every command that counts
reports that no packet gives their number.
"""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from programs.build import BARE, COMMON, SOURCES, CannotBuildError, compiled
from rtit.capture.backends import record
from rtit.capture.session import Recording
from rtit.cli.main import main
from rtit.trace import Trace
from support.recordings import require_backend, thread_ends

SpinningRecorder = Callable[[str], Recording]
UNKNOWN_COUNT = "the number of iterations is not known"


@pytest.fixture(scope="module")
def record_spinning(tmp_path_factory: pytest.TempPathFactory) -> SpinningRecorder:
    """Records the spinning program under a back end, with a PSB every 2 KB; once each."""
    made: dict[str, Recording] = {}

    def recorded(backend: str) -> Recording:
        require_backend(backend)
        if backend not in made:
            source = SOURCES / "spinning.c"
            flags = [*COMMON, *BARE]
            try:
                path = compiled("spinning", [str(source)], language="c", flags=flags)
            except CannotBuildError as error:
                pytest.skip(str(error))
            folder = tmp_path_factory.mktemp("spinning")
            made[backend] = record(
                [str(path)],
                backend=backend,
                event="intel_pt/psb_period=0/u",
                output=folder / "perf.data",
                truth=folder / "truth",
            )
        return made[backend]

    return recorded


@pytest.mark.parametrize("backend", ["qemu", "ptrace"])
def test_totals_are_those_of_the_recorder(
    backend: str, record_spinning: SpinningRecorder, capsys: pytest.CaptureFixture[str]
) -> None:
    recording = record_spinning(backend)
    assert recording.exit_code == 128 + signal.SIGALRM
    [(_, executed, _)] = thread_ends(recording.path.parent / "truth").values()
    assert recording.instructions == executed
    assert main(["stat", "--json", "--per", "function", str(recording.path)]) == 3
    output = json.loads(capsys.readouterr().out)
    assert output["counts"]["instructions"] == sum(output["threads"].values()) == executed
    further = executed - sum(output["functions"].values())
    assert further > 0
    [loop, number] = output["missing"]
    assert UNKNOWN_COUNT in loop
    assert number.startswith(f"{further:,} instructions of further loop iterations")
    assert main(["report", "--json", str(recording.path)]) == 3
    output = json.loads(capsys.readouterr().out)
    assert (output["instructions"], output["missing"]) == (executed, further)
    assert sum(each["pt_bytes"] for each in output["streams"]) == recording.pt_bytes


@pytest.mark.parametrize(
    "words",
    [
        ["stat"],
        ["report"],
        ["coverage"],
        ["profile", "--for", "callgrind"],
        ["blocks"],
        ["edges"],
        ["instructions", "--tail", "1"],
    ],
    ids=lambda words: words[0],
)
def test_command_prints_one_line_for_each_loop_and_exits_3(
    words: list[str], record_spinning: SpinningRecorder, capsys: pytest.CaptureFixture[str]
) -> None:
    recording = record_spinning("qemu")
    assert main([*words, str(recording.path)]) == 3
    printed = capsys.readouterr()
    assert (printed.out + printed.err).count(UNKNOWN_COUNT) == 1


def test_diff_of_different_iteration_counts_exits_3(
    record_spinning: SpinningRecorder, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    first = record_spinning("qemu")
    with Trace(first.path) as trace:
        argv = trace.command_line[2:]
    second = record(argv, backend="qemu", output=tmp_path / "d")
    same = first.instructions == second.instructions
    assert main(["diff", str(first.path), str(second.path)]) == (0 if same else 3)
    assert capsys.readouterr().out.count(UNKNOWN_COUNT) == (0 if same else 2)
    assert main(["diff", str(first.path), str(first.path)]) == 0
