"""A CPU with many threads: number of decoding passes over its packets."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest

from rtit.cli.main import main
from rtit.packets import encode
from rtit.perfdata import SwitchRecords, Writer
from rtit.profile.stat import stat
from rtit.trace import Selection, Stream, Trace
from rtit.trace.threads import thread_splitter
from rtit.views.statistics import compute_statistics
from support.limits import assert_peak_memory
from support.oversized import START

SINCE = 1 << 21
EACH = 2000
"""Ticks of the TSC."""


def write_many_threads(path: Path, count: int, *, processes: bool = False) -> Path:
    """Write a recording of many threads of one process, or of many processes, with two instructions
    each.
    """

    def who(number: int) -> tuple[int, int]:
        return (number + 2 if processes else 1), number + 2

    code = path.with_suffix(".code")
    code.write_bytes(b"\xff\xe0" * 2048)
    pt = encode("PSB") + encode("TSC", tsc=SINCE >> 1)
    pt += encode("MODE.Exec", csl=1, csd=0, iflag=0) + encode("PSBEND")
    with Writer(
        path, config=0x2601, cpuid="GenuineIntel,6,94,3", switches=SwitchRecords.CPU_WIDE
    ) as out:
        out.mmap2(1, 1, 1, START, 4096, 0, 5, 2, 8, 1, 4711, 0, str(code))
        for number in range(count):
            out.fork(who(number)[0], 1, number + 2, 1, 2)
        for number in range(count):
            since = SINCE + number * EACH
            out.switch(0, since, who(number), who(number + 1))
            pt += encode("TSC", tsc=since + EACH // 4)
            pt += encode("TIP.PGE", ip_bytes=6, payload=START)
            pt += encode("TIP", ip_bytes=2, payload=START + 2) + encode("TIP.PGD", ip_bytes=0)
        out.auxtrace(-1, -1, pt, None, 3, 0)
    return path


def interval_count(stream: Stream) -> int:
    assert stream.thread_scope is not None
    return len(stream.thread_scope.schedule.intervals)


@pytest.fixture
def decoders(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Record the stream of each new decoder."""
    made: list[str] = []
    native = Stream.native_decoder

    def counted(self: Stream, **options: bool) -> object:
        made.append(self.title)
        return native(self, **options)

    monkeypatch.setattr(Stream, "native_decoder", counted)
    return made


@pytest.mark.parametrize("count", [100, 400])
def test_work_does_not_grow_with_threads(
    count: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, decoders: list[str]
) -> None:
    monkeypatch.setattr(thread_splitter, "MAX_WORK", 1 << 15)
    with Trace(write_many_threads(tmp_path / "perf.data", count)) as trace:
        found = stat(trace, trace.by_thread())
        assert found.counts["instructions"] == 2 * count
        assert found.counts["threads"] == len(found.threads) == count
        assert {*found.threads.values()} == {2}
        report = compute_statistics(trace, trace.select())
        (stream,) = report.streams
        assert stream.title == f"cpu 0, {count} threads"
        assert dict(stream.thread_instructions) == {f"thread {3 + tid}": 2 for tid in range(count)}
        # a whole CPU has one title; thread 2 ran first
        whole = stat(trace, trace.streams)
        assert dict(whole.threads) == {f"cpu 0, {count + 1} threads": 2 * count}
    assert len(decoders) < 10


def test_split_depends_on_thread_count_and_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, decoders: list[str]
) -> None:
    with Trace(write_many_threads(tmp_path / "perf.data", 40)) as trace:
        (cpu,) = trace.streams
        work = 40 * (cpu.size + 8 * interval_count(cpu))
        monkeypatch.setattr(thread_splitter, "MAX_WORK", work)
        assert len(trace.by_thread()) == len(trace.select()) == 40
        monkeypatch.setattr(thread_splitter, "MAX_WORK", work - 1)
        (every,) = trace.by_thread()
        assert trace.select()[0].thread_ids == every.thread_ids
        assert [tid for _, tid in every.thread_ids] == [*range(3, 43)]
        assert len(trace.select(always_split=True)) == len(trace.by_thread(always_split=True)) == 40
        monkeypatch.setattr(thread_splitter, "MAX_WORK", 0)
        assert len(trace.select(Selection(tids=tuple(range(5, 21))))) == 16
        del decoders[:]
        (some,) = trace.select(Selection(tids=tuple(range(5, 22))))
        assert some.title == "cpu 0, 17 threads"
        rows = some.blocks().columns()
        assert {*rows["tid"].tolist()} == {*range(5, 22)}
        counts = some.counts()
        assert counts.instructions == 2 * 17
        assert 0 < counts.exact_bytes < counts.elsewhere_bytes
    assert len(decoders) == 1


