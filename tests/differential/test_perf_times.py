"""Instructions and branches are those of stock perf, and no time is later than perf's.

perf extrapolates its clock between timing packets; rtit's time is a lower bound.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from differential.oracles import perf
from differential.timed_packets import write_random_recording
from rtit.capture.ptrace.session import replay_events
from rtit.trace import End, Trace
from rtit.unit.time_model import TimeModel
from support.recordings import Recorder

ProgramBuilder = Callable[[str], Path]
TRACES = Path(__file__).resolve().parents[2].parent / "shared" / "traces" / "hase"
CORE_AT_TSC_RATE = TimeModel()
CORE_AT_OTHER_RATE = TimeModel(cpi=3, core_ratio=21)
RECORDINGS = [
    ("intel_pt//u", CORE_AT_TSC_RATE, 0),
    ("intel_pt//u", CORE_AT_OTHER_RATE, 0),
    ("intel_pt/mtc_period=0,psb_period=0/u", CORE_AT_OTHER_RATE, 0),
    ("intel_pt/mtc=0,noretcomp/u", CORE_AT_OTHER_RATE, 0),
    ("intel_pt/cyc/u", CORE_AT_TSC_RATE, 0),
    ("intel_pt/cyc,mtc_period=0/u", CORE_AT_TSC_RATE, 0),
    ("intel_pt//u", CORE_AT_TSC_RATE, 1),
    ("intel_pt/cyc/u", CORE_AT_TSC_RATE, 2),
]


def times_from_perf(
    data: Path, symfs: dict[str, Path] | None = None
) -> dict[int, list[tuple[int, int]]]:
    """Return (ns, address) of each instruction by thread, as perf lists them.

    Instructions of a thread on several CPUs are in the order of time.
    """
    found: dict[int, list[tuple[int, int]]] = {}
    try:
        text = perf.script(data, ["--itrace=i0ns", "--ns", "-F", "tid,time,ip"], symfs)
    except perf.PerfMissingError as error:
        pytest.skip(str(error))
    for line in text.splitlines():
        tid, time, ip = line.split()
        found.setdefault(int(tid), []).append((int(time[:-1].replace(".", "")), int(ip, 16)))
    return found


def times_from_rtit(trace: Trace, column: str = "time") -> dict[int, list[tuple[int, int]]]:
    """Return (ns, address) of each instruction by thread, in the order of this column."""
    assert trace.clock is not None
    found: dict[int, list[tuple[int, int]]] = {}
    for stream in trace.threads:
        columns = stream.instructions(timing=True).columns()
        times = trace.clock.nanoseconds(columns[column])
        pairs = zip(times.tolist(), columns["ip"].tolist(), strict=True)
        found.setdefault(stream.tid, []).extend(pairs)
    return {tid: sorted(rows, key=lambda row: row[0]) for tid, rows in found.items()}


def assert_no_time_is_later(
    found: dict[int, list[tuple[int, int]]], theirs: dict[int, list[tuple[int, int]]]
) -> None:
    """Require perf's instructions in its order, none at a later time."""
    assert found.keys() == theirs.keys()
    for tid, rows in found.items():
        assert [ip for _, ip in rows] == [ip for _, ip in theirs[tid]]
        times = zip(rows, theirs[tid], strict=True)
        assert all(time <= perf_time for (time, _), (perf_time, _) in times)


Transfers = dict[int, list[tuple[int, int]]]
"""(from, to) of each taken branch by thread."""


def branches_from_perf(data: Path) -> Transfers:
    """Return the branches that perf lists, without those that begin or end tracing."""
    found: Transfers = {}
    for line in perf.script(data, ["--itrace=b", "-F", "tid,ip,addr"]).splitlines():
        tid, source, arrow, target = line.split()
        assert arrow == "=>"
        if int(source, 16) and int(target, 16):
            found.setdefault(int(tid), []).append((int(source, 16), int(target, 16)))
    return found


def branches_from_rtit(trace: Trace) -> Transfers:
    """Return the branches in the form of `branches_from_perf`."""
    found: Transfers = {}
    for stream in trace.threads:
        columns = stream.branches().columns()
        taken = (columns["kind"] != End.CUT) & (columns["target"] != 0)
        sources, targets = (columns[name][taken].tolist() for name in ("source", "target"))
        found.setdefault(stream.tid, []).extend(zip(sources, targets, strict=True))
    return found


@pytest.mark.parametrize(("event", "model", "cpus"), RECORDINGS)
@pytest.mark.parametrize("name", ["threads", "signal_nested"])
def test_times_of_recordings_are_not_later_than_those_of_perf(
    name: str,
    event: str,
    model: TimeModel,
    cpus: int,
    program: ProgramBuilder,
    record: Recorder,
    tmp_path: Path,
) -> None:
    data = tmp_path / "perf.data"
    replay_events(record([program(name)]).log, data, event=event, time=model, cpus=cpus)
    theirs = times_from_perf(data)
    with Trace(data) as trace:
        found = times_from_rtit(trace)
    assert all(len(rows) > 100 for rows in found.values())
    assert_no_time_is_later(found, theirs)


@pytest.mark.parametrize("seed", range(6))
def test_bounds_with_random_clock_settings_are_not_later_than_times_of_perf(
    seed: int, program: ProgramBuilder, record: Recorder, tmp_path: Path
) -> None:
    """Clock rates, thresholds and periods are random."""
    random = Random(seed)
    model = TimeModel(cpi=random.randint(1, 4), core_ratio=random.choice([5, 7, 10, 13, 21, 33]))
    options = ["cyc", f"cyc_thresh={random.randint(0, 9)}"]
    options += [
        f"mtc_period={random.choice([0, 3, 6, 9])}",
        f"psb_period={random.choice([0, 1, 3])}",
    ]
    data, event = tmp_path / "perf.data", f"intel_pt/{','.join(options)}/u"
    replay_events(record([program("signal_nested")]).log, data, event=event, time=model)
    with Trace(data) as trace:
        assert_no_time_is_later(times_from_rtit(trace, "earliest"), times_from_perf(data))
        assert branches_from_rtit(trace) == branches_from_perf(data)


@pytest.mark.parametrize("seed", range(30))
def test_path_of_random_timing_packets_equals_that_of_perf(seed: int, tmp_path: Path) -> None:
    """Rate changes, CBRs, PSB+, late TSCs, overflows and untraced times are random."""
    data = write_random_recording(seed, tmp_path)
    with Trace(data) as trace:
        (stream,) = trace.streams
        ips = stream.instructions().columns()["ip"].tolist()
        assert len(ips) > 300
        assert ips == [ip for _, ip in times_from_perf(data)[1]]
        assert branches_from_rtit(trace) == branches_from_perf(data)


@pytest.mark.parametrize(
    ("recording", "elf"),
    [
        ("loopy-skylake", "loopy"),
        ("control_flow-skylake", "control_flow"),
        ("loopy-broadwell-snapshot", "loopy"),
    ],
)
def test_times_of_hardware_are_not_later_than_those_of_perf(recording: str, elf: str) -> None:
    data, code = TRACES / f"{recording}.perf.data", TRACES / f"{elf}.elf"
    if not data.exists():
        pytest.skip(f"{data} is not there")
    with Trace(data) as trace:
        paths = {each.path for some in trace.mappings().values() for each in some}
    symfs = {path: code for path in paths if path.endswith(f"/{elf}")}
    with Trace(data, path_map={path: str(code) for path in symfs}) as trace:
        found = times_from_rtit(trace)
    assert_no_time_is_later(found, times_from_perf(data, symfs))
