"""`rtit info` attributes the bytes of a CPU's buffer to threads.

The recorder that assigns threads to CPUs knows the truth.
"""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from rtit.capture.ptrace.session import replay_events
from rtit.capture.ptrace.shared_cpus import SharedCpuRecorder
from rtit.cli.main import main
from rtit.packets import encode
from rtit.perfdata import SwitchRecords, Writer
from rtit.trace import Trace
from rtit.trace.recording.summary import summarize_recording
from support.recordings import RecordedProgram, Recorder

ProgramBuilder = Callable[[str], Path]
SwitchBytes = tuple[int, int, int]
"""Bytes of a CPU at a switch, bytes when the next thread runs, and its tid."""


@pytest.fixture
def switch_bytes(monkeypatch: pytest.MonkeyPatch) -> dict[int, list[SwitchBytes]]:
    """The switches of each CPU, as the recorder makes them."""
    found: dict[int, list[SwitchBytes]] = {}
    written: Counter[int] = Counter()
    schedule, write, switch = (
        SharedCpuRecorder._schedule_thread,
        SharedCpuRecorder._write_packets_of_slot,
        Writer.switch,
    )
    machines: list[SharedCpuRecorder] = []

    def size(number: int) -> int:
        pending = machines[0]._slots[number].pending if machines else b""
        return written[number] + len(pending)

    def record_schedule(machine: SharedCpuRecorder, thread: object) -> None:
        machines[:] = [machine]
        before = {number: len(rows) for number, rows in found.items()}
        schedule(machine, thread)  # type: ignore[arg-type]
        for number, rows in found.items():
            if len(rows) > before.get(number, 0):
                start, _, tid = rows[-1]
                rows[-1] = start, size(number), tid

    def wrote(machine: SharedCpuRecorder, slot: object, tsc: int) -> None:
        # the writer pads its pieces
        written[slot.number] += (len(slot.pending) + 7) & -8  # type: ignore[attr-defined]
        write(machine, slot, tsc)  # type: ignore[arg-type]

    def switched(
        writer: Writer, cpu: int, time: int, before: object, after: tuple[int, int], back: int = 0
    ) -> None:
        found.setdefault(cpu, []).append((size(cpu), size(cpu), after[1]))
        switch(writer, cpu, time, before, after, back)  # type: ignore[arg-type]

    monkeypatch.setattr(SharedCpuRecorder, "_schedule_thread", record_schedule)
    monkeypatch.setattr(SharedCpuRecorder, "_write_packets_of_slot", wrote)
    monkeypatch.setattr(Writer, "switch", switched)
    return found


def record_on_two_cpus(
    live: RecordedProgram, data: Path, switches: SwitchRecords, event: str = "intel_pt//u"
) -> Path:
    replay_events(live.log, data, event=event, cpus=2, switches=switches)
    return data


@pytest.mark.parametrize("name", ["threads", "fork"])
@pytest.mark.parametrize(("event", "cyc"), [("intel_pt//u", 0), ("intel_pt/cyc,psb_period=0/u", 2)])
def test_bytes_by_thread_are_exact_where_tracing_pauses_at_switches(
    name: str,
    event: str,
    cyc: int,
    program: ProgramBuilder,
    record: Recorder,
    switch_bytes: dict[int, list[SwitchBytes]],
    tmp_path: Path,
) -> None:
    """As perf traces threads: a trace unit that is turned on writes the time.

    The bytes are exact, except for the last CYC before a switch (two bytes here).
    """
    data = record_on_two_cpus(
        record([program(name)]), tmp_path / "perf.data", SwitchRecords.THREADS, event
    )
    with Trace(data) as trace:
        found = summarize_recording(trace).buffers
        ran = {stream.tid for stream in trace.threads}
    assert len(found) == 2
    for each in found:
        truth: Counter[int] = Counter()
        rows = [*switch_bytes[each.cpu], (each.size, each.size, -1)]
        for (start, _, tid), (end, _, _) in itertools.pairwise(rows):
            truth[tid] += end - start
        found_so = Counter({row.tid or 0: row.size for row in each.threads})
        wrong = [abs(found_so[tid] - truth[tid]) for tid in found_so | truth]
        assert sum(wrong) <= 2 * cyc * len(rows)
        assert truth.total() == each.size
        assert len(truth) > 1
        assert {row.tid for row in each.threads} <= ran


