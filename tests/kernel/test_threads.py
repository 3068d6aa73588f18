"""Threads of a stream with kernel code: __switch_to begins the next thread."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from kernel import recording
from kernel.machine import Machine
from kernel.test_paths import run_kernel_code
from rtit.cli.main import main
from rtit.errors import UnsupportedError, UsageError
from rtit.image import KernelFiles
from rtit.profile.builder import build_profile
from rtit.trace import End, ErrorClass, Selection, Trace
from rtit.trace.threads.thread_extraction import ThreadAccounting
from rtit.views.statistics import compute_statistics


@pytest.fixture(scope="module")
def machine() -> Machine:
    return run_kernel_code(Machine())


@pytest.fixture(scope="module")
def recorded(machine: Machine, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return recording.write(machine, tmp_path_factory.mktemp("made") / "perf.data")


@pytest.mark.parametrize("timing", [False, True])
def test_instructions_have_thread_columns(recorded: Path, machine: Machine, timing: bool) -> None:
    with Trace(recorded) as trace:
        (stream,) = trace.streams
        found = stream.instructions(timing=timing).columns()
        assert list(zip(found["tid"].tolist(), found["ip"].tolist(), strict=True)) == machine.ran
        whole = trace.instructions(timing=timing).columns()
        assert whole["tid"].tolist() == found["tid"].tolist()


def test_blocks_and_branches_have_thread_columns(recorded: Path, machine: Machine) -> None:
    with Trace(recorded) as trace:
        (stream,) = trace.streams
        at = 0
        for rows in stream.blocks():
            for tid, count in zip(
                rows.extra_columns["tid"].tolist(), rows.instructions, strict=True
            ):
                assert {each for each, _ in machine.ran[at : at + int(count)]} == {tid}
                at += int(count)
        assert at == len(machine.ran)
        executed = iter(machine.ran)
        for part in stream.branches():
            for tid, source in zip(
                part.extra_columns["tid"].tolist(), part.source.tolist(), strict=True
            ):
                assert any((tid, source) == row for row in executed)


def test_listing_has_thread_names(
    recorded: Path, machine: Machine, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["instructions", str(recorded), "--fields", "tid,comm,ip,sym"]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert [(int(line[0]), int(line[2], 16)) for line in lines] == machine.ran
    assert {(line[0], line[1]) for line in lines} == {("100", "made-one"), ("200", "made-two")}
    assert main(["instructions", str(recorded), "--fields", "tid,ip,asm"]) == 0
    listed = [line.split(maxsplit=2) for line in capsys.readouterr().out.splitlines()]
    assert [(int(line[0]), int(line[1], 16)) for line in listed] == machine.ran
    assert "jmp short 0x40100b" not in [line[2] for line in listed if line[0] == "100"]


def test_without_switch_symbol_thread_changes_at_far_transfer(
    recorded: Path, machine: Machine
) -> None:
    """Without a symbol __switch_to the thread changes at the next far transfer."""
    kcore = KernelFiles(kcore=str(recorded / "kcore_dir" / "kcore"))
    with Trace(recorded / "data", kernel=kcore) as trace:
        (stream,) = trace.streams
        found = stream.instructions().columns()
        assert found["ip"].tolist() == [ip for _, ip in machine.ran]
        pairs = zip(found["tid"].tolist(), machine.ran, strict=True)
        others = [ip for tid, (own, ip) in pairs if tid != own]
        assert others
        assert all(ip >= 1 << 63 for ip in others)


def run_switches(machine: Machine, *, switches: int) -> Machine:
    """Run two processes alternately, with one or two MTCs between switches at varying positions."""
    for number in range(switches):
        for _ in range(number % 7 + 4):
            machine.syscall(calls="made_open" if number % 3 else None)
        one, two = machine.threads
        machine.syscall(one if machine.now is two else two)
    return machine


@pytest.mark.parametrize("isolated", [False, True])
def test_cr3_selects_code_before_estimated_time(isolated: bool, tmp_path: Path) -> None:
    """Timing packets are rare: after a switch user code may run before the stream's time reaches
    that of the switch. Once the page tables of each process are known, CR3 selects the process.
    """
    machine = run_switches(Machine(cyc=False, isolated=isolated), switches=60)
    with Trace(recording.write(machine, tmp_path / "perf.data")) as trace:
        (stream,) = trace.streams
        ips = [int(ip) for part in stream.instructions() for ip in part.ip]
        ran = [ip for _, ip in machine.ran]
        learned = len(ran) // 4
        assert ips[-(len(ran) - learned) :] == ran[learned:]
        spans = [span for span in stream.ledger() if span.is_gap]
        assert all(span.start < stream.size // 4 for span in spans)


@pytest.mark.parametrize("timing", [False, True])
def test_threads_are_exact_if_timing_packets_are_rare(timing: bool, tmp_path: Path) -> None:
    machine = run_switches(Machine(cyc=False), switches=60)
    with Trace(recording.write(machine, tmp_path / "perf.data")) as trace:
        (stream,) = trace.streams
        found = stream.instructions(timing=timing).columns()
        rows = list(zip(found["tid"].tolist(), found["ip"].tolist(), strict=True))
        # Until CR3 selects the process, code is lost.
        learned = len(machine.ran) // 4
        assert rows[-(len(machine.ran) - learned) :] == machine.ran[learned:]


def test_interrupted_decoding_has_no_ledger(
    recorded: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(_: object, _rows: object) -> None:
        raise KeyboardInterrupt

    with Trace(recorded) as trace:
        expected = [each.counts() for each in trace.threads]
    with Trace(recorded) as trace:
        with monkeypatch.context() as patched:
            patched.setattr(ThreadAccounting, "add_branches", interrupted)
            for thread in trace.threads:
                with pytest.raises(KeyboardInterrupt):
                    thread.counts()
        assert [each.counts() for each in trace.threads] == expected


def test_contradictory_cr3_is_an_error_in_the_ledger(tmp_path: Path) -> None:
    """The page tables of one process become those of another at an unknown time."""
    machine = run_switches(Machine(cyc=False), switches=20)
    one, two = machine.threads
    one.cr3, two.cr3 = two.cr3, one.cr3
    machine = run_switches(machine, switches=6)
    with Trace(recording.write(machine, tmp_path / "perf.data")) as trace:
        (stream,) = trace.streams
        stream.counts()
        reported = [span.error for span in stream.ledger()]
        assert any(
            "another process than the one that has the processor" in each for each in reported
        )


def test_rows_have_thread_names(
    recorded: Path, machine: Machine, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["blocks", str(recorded)]) == 0
    at = 0
    for line in capsys.readouterr().out.splitlines():
        tid, start, name, count = line.split()[:4]
        assert machine.ran[at] == (int(tid), int(start, 16))
        assert name != "-" or int(start, 16) < 1 << 63
        at += int(count)
    assert at == len(machine.ran)


@pytest.mark.parametrize("timing", [False, True])
def test_single_threads_add_up_to_stream(recorded: Path, machine: Machine, timing: bool) -> None:
    """Each has its own path; together they have all bytes, instructions, branches and events
    once.
    """
    with Trace(recorded) as trace:
        (whole,) = trace.streams
        assert whole.title == "cpu 0, 2 threads"
        counted = whole.counts()
        of_threads = [each.counts() for each in trace.threads]
        assert [(each.tid, each.pid) for each in trace.threads] == [(100, 100), (200, 200)]
        for thread in trace.threads:
            own = [ip for tid, ip in machine.ran if tid == thread.tid]
            found = thread.instructions(timing=timing).columns()
            assert found["ip"].tolist() == own
            assert set(found["tid"].tolist()) == {thread.tid}
            assert sum(int(rows.instructions.sum()) for rows in thread.rows()) == len(own)
            runs = thread.coverage()
            assert int((runs.count * runs.instructions).sum()) == len(own)
            edges = thread.edges()
            assert int(edges.count.sum()) == thread.counts().branches + sum(
                int(edges.count[edges.kind == kind].sum()) for kind in (End.JUMP, End.CALL)
            )
        for name in ("instructions", "conditional", "indirect", "returns", "exact_bytes"):
            assert sum(getattr(each, name) for each in of_threads) == getattr(counted, name), name
        for thread in trace.threads:
            spans = list(thread.ledger())
            assert {span.kind for span in spans} == {"exact", "elsewhere"}
            assert spans[-1].end == thread.size
            assert all(one.end == two.start for one, two in pairwise(spans))
        events = [
            Counter((event.kind, event.offset) for rows in each.rows() for event in rows.events)
            for each in (whole, *trace.threads)
        ]
        assert events[0] == events[1] + events[2]


def test_index_and_function_of_one_thread_are_those_of_its_own_instructions(
    recorded: Path, machine: Machine
) -> None:
    with Trace(recorded) as trace:
        for thread in trace.threads:
            own = np.array([ip for tid, ip in machine.ran if tid == thread.tid], np.uint64)
            rows = thread.blocks(extra_columns=["index", "function"]).columns()
            assert own[rows["index"]].tolist() == rows["start"].tolist()
            named = zip(rows["time"].tolist(), rows["start"].tolist(), strict=True)
            found = [trace.symbols.lookup(thread.tid, time, ip) for time, ip in named]
            names = [each.name or Path(each.module).name for each in found]
            assert rows["function"].tolist() == names
            assert "__switch_to" in names
            with pytest.raises(UnsupportedError, match="indexes of branches are of all threads"):
                thread.branches(extra_columns=["index"])


def test_stream_results_of_one_thread_raise(recorded: Path) -> None:
    with Trace(recorded) as trace:
        for thread in trace.threads:
            for ask in (thread.block_ids, lambda: next(thread.runs())):  # noqa: B023
                with pytest.raises(UnsupportedError, match="of all threads of the CPU"):
                    ask()


def test_events_without_code_stay_in_stream(recorded: Path, tmp_path: Path) -> None:
    """Their thread is unknown: the one stream has all of them."""
    data = tmp_path / "perf.data"
    shutil.copytree(recorded, data)
    shutil.rmtree(data / "kcore_dir")
    with Trace(data, symfs=tmp_path / "nothing") as trace:
        (whole,), (thread,) = trace.streams, trace.threads
        assert whole.counts().instructions == 0
        assert len(whole.raw_events().columns()["offset"]) > 0
        for name in ("kind", "offset", "row"):
            assert thread.raw_events().columns()[name].tolist() == (
                whole.raw_events().columns()[name].tolist()
            )
        assert [str(each) for each in thread.events()] == [str(each) for each in whole.events()]


def test_events_of_thread_refer_to_its_rows(recorded: Path) -> None:
    """Rows before an event of a thread ended before it."""
    with Trace(recorded) as trace:
        for thread in trace.threads:
            offsets: list[int] = []
            for rows in thread.rows():
                assert rows.first == len(offsets)
                offsets += rows.offset.tolist()
                for event in rows.events:
                    assert all(each <= event.offset for each in offsets[: max(0, event.row - 1)])


def test_subcommands_select_one_thread(
    recorded: Path, machine: Machine, capsys: pytest.CaptureFixture[str]
) -> None:
    own = [ip for tid, ip in machine.ran if tid == 200]
    assert main(["instructions", str(recorded), "--tid", "200", "--fields", "ip"]) == 0
    assert [int(line, 16) for line in capsys.readouterr().out.splitlines()] == own
    assert main(["instructions", str(recorded), "--comm", "made-two", "--head", "7"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 7
    assert main(["blocks", str(recorded), "--pid", "200", "--json"]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert sum(row["instructions"] for row in rows) == len(own)
    assert {row["tid"] for row in rows} == {200}
    with Trace(recorded) as trace:
        chosen = trace.instructions(Selection(tids=(200,))).columns()
        assert chosen["ip"].tolist() == own
        assert [each.title for each in trace.select()] == ["cpu 0, 2 threads"]
        assert [each.tid for each in trace.select(Selection(pids=(100,)))] == [100]
        with pytest.raises(UsageError, match="no such stream"):
            trace.select(Selection(tids=(300,)))


def test_report_counts_by_cpu_and_by_thread(
    recorded: Path, machine: Machine, capsys: pytest.CaptureFixture[str]
) -> None:
    counted = Counter(tid for tid, _ in machine.ran)
    assert main(["report", str(recorded)]) == 0
    words = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert [f"{counted[100]}", "thread", "100", "(made-one)"] in words
    assert [f"{counted[200]}", "thread", "200", "(made-two)"] in words
    with Trace(recorded) as trace:
        whole = compute_statistics(trace, trace.select())
        apart = compute_statistics(trace, trace.threads)
    assert apart.functions == whole.functions
    assert whole.functions["__switch_to", "[kernel.kallsyms]_text"] > 0
    assert sum(each.pt_bytes for each in apart.streams) == whole.streams[0].pt_bytes


def test_profile_separates_processes(
    recorded: Path, machine: Machine, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Both programs are at the same addresses; the return stack is that of the whole CPU."""
    with Trace(recorded) as trace:
        found = build_profile(trace, trace.threads)
        assert found.losses.bytes == trace.streams[0].size
    user = Counter(tid for tid, ip in machine.ran if ip < 1 << 63)
    assert [each.executed_instructions for each in found.binaries] == [user[100], user[200]]
    words = ["profile", "--for", "callgrind", "-o", str(tmp_path / "out"), str(recorded)]
    assert main(words) == 0
    assert main([*words, "--tid", "100"]) == 1
    assert "the kernel was traced" in capsys.readouterr().err