@pytest.mark.parametrize("each", [1, 3])
def test_edges_by_process_equal_split_threads(
    each: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each process has another file at the same address; one limit applies to all."""
    path = tmp_path / "perf.data"
    with Writer(
        path, config=0x2601, cpuid="GenuineIntel,6,94,3", switches=SwitchRecords.CPU_WIDE
    ) as out:
        pt = encode("PSB") + encode("TSC", tsc=SINCE >> 1)
        pt += encode("MODE.Exec", csl=1, csd=0, iflag=0) + encode("PSBEND")
        who = [(10 * (number // each + 1), 1000 + number) for number in range(42)]
        for pid in {pid: None for pid, _ in who}:
            code = tmp_path / f"code{pid}"
            code.write_bytes(b"\xff\xe0" * 2048)
            out.mmap2(pid, pid, 1, START, 4096, 0, 5, 2, 8, 1, pid, 0, str(code))
        for pid, tid in who:
            out.fork(pid, pid, tid, pid, 2)
        for number, (left, come) in enumerate(pairwise([(1, 1), *who])):
            since = SINCE + number * EACH
            out.switch(0, since, left, come)
            pt += encode("TSC", tsc=since + EACH // 4)
            pt += encode("TIP.PGE", ip_bytes=6, payload=START)
            for _ in range(number % 4 + 1):
                pt += encode("TIP", ip_bytes=2, payload=START + 2 * (number % 5))
            pt += encode("TIP.PGD", ip_bytes=0)
        out.auxtrace(-1, -1, pt, None, 3, 0)

    pids = {str(tid): str(pid) for pid, tid in who}

    def report_counts() -> Counter[tuple[str, ...]]:
        assert main(["edges", str(path)]) == 0
        found: Counter[tuple[str, ...]] = Counter()
        for line in capsys.readouterr().out.splitlines():
            thread, count, *where = line.split()
            found[(pids.get(thread, thread), *where)] += int(count.replace(",", ""))
        return found

    separate = report_counts()
    assert {f"code{pid}" in str(where) for pid, *where in separate} == {True}
    monkeypatch.setattr(thread_splitter, "MAX_WORK", 0)
    assert report_counts() == separate
    assert len({pid for pid, *_ in separate}) == 42 // each
    with Trace(path, max_counters=7) as trace:
        (stream,) = trace.by_thread()
        found = stream.edges_by_process()
        assert len(found) == 7
        assert int(found.count.sum()) + found.uncounted == sum(separate.values())


def test_work_limit_applies_to_all_cpus_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_many_threads(tmp_path / "perf.data", 20)
    with Trace(path) as trace:
        (cpu,) = trace.streams
        work = 20 * (cpu.size + 8 * interval_count(cpu))
        monkeypatch.setattr(thread_splitter, "MAX_WORK", 2 * work - 1)
        twice = thread_splitter.ThreadSplitter({}).select_threads([cpu, cpu], None)
        assert [each.has_several_threads for each in twice] == [False] * 20 + [True]


def test_memory_of_many_processes_is_bounded(tmp_path: Path) -> None:
    with Trace(write_many_threads(tmp_path / "perf.data", 8000, processes=True)) as trace:
        (cpu,) = trace.streams
        cpu.executed_threads()
        with assert_peak_memory(140):
            runs = cpu.totals().runs
        assert int(runs.count.sum()) == 2 * 7999


def test_excessive_forced_split_raises_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_many_threads(tmp_path / "perf.data", 40)
    monkeypatch.setattr(thread_splitter, "MAX_WORK", 0)
    monkeypatch.setattr(thread_splitter, "MAX_FORCED_WORK", 1 << 13)
    monkeypatch.setattr(thread_splitter, "MAX_FORCED_FACTOR", 40)
    verbs = [
        *(["profile", "--for", name, str(path)] for name in ("callgrind", "perf")),
        ["diff", str(path), str(path)],
    ]
    for verb in verbs:
        main(verb)
        assert "separately" not in capsys.readouterr().err
    monkeypatch.setattr(thread_splitter, "MAX_FORCED_FACTOR", 39)
    for verb in verbs:
        assert main(verb) == 1
        error = capsys.readouterr().err
        assert "each of 40 threads separately would read 0 GB" in error
        assert "--tid" in error
        # the named threads are few enough
        main([*verb, "--tid", "5,6"])
        assert "separately" not in capsys.readouterr().err


def test_jobs_do_not_change_thread_attribution(tmp_path: Path) -> None:
    """One thread decodes a stream with scheduling intervals, for any number of jobs."""
    with Trace(write_many_threads(tmp_path / "perf.data", 12), jobs=4) as trace:
        (cpu,) = trace.streams
        columns = cpu.blocks().columns()
        assert columns["tid"].tolist() == [tid for tid in range(3, 15) for _ in range(2)]
        assert [each.counts().instructions for each in trace.threads] == [2] * 12
