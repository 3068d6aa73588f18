"""Threads and processes of a recording on a few CPUs: each one's path comes back."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from rtit.capture.events import EventKind
from rtit.capture.ptrace.session import replay
from rtit.cli.main import main
from rtit.errors import UnsupportedError
from rtit.perfdata import SwitchRecords
from rtit.trace import Trace
from support.both_paths import assert_interpreter_agrees
from support.linting import lint_findings
from support.recordings import RecordedProgram, Recorder

ProgramBuilder = Callable[[str], Path]


def packed(
    live: RecordedProgram,
    tmp_path: Path,
    cpus: int,
    switches: SwitchRecords,
    event: str = "intel_pt//u",
) -> Path:
    data = tmp_path / "perf.data"
    replay(live.log, data, event=event, cpus=cpus, switches=switches)
    return data


def verified(data: Path, live: RecordedProgram, capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["verify", str(data), "--truth", str(live.truth)])
    printed = capsys.readouterr().out
    assert code == 0, printed
    assert printed.splitlines()[-1].startswith("identical: ")


def threads_of(live: RecordedProgram) -> set[int]:
    return {event.tid for event in live.log.events() if event.kind == EventKind.THREAD}


@pytest.mark.parametrize("switches", [SwitchRecords.THREADS, SwitchRecords.CPU_WIDE])
@pytest.mark.parametrize("cpus", [1, 2, 4])
@pytest.mark.parametrize("name", ["threads", "fork", "vfork_exec"])
def test_every_path_comes_back(
    name: str,
    cpus: int,
    switches: SwitchRecords,
    program: ProgramBuilder,
    record: Recorder,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    live = record([program(name)])
    data = packed(live, tmp_path, cpus, switches)
    verified(data, live, capsys)
    with Trace(data) as trace:
        cpus_used = [stream.cpu for stream in trace.streams]
        assert len(set(cpus_used)) == len(cpus_used) <= cpus
        assert len(cpus_used) > 1 or cpus == 1
        assert {stream.tid for stream in trace.threads} == threads_of(live)
        on = Counter(stream.tid for stream in trace.threads)
    if cpus > 1 and name == "threads":
        assert max(on.values()) > 1, "nobody migrated"


@pytest.mark.parametrize("name", ["self_modify", "exec_chain", "signal_nested", "exec_from_thread"])
@pytest.mark.parametrize("event", ["intel_pt//u", "intel_pt/cyc,noretcomp,psb_period=0/u"])
def test_what_happens_to_code(
    name: str,
    event: str,
    program: ProgramBuilder,
    record: Recorder,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    live = record([program(name)])
    verified(packed(live, tmp_path, 2, SwitchRecords.THREADS, event), live, capsys)


@pytest.mark.parametrize("name", ["threads", "fork"])
def test_the_stream_of_a_cpu_has_all_of_its_threads(
    name: str, program: ProgramBuilder, record: Recorder, tmp_path: Path
) -> None:
    """The CPU's rows, put apart by their thread, are those of the thread's own streams."""
    live = record([program(name)])
    data = packed(live, tmp_path, 2, SwitchRecords.THREADS)
    with Trace(data) as trace:
        of_cpus: dict[tuple[int, int], list[tuple[object, ...]]] = {}
        for stream in trace.streams:
            for rows in stream.blocks():
                whose = set(zip(rows.tid.tolist(), rows.pid.tolist(), strict=True))
                for (tid, pid), row in zip([*whose] * len(rows), rows, strict=True):
                    assert trace.images.pid(tid) == pid
                    of_cpus.setdefault((stream.cpu, tid), []).append(tuple(row))
            assert all(span.kind == "exact" for span in stream.ledger())
        own = {
            (stream.cpu, stream.tid): [tuple(row) for row in stream.blocks().rows()]
            for stream in trace.threads
        }
        kinds = {span.kind for stream in trace.threads for span in stream.ledger()}
        table = trace.instructions().columns()
    assert own == of_cpus
    assert kinds == {"exact", "elsewhere"}
    counted = Counter(table["tid"].tolist())
    assert counted == {
        tid: sum(row[1] for (_, each), rows in own.items() if each == tid for row in rows)
        for tid in threads_of(live)
    }
    assert_interpreter_agrees(data)
    assert lint_findings(data) == []


@pytest.mark.parametrize("cpus", [1, 3])
def test_recorded_so(
    cpus: int, program: ProgramBuilder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`record --cpus N`: the threads on N CPUs, each path as it ran; perf's switches of all."""
    data, truth = tmp_path / "perf.data", tmp_path / "truth"
    words = ["--cpus", str(cpus), "-q", "--truth", str(truth), "-o", str(data)]
    assert main(["record", *words, "--", str(program("threads"))]) == 0
    assert capsys.readouterr().err == ""
    assert main(["verify", str(data), "--truth", str(truth)]) == 0
    with Trace(data) as trace:
        assert {stream.cpu for stream in trace.streams} == set(range(cpus))
        assert trace.data.info is not None
        assert trace.data.info.have_sched_switch == SwitchRecords.CPU_WIDE
        assert len({stream.tid for stream in trace.threads}) > 1


@pytest.mark.parametrize(
    "options",
    [
        ["--cpus", "-1"],
        ["--cpus", "100000"],
        ["--cpus", "2", "--backend", "qemu"],
        ["--cpus", "2", "--backend", "perf"],
        ["--cpus", "2", "--snapshot"],
        ["--cpus", "2", "--start-at", "main"],
    ],
)
def test_what_does_not_go_with_cpus(options: list[str], tmp_path: Path) -> None:
    words = ["record", *options, "-o", str(tmp_path / "perf.data"), "--", "/bin/true"]
    assert main(words) == 2
    assert not (tmp_path / "perf.data").exists()


def test_without_time_nobody_can_be_told_apart(
    program: ProgramBuilder, record: Recorder, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    live = record([program("fork")])
    data = packed(live, tmp_path, 1, SwitchRecords.THREADS, "intel_pt/tsc=0,mtc=0/u")
    with Trace(data) as trace:
        (stream,) = trace.threads
        assert any(stream.packets())
        with pytest.raises(UnsupportedError, match="the trace has no TSC packets"):
            stream.counts()
    assert main(["report", str(data)]) == 1
    assert "several threads share a CPU" in capfd.readouterr().err


def test_a_report_of_cpus(
    program: ProgramBuilder, record: Recorder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    live = record([program("fork")])
    data = packed(live, tmp_path, 2, SwitchRecords.CPU_WIDE)
    assert main(["report", str(data)]) == 0
    report = capsys.readouterr().out
    for tid in threads_of(live):
        assert f"thread {tid} (" in report
    root = min(threads_of(live))
    assert main(["instructions", "--tid", str(root), "--fields", "tid,ip", str(data)]) == 0
    lines = capsys.readouterr().out.splitlines()
    with Trace(data) as trace:
        wanted = sum(each.counts().instructions for each in trace.threads if each.tid == root)
    assert len(lines) == wanted
    assert {line.split()[0] for line in lines} == {str(root)}
