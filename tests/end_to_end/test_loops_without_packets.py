"""A loop of direct jumps that a signal ends makes no packet: its rounds are in the totals of our
own recordings, and every subcommand that counts says that no packet gives their number.
"""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from programs.build import BARE, COMMON, SOURCES, CannotBuildError, compiled
from rtit.capture.backends import record
from rtit.capture.recording import Recording
from rtit.cli.main import main
from rtit.trace import Trace
from support.recordings import require_backend, thread_ends

Spinning = Callable[[str], Recording]
UNKNOWN = "how often it went round is not known"


@pytest.fixture(scope="module")
def spinning(tmp_path_factory: pytest.TempPathFactory) -> Spinning:
    """Records the program under a back end, with a PSB each 2 KB."""
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
    backend: str, spinning: Spinning, capsys: pytest.CaptureFixture[str]
) -> None:
    recording = spinning(backend)
    assert recording.exit_code == 128 + signal.SIGALRM
    [(_, executed, _)] = thread_ends(recording.path.parent / "truth").values()
    assert recording.instructions == executed
    assert main(["stat", "--json", "--per", "function", str(recording.path)]) == 3
    told = json.loads(capsys.readouterr().out)
    assert told["counts"]["instructions"] == sum(told["threads"].values()) == executed
    further = executed - sum(told["functions"].values())
    assert further > 0
    [loop, number] = told["missing"]
    assert UNKNOWN in loop
    assert number.startswith(f"{further:,} instructions of further iterations")
    assert main(["report", "--json", str(recording.path)]) == 3
    told = json.loads(capsys.readouterr().out)
    assert (told["instructions"], told["missing"]) == (executed, further)
    assert sum(each["pt_bytes"] for each in told["streams"]) == recording.pt_bytes


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
def test_command_has_one_sentence_a_loop_and_exit_code_3(
    words: list[str], spinning: Spinning, capsys: pytest.CaptureFixture[str]
) -> None:
    recording = spinning("qemu")
    assert main([*words, str(recording.path)]) == 3
    printed = capsys.readouterr()
    assert (printed.out + printed.err).count(UNKNOWN) == 1


def test_diff_of_other_numbers_of_rounds_has_exit_code_3(
    spinning: Spinning, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    first = spinning("qemu")
    with Trace(first.path) as trace:
        argv = trace.command_line[2:]
    second = record(argv, backend="qemu", output=tmp_path / "d")
    same = first.instructions == second.instructions
    assert main(["diff", str(first.path), str(second.path)]) == (0 if same else 3)
    assert capsys.readouterr().out.count(UNKNOWN) == (0 if same else 2)
    assert main(["diff", str(first.path), str(first.path)]) == 0
