"""Threads and processes of a recording on a few CPUs decode as executed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from rtit.capture.events import EventKind
from rtit.capture.ptrace.session import replay_events
from rtit.cli.main import main
from rtit.errors import UnsupportedError
from rtit.perfdata import SwitchRecords
from rtit.trace import Trace
from support.both_paths import assert_interpreter_agrees
from support.linting import lint_findings
from support.recordings import RecordedProgram, Recorder

ProgramBuilder = Callable[[str], Path]


def replay_on_cpus(
    live: RecordedProgram,
    tmp_path: Path,
    cpus: int,
    switches: SwitchRecords,
    event: str = "intel_pt//u",
) -> Path:
    data = tmp_path / "perf.data"
    replay_events(live.log, data, event=event, cpus=cpus, switches=switches)
    return data


def verify_recording(data: Path, live: RecordedProgram, capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["verify", str(data), "--truth", str(live.truth)])
    printed = capsys.readouterr().out
    assert code == 0, printed
    assert printed.splitlines()[-1].startswith("identical: ")


def recorded_threads(live: RecordedProgram) -> set[int]:
    return {event.tid for event in live.log.events() if event.kind == EventKind.THREAD}


@pytest.mark.parametrize("switches", [SwitchRecords.THREADS, SwitchRecords.CPU_WIDE])
@pytest.mark.parametrize("cpus", [1, 2, 4])
@pytest.mark.parametrize("name", ["threads", "fork", "vfork_exec"])
def test_threads_on_shared_cpus_decode_as_executed(
    name: str,
    cpus: int,
    switches: SwitchRecords,
    program: ProgramBuilder,
    record: Recorder,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    live = record([program(name)])
    data = replay_on_cpus(live, tmp_path, cpus, switches)
    verify_recording(data, live, capsys)
    with Trace(data) as trace:
        cpus_used = [stream.cpu for stream in trace.streams]
        assert len(set(cpus_used)) == len(cpus_used) <= cpus
        assert len(cpus_used) > 1 or cpus == 1
        assert {stream.tid for stream in trace.threads} == recorded_threads(live)
        streams_by_thread = Counter(stream.tid for stream in trace.threads)
    if cpus > 1 and name == "threads":
        assert max(streams_by_thread.values()) > 1, "no thread migrated"


@pytest.mark.parametrize("name", ["self_modify", "exec_chain", "signal_nested", "exec_from_thread"])
@pytest.mark.parametrize("event", ["intel_pt//u", "intel_pt/cyc,noretcomp,psb_period=0/u"])
def test_code_changes_on_shared_cpus_decode_as_executed(
    name: str,
    event: str,
    program: ProgramBuilder,
    record: Recorder,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    live = record([program(name)])
    verify_recording(replay_on_cpus(live, tmp_path, 2, SwitchRecords.THREADS, event), live, capsys)


@pytest.mark.parametrize("name", ["threads", "fork"])
def test_rows_of_a_cpu_are_those_of_its_threads(
    name: str, program: ProgramBuilder, record: Recorder, tmp_path: Path
) -> None:
    """Split by thread, the rows of a CPU equal the rows of the threads' own streams."""
    live = record([program(name)])
    data = replay_on_cpus(live, tmp_path, 2, SwitchRecords.THREADS)
    with Trace(data) as trace:
        rows_of_cpus: dict[tuple[int, int], list[tuple[object, ...]]] = {}
        for stream in trace.streams:
            for rows in stream.blocks():
                threads_of_rows = set(zip(rows.tid.tolist(), rows.pid.tolist(), strict=True))
                for (tid, pid), row in zip([*threads_of_rows] * len(rows), rows, strict=True):
                    assert trace.images.pid(tid) == pid
                    rows_of_cpus.setdefault((stream.cpu, tid), []).append(tuple(row))
            assert all(span.kind == "exact" for span in stream.ledger())
        rows_of_threads = {
            (stream.cpu, stream.tid): [tuple(row) for row in stream.blocks().rows()]
            for stream in trace.threads
        }
        kinds = {span.kind for stream in trace.threads for span in stream.ledger()}
        table = trace.instructions().columns()
    assert rows_of_threads == rows_of_cpus
    assert kinds == {"exact", "elsewhere"}
    counted = Counter(table["tid"].tolist())
    assert counted == {
        tid: sum(
            row[1] for (_, each), rows in rows_of_threads.items() if each == tid for row in rows
        )
        for tid in recorded_threads(live)
    }
    assert_interpreter_agrees(data)
    assert lint_findings(data) == []


@pytest.mark.parametrize("cpus", [1, 3])
def test_record_with_cpus_decodes_as_executed(
    cpus: int, program: ProgramBuilder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`record --cpus N` writes N CPUs, with the context switches of all threads as perf
    does.
    """
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
def test_options_that_conflict_with_cpus_are_a_usage_error(
    options: list[str], tmp_path: Path
) -> None:
    words = ["record", *options, "-o", str(tmp_path / "perf.data"), "--", "/bin/true"]
    assert main(words) == 2
    assert not (tmp_path / "perf.data").exists()


def test_shared_cpu_without_time_packets_is_an_error(
    program: ProgramBuilder, record: Recorder, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    live = record([program("fork")])
    data = replay_on_cpus(live, tmp_path, 1, SwitchRecords.THREADS, "intel_pt/tsc=0,mtc=0/u")
    with Trace(data) as trace:
        (stream,) = trace.threads
        assert any(stream.packets())
        with pytest.raises(UnsupportedError, match="the trace has no TSC packets"):
            stream.counts()
    assert main(["report", str(data)]) == 1
    assert "several threads share a CPU" in capfd.readouterr().err


def test_report_lists_threads_of_shared_cpus(
    program: ProgramBuilder, record: Recorder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    live = record([program("fork")])
    data = replay_on_cpus(live, tmp_path, 2, SwitchRecords.CPU_WIDE)
    assert main(["report", str(data)]) == 0
    report = capsys.readouterr().out
    for tid in recorded_threads(live):
        assert f"thread {tid} (" in report
    root = min(recorded_threads(live))
    assert main(["instructions", "--tid", str(root), "--fields", "tid,ip", str(data)]) == 0
    lines = capsys.readouterr().out.splitlines()
    with Trace(data) as trace:
        wanted = sum(each.counts().instructions for each in trace.threads if each.tid == root)
    assert len(lines) == wanted
    assert {line.split()[0] for line in lines} == {str(root)}
