"""`perf_time` is the time that stock perf prints for each instruction, to the nanosecond."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from differential.oracles import perf
from differential.timed_packets import write_random_recording
from rtit.capture.ptrace.session import replay
from rtit.cli.main import main
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


def times_from_rtit(trace: Trace) -> dict[int, list[tuple[int, int]]]:
    assert trace.clock is not None
    found: dict[int, list[tuple[int, int]]] = {}
    for stream in trace.threads:
        columns = stream.instructions(perf_time=True).columns()
        times = trace.clock.nanoseconds(columns["perf_time"])
        pairs = zip(times.tolist(), columns["ip"].tolist(), strict=True)
        found.setdefault(stream.tid, []).extend(pairs)
    return sorted_by_time(found)


def sorted_by_time(found: dict[int, list[tuple[int, int]]]) -> dict[int, list[tuple[int, int]]]:
    """Sort the rows of each thread by time."""
    return {tid: sorted(rows, key=lambda row: row[0]) for tid, rows in found.items()}


def branches_from_perf(data: Path) -> dict[int, list[tuple[int, int, int]]]:
    """Return (ns, from, to) of each taken branch by thread, as perf lists them.

    Branches that begin or end tracing are left out.
    """
    found: dict[int, list[tuple[int, int, int]]] = {}
    options = ["--itrace=b", "--ns", "-F", "tid,time,ip,addr"]
    for line in perf.script(data, options).splitlines():
        tid, time, source, arrow, target = line.split()
        assert arrow == "=>"
        if int(source, 16) and int(target, 16):
            row = (int(time[:-1].replace(".", "")), int(source, 16), int(target, 16))
            found.setdefault(int(tid), []).append(row)
    return found


def branches_from_rtit(trace: Trace) -> dict[int, list[tuple[int, int, int]]]:
    """Return the branches in the form of `branches_from_perf`."""
    assert trace.clock is not None
    found: dict[int, list[tuple[int, int, int]]] = {}
    for stream in trace.threads:
        columns = stream.branches(perf_time=True).columns()
        taken = (columns["kind"] != End.CUT) & (columns["target"] != 0)
        times = trace.clock.nanoseconds(columns["perf_time"])[taken].tolist()
        addresses = (columns[name][taken].tolist() for name in ("source", "target"))
        found.setdefault(stream.tid, []).extend(zip(times, *addresses, strict=True))
    return found


@pytest.mark.parametrize(("event", "model", "cpus"), RECORDINGS)
@pytest.mark.parametrize("name", ["threads", "signal_nested"])
def test_perf_time_of_each_instruction_equals_that_of_perf(
    name: str,
    event: str,
    model: TimeModel,
    cpus: int,
    program: ProgramBuilder,
    record: Recorder,
    tmp_path: Path,
) -> None:
    """perf has one time for all threads that share a CPU."""
    data = tmp_path / "perf.data"
    replay(record([program(name)]).log, data, event=event, time=model, cpus=cpus)
    theirs = times_from_perf(data)
    with Trace(data) as trace:
        found = times_from_rtit(trace)
    assert found.keys() == theirs.keys()
    for tid, rows in found.items():
        assert len(rows) > 100
        assert rows == sorted(theirs[tid], key=lambda row: row[0])


@pytest.mark.parametrize("seed", range(6))
def test_perf_time_with_random_clock_settings_equals_that_of_perf(
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
    replay(record([program("signal_nested")]).log, data, event=event, time=model)
    with Trace(data) as trace:
        assert times_from_rtit(trace) == sorted_by_time(times_from_perf(data))
        assert branches_from_rtit(trace) == branches_from_perf(data)


@pytest.mark.parametrize("seed", range(30))
def test_perf_time_of_random_packets_equals_that_of_perf(seed: int, tmp_path: Path) -> None:
    """Rate changes, CBRs, PSB+, late TSCs, overflows and untraced times are random."""
    data = write_random_recording(seed, tmp_path)
    with Trace(data) as trace:
        found = times_from_rtit(trace)
        assert len(found[1]) > 300
        assert found == sorted_by_time(times_from_perf(data))
        assert branches_from_rtit(trace) == branches_from_perf(data)


@pytest.mark.parametrize(
    ("recording", "elf"),
    [
        ("loopy-skylake", "loopy"),
        ("control_flow-skylake", "control_flow"),
        ("loopy-broadwell-snapshot", "loopy"),
    ],
)
def test_perf_time_of_hardware_traces_equals_that_of_perf(recording: str, elf: str) -> None:
    data, code = TRACES / f"{recording}.perf.data", TRACES / f"{elf}.elf"
    if not data.exists():
        pytest.skip(f"{data} is not there")
    with Trace(data) as trace:
        paths = {each.path for some in trace.mappings().values() for each in some}
    symfs = {path: code for path in paths if path.endswith(f"/{elf}")}
    with Trace(data, path_map={path: str(code) for path in symfs}) as trace:
        found = times_from_rtit(trace)
    assert found == times_from_perf(data, symfs)


def test_perf_time_lies_within_the_time_bounds(
    program: ProgramBuilder, record: Recorder, tmp_path: Path
) -> None:
    """This holds where no user code began since the last timing packet."""
    data = tmp_path / "perf.data"
    replay(record([program("recursion")]).log, data, event="intel_pt/mtc_period=0/u")
    with Trace(data) as trace:
        rows = trace.instructions(timing=True, perf_time=True).columns()
    assert (rows["earliest"] <= rows["perf_time"]).all()
    assert (rows["perf_time"] <= rows["latest"]).mean() > 0.9
    assert (rows["time"] == rows["perf_time"]).mean() > 0.8


def test_listing_prints_perf_time(
    program: ProgramBuilder,
    record: Recorder,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    data = tmp_path / "perf.data"
    replay(record([program("recursion")]).log, data)
    (theirs,) = times_from_perf(data).values()
    last = theirs[-1][1]
    assert main(["instructions", "--fields", "perf_time,ip", str(data)]) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert [(int(time), int(ip, 16)) for time, ip in rows] == theirs
    where = f"{last:#x}-{last + 1:#x}"
    assert main(["instructions", "--fields", "perf_time", "--range", where, str(data)]) == 0
    chosen = [int(line) for line in capsys.readouterr().out.split()]
    assert chosen == [time for time, ip in theirs if ip == last]
