"""Joint decoding of many threads on a CPU gives the same results as separate decoding."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from rtit.capture.ptrace.session import replay_events
from rtit.cli.main import main
from rtit.perfdata import SwitchRecords
from rtit.trace import Selection, Trace
from rtit.trace.threads import thread_splitter
from support.recordings import Recorder

ProgramBuilder = Callable[[str], Path]


@pytest.fixture(params=[("threads", 2), ("fork", 2), ("vfork_exec", 1)], ids=lambda each: each[0])
def recording_path(
    request: pytest.FixtureRequest, program: ProgramBuilder, record: Recorder, tmp_path: Path
) -> Path:
    name, cpus = request.param
    path = tmp_path / "perf.data"
    replay_events(record([program(name)]).log, path, cpus=cpus, switches=SwitchRecords.THREADS)
    return path


@pytest.fixture
def force_joint_decoding(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Call it to decode no two threads separately afterwards."""

    def force() -> None:
        monkeypatch.setattr(thread_splitter, "ALWAYS_SPLIT", 1)
        monkeypatch.setattr(thread_splitter, "MAX_WORK", 0)

    return force


COMMANDS = [
    ["stat", "--top", "1000"],
    ["stat", "--top", "1000", "--per", "thread"],
    ["stat", "--top", "1000", "--per", "dso"],
    ["coverage", "--dso", "all"],
    ["coverage", "--dso", "all", "--format", "drcov"],
    ["profile", "--for", "autofdo"],
    ["profile", "--for", "bolt"],
    ["profile", "--for", "callgrind"],
    ["profile", "--for", "perf"],
]


def run_command(
    command: list[str], recording_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> list[object]:
    code = main([*command, str(recording_path)])
    printed = capfdbinary.readouterr()
    # functions with equal counts may appear in any order
    return [code, sorted(printed.out.splitlines()), printed.err]


def test_joint_decoding_gives_the_same_counts(
    recording_path: Path,
    force_joint_decoding: Callable[[], None],
    capfdbinary: pytest.CaptureFixture[bytes],
) -> None:
    separately = [run_command(command, recording_path, capfdbinary) for command in COMMANDS]
    force_joint_decoding()
    assert [run_command(command, recording_path, capfdbinary) for command in COMMANDS] == separately


def test_joint_decoding_gives_the_same_rows(
    recording_path: Path, force_joint_decoding: Callable[[], None]
) -> None:
    def rows(trace: Trace, where: Selection | None) -> Counter[tuple[int, ...]]:
        found: Counter[tuple[int, ...]] = Counter()
        for table in (trace.instructions(where), trace.branches(where)):
            columns = [column.tolist() for column in table.columns().values()]
            found.update(zip(*columns, strict=True))
        return found

    with Trace(recording_path) as trace:
        some = [each for each in trace.streams if each.has_several_threads]
        assert some
        tids = tuple({each.tid for each in trace.threads})
        wanted = [None, Selection(tids=tids[:2]), Selection(tids=tids[-1:])]
        separately = [rows(trace, where) for where in wanted]
        assert any(separately)
        losses = [str(span) for each in trace.select() for span in each.spans() if span.is_gap]
    force_joint_decoding()
    with Trace(recording_path) as trace:
        assert len(trace.select()) == len(trace.streams)
        assert [rows(trace, where) for where in wanted] == separately
        assert [
            str(span) for each in trace.select() for span in each.spans() if span.is_gap
        ] == losses


def test_joint_decoding_gives_the_same_report(
    recording_path: Path,
    force_joint_decoding: Callable[[], None],
    capfdbinary: pytest.CaptureFixture[bytes],
) -> None:
    def report() -> tuple[list[str], dict[str, int]]:
        assert main(["report", "--json", str(recording_path)]) == 0
        found = json.loads(capfdbinary.readouterr().out)
        ran: Counter[str] = Counter()
        for each in found["streams"]:
            by_thread = each["threads"] or {each["title"].partition(", ")[2]: each["instructions"]}
            ran.update(by_thread)
        return sorted(map(str, found["functions"])), dict(ran)

    separately = report()
    force_joint_decoding()
    assert report() == separately