@pytest.mark.parametrize("name", ["threads", "fork"])
def test_bytes_by_thread_are_within_bounds_where_tracing_continues_over_switches(
    name: str,
    program: ProgramBuilder,
    record: Recorder,
    switch_bytes: dict[int, list[SwitchBytes]],
    tmp_path: Path,
) -> None:
    """As perf traces CPUs: packets between two threads in user code may belong to either."""
    data = record_on_two_cpus(
        record([program(name)]), tmp_path / "perf.data", SwitchRecords.CPU_WIDE
    )
    with Trace(data) as trace:
        found = summarize_recording(trace).buffers
    for each in found:
        least: Counter[int] = Counter()
        most: Counter[int] = Counter()
        rows = [*switch_bytes[each.cpu], (each.size, each.size, -1)]
        for number, ((start, runs, tid), (end, next_runs, _)) in enumerate(
            itertools.pairwise(rows)
        ):
            least[tid] += end - runs if tid else 0
            most[tid] += next_runs - start
            if not tid:  # reported before the switch
                most[rows[number - 1][2]] += end - start
        sizes = {row.tid: row.size for row in each.threads}
        assert sum(sizes.values()) == each.size
        assert all(size <= sizes.get(tid, 0) <= most[tid] for tid, size in least.items())
        assert set(sizes) <= set(least)
        assert len(sizes) > 1


def test_info_lists_bytes_by_thread_as_text_and_json(
    program: ProgramBuilder, record: Recorder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = record_on_two_cpus(
        record([program("fork")]), tmp_path / "perf.data", SwitchRecords.THREADS
    )
    assert main(["info", "--json", str(data)]) == 0
    buffers = json.loads(capsys.readouterr().out)["buffers"]
    assert main(["info", str(data)]) == 0
    text = capsys.readouterr().out
    for each in buffers:
        assert sum(row["size"] for row in each["threads"]) == each["size"]
        for row in each["threads"]:
            line = next(line for line in text.splitlines() if f"  thread {row['tid']} (" in line)
            assert line.endswith(f"({row['name']})")
    sizes = {line.split()[0] for line in text.splitlines() if "  thread " in line}
    assert sizes >= {f"{row['size']:,}" for each in buffers for row in each["threads"]}


def write_many_threads(path: Path, threads: int) -> Path:
    """Write a recording of one CPU that runs `threads` threads.

    Thread N has a PSB, a TSC, a PSBEND and N PADs.
    """
    group = b"".join((encode("PSB"), encode("TSC", tsc=0), encode("PSBEND")))
    with Writer(
        path, config=0x2401, cpuid="GenuineIntel,6,94,3", switches=SwitchRecords.CPU_WIDE
    ) as out:
        packets = []
        for tid in range(1, threads + 1):
            out.mmap2(tid, tid, 1, 0x1000, 0x1000, 0, 5, 2, 0, 0, 0, 0, "/bin/none")
            out.switch(0, 1000 * tid, (tid - 1, tid - 1), (tid, tid))
            tsc = encode("TSC", tsc=1000 * tid + 10)
            packets.append(encode("PSB") + tsc + encode("PSBEND") + bytes(tid))
            assert len(packets[-1]) == len(group) + tid
        out.auxtrace(-1, -1, b"".join(packets), None, 100, cpu=0)
    return path


def test_largest_threads_are_listed_and_the_rest_summed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = write_many_threads(tmp_path / "perf.data", 3008)
    with Trace(data) as trace:
        (buffer,) = summarize_recording(trace).buffers
    *own, rest = buffer.threads
    # PSB, TSC and PSBEND are 26 bytes
    assert [(each.tid, each.size) for each in own] == [(n, 26 + n) for n in range(3008, 2944, -1)]
    assert (rest.tid, rest.threads) == (None, 2944)
    assert rest.size == sum(26 + number for number in range(1, 2945))
    assert main(["info", str(data)]) == 3
    lines = capsys.readouterr().out.splitlines()
    (more,) = [line for line in lines if line.endswith("2,996 more")]
    assert more.split()[0] == f"{sum(26 + number for number in range(1, 2997)):,}"


def test_bytes_before_the_first_tsc_belong_to_no_known_thread(tmp_path: Path) -> None:
    """Without any TSC no byte is attributed."""
    one = write_many_threads(tmp_path / "one", 3)
    with Trace(one) as trace:
        whole = trace.streams[0].read()
    for number, (packets, unknown) in enumerate(
        [
            (encode("CBR", ratio=10) * 2 + whole, 8),
            (encode("CBR", ratio=10) * 6, 24),
        ]
    ):
        data = tmp_path / f"{number}.data"
        with Writer(
            data, config=0x2401, cpuid="GenuineIntel,6,94,3", switches=SwitchRecords.CPU_WIDE
        ) as to:
            for tid in (1, 2, 3):
                to.mmap2(tid, tid, 1, 0x1000, 0x1000, 0, 5, 2, 0, 0, 0, 0, "/bin/none")
                to.switch(0, 1000 * tid, (tid - 1, tid - 1), (tid, tid))
            to.auxtrace(-1, -1, packets, None, 5000, cpu=0)
        with Trace(data) as trace:
            (buffer,) = summarize_recording(trace).buffers
        assert sum(each.size for each in buffer.threads) == len(packets)
        (found,) = [each for each in buffer.threads if each.tid == -1]
        assert found.size == unknown
        assert found.title == "unknown thread"
