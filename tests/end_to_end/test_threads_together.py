"""Of a CPU with many threads these are decoded together: every answer is what it is apart."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from rtit.capture.ptrace.session import replay
from rtit.cli.main import main
from rtit.perfdata import SwitchRecords
from rtit.trace import Selection, Trace
from rtit.trace.threads import split
from support.recordings import Recorder

ProgramBuilder = Callable[[str], Path]


@pytest.fixture(params=[("threads", 2), ("fork", 2), ("vfork_exec", 1)], ids=lambda each: each[0])
def data(
    request: pytest.FixtureRequest, program: ProgramBuilder, record: Recorder, tmp_path: Path
) -> Path:
    name, cpus = request.param
    path = tmp_path / "perf.data"
    replay(record([program(name)]).log, path, cpus=cpus, switches=SwitchRecords.THREADS)
    return path


@pytest.fixture
def together(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """From then on no two threads are decoded apart."""

    def never() -> None:
        monkeypatch.setattr(split, "ALWAYS_SPLIT", 1)
        monkeypatch.setattr(split, "MAX_WORK", 0)

    return never


VERBS = [
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


def told(verb: list[str], data: Path, capfdbinary: pytest.CaptureFixture[bytes]) -> list[object]:
    code = main([*verb, str(data)])
    printed = capfdbinary.readouterr()
    # several may have ran as often: their order is no matter
    return [code, sorted(printed.out.splitlines()), printed.err]


def test_counts(
    data: Path, together: Callable[[], None], capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    apart = [told(verb, data, capfdbinary) for verb in VERBS]
    together()
    assert [told(verb, data, capfdbinary) for verb in VERBS] == apart


def test_rows(data: Path, together: Callable[[], None]) -> None:
    def rows(trace: Trace, where: Selection | None) -> Counter[tuple[int, ...]]:
        found: Counter[tuple[int, ...]] = Counter()
        for table in (trace.instructions(where), trace.branches(where)):
            columns = [column.tolist() for column in table.columns().values()]
            found.update(zip(*columns, strict=True))
        return found

    with Trace(data) as trace:
        some = [each for each in trace.streams if each.has_several_threads]
        assert some
        tids = tuple({each.tid for each in trace.threads})
        wanted = [None, Selection(tids=tids[:2]), Selection(tids=tids[-1:])]
        apart = [rows(trace, where) for where in wanted]
        assert any(apart)
        losses = [str(span) for each in trace.select() for span in each.spans() if span.is_gap]
    together()
    with Trace(data) as trace:
        assert len(trace.select()) == len(trace.streams)
        assert [rows(trace, where) for where in wanted] == apart
        assert [
            str(span) for each in trace.select() for span in each.spans() if span.is_gap
        ] == losses


def test_report(
    data: Path, together: Callable[[], None], capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    def report() -> tuple[list[str], dict[str, int]]:
        assert main(["report", "--json", str(data)]) == 0
        found = json.loads(capfdbinary.readouterr().out)
        ran: Counter[str] = Counter()
        for each in found["streams"]:
            of = each["threads"] or {each["title"].partition(", ")[2]: each["instructions"]}
            ran.update(of)
        return sorted(map(str, found["functions"])), dict(ran)

    apart = report()
    together()
    assert report() == apart