@pytest.mark.parametrize("cyc", [False, True])
def test_ambiguous_bytes_are_in_ledger(
    cyc: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without symbols no packet shows a switch. All rows with a wrong thread lie in spans that the
    ledger reports as ambiguous, and the report counts them.
    """
    machine = run_switches(Machine(cyc=cyc), switches=12)
    data = recording.write(machine, tmp_path / "perf.data")
    kcore = str((data / "kcore_dir" / "kcore").rename(tmp_path / "kcore"))
    shutil.rmtree(data / "kcore_dir")
    with Trace(data, kernel=KernelFiles(kcore=kcore)) as trace:
        (stream,) = trace.streams
        reported: list[tuple[int, int, int]] = []
        for rows in stream.blocks():
            columns = (rows.start, rows.extra_columns["tid"], rows.offset, rows.instructions)
            for ip, tid, offset, count in zip(*map(list, columns), strict=True):
                reported += [(int(ip), int(tid), int(offset))] + [(0, int(tid), int(offset))] * int(
                    count - 1
                )
        ambiguous_spans = [
            (int(stream.ledger().value[number]), span.start)
            for number, span in enumerate(stream.ledger())
            if span.cause == ErrorClass.AMBIGUOUS_THREAD
        ]
        assert 6 <= len(ambiguous_spans) <= 12
        assert all(first < last for first, last in ambiguous_spans)
        if cyc:  # else code is lost where another process's was taken
            assert len(reported) == len(machine.ran)
            for (ip, tid, offset), (truth, row) in zip(reported, machine.ran, strict=True):
                assert ip in (0, row)
                if tid != truth:
                    assert any(first < offset <= last for first, last in ambiguous_spans)
        inside = [each for each in reported if any(a < each[2] <= b for a, b in ambiguous_spans)]
        assert len(inside) < len(reported)
        (counted,) = compute_statistics(trace, trace.streams).streams
        assert counted.ambiguous == (len(ambiguous_spans), len(inside))
        assert not counted.losses or not cyc
    assert main(["report", str(data), "--kcore", kcore]) in (0, 3)
    assert f"{len(ambiguous_spans)} times " in capsys.readouterr().out
    assert main(["report", "--json", str(data), "--kcore", kcore]) in (0, 3)
    (told_of,) = json.loads(capsys.readouterr().out)["streams"]
    assert told_of["unsure"] == {"switches": len(ambiguous_spans), "instructions": len(inside)}
    assert main(["instructions", str(data), "--kcore", kcore, "--head", "3"]) in (0, 3)
    recording.write_copies(machine, data / "kcore_dir")
    with Trace(data) as trace:
        (stream,) = trace.streams
        assert "ambiguous thread" not in stream.counts().errors
