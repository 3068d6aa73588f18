"""`perf_time` is what stock perf prints of each instruction, to the nanosecond."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from differential.oracles import perf
from differential.timed_packets import recording
from rtit.capture.ptrace.session import replay
from rtit.cli.main import main
from rtit.trace import End, Trace
from rtit.unit.time_model import TimeModel
from support.recordings import Recorder

ProgramBuilder = Callable[[str], Path]
TRACES = Path(__file__).resolve().parents[2].parent / "shared" / "traces" / "hase"
SAME = TimeModel()
OTHER = TimeModel(cpi=3, core_ratio=21)
RECORDINGS = [
    ("intel_pt//u", SAME, 0),
    ("intel_pt//u", OTHER, 0),
    ("intel_pt/mtc_period=0,psb_period=0/u", OTHER, 0),
    ("intel_pt/mtc=0,noretcomp/u", OTHER, 0),
    ("intel_pt/cyc/u", SAME, 0),
    ("intel_pt/cyc,mtc_period=0/u", SAME, 0),
    ("intel_pt//u", SAME, 1),
    ("intel_pt/cyc/u", SAME, 2),
]


def listed(data: Path, symfs: dict[str, Path] | None = None) -> dict[int, list[tuple[int, int]]]:
    """(ns, address) of each instruction by thread, as perf lists them; of a thread on several CPUs
    in the order of time.
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


def ours(trace: Trace) -> dict[int, list[tuple[int, int]]]:
    assert trace.clock is not None
    found: dict[int, list[tuple[int, int]]] = {}
    for stream in trace.threads:
        columns = stream.instructions(perf_time=True).columns()
        times = trace.clock.nanoseconds(columns["perf_time"])
        pairs = zip(times.tolist(), columns["ip"].tolist(), strict=True)
        found.setdefault(stream.tid, []).extend(pairs)
    return in_order(found)


def in_order(found: dict[int, list[tuple[int, int]]]) -> dict[int, list[tuple[int, int]]]:
    """By time, of each thread."""
    return {tid: sorted(rows, key=lambda row: row[0]) for tid, rows in found.items()}


def listed_branches(data: Path) -> dict[int, list[tuple[int, int, int]]]:
    """(ns, from, to) of each branch that was taken, as perf lists them: without those that begin
    or end tracing.
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


def branches(trace: Trace) -> dict[int, list[tuple[int, int, int]]]:
    """The same of ours."""
    assert trace.clock is not None
    found: dict[int, list[tuple[int, int, int]]] = {}
    for stream in trace.threads:
        columns = stream.branches(perf_time=True).columns()
        taken = (columns["kind"] != End.CUT) & (columns["target"] != 0)
        times = trace.clock.nanoseconds(columns["perf_time"])[taken].tolist()
        places = (columns[name][taken].tolist() for name in ("source", "target"))
        found.setdefault(stream.tid, []).extend(zip(times, *places, strict=True))
    return found


@pytest.mark.parametrize(("event", "model", "cpus"), RECORDINGS)
@pytest.mark.parametrize("name", ["threads", "signal_nested"])
def test_each_instruction(
    name: str,
    event: str,
    model: TimeModel,
    cpus: int,
    program: ProgramBuilder,
    record: Recorder,
    tmp_path: Path,
) -> None:
    """Also of threads that share a CPU, whose perf has one time."""
    data = tmp_path / "perf.data"
    replay(record([program(name)]).log, data, event=event, time=model, cpus=cpus)
    theirs = listed(data)
    with Trace(data) as trace:
        found = ours(trace)
    assert found.keys() == theirs.keys()
    for tid, rows in found.items():
        assert len(rows) > 100
        assert rows == sorted(theirs[tid], key=lambda row: row[0])


@pytest.mark.parametrize("seed", range(6))
def test_any_clock(seed: int, program: ProgramBuilder, record: Recorder, tmp_path: Path) -> None:
    """Rates, thresholds and periods at random."""
    drawn = Random(seed)
    model = TimeModel(cpi=drawn.randint(1, 4), core_ratio=drawn.choice([5, 7, 10, 13, 21, 33]))
    options = ["cyc", f"cyc_thresh={drawn.randint(0, 9)}"]
    options += [f"mtc_period={drawn.choice([0, 3, 6, 9])}", f"psb_period={drawn.choice([0, 1, 3])}"]
    data, event = tmp_path / "perf.data", f"intel_pt/{','.join(options)}/u"
    replay(record([program("signal_nested")]).log, data, event=event, time=model)
    with Trace(data) as trace:
        assert ours(trace) == in_order(listed(data))
        assert branches(trace) == listed_branches(data)


@pytest.mark.parametrize("seed", range(30))
def test_any_packets(seed: int, tmp_path: Path) -> None:
    """Rates that change, CBRs, PSB+, late TSCs, overflows, times untraced: all at random."""
    data = recording(seed, tmp_path)
    with Trace(data) as trace:
        found = ours(trace)
        assert len(found[1]) > 300
        assert found == in_order(listed(data))
        assert branches(trace) == listed_branches(data)


@pytest.mark.parametrize(
    ("recording", "elf"),
    [
        ("loopy-skylake", "loopy"),
        ("control_flow-skylake", "control_flow"),
        ("loopy-broadwell-snapshot", "loopy"),
    ],
)
def test_real_files(recording: str, elf: str) -> None:
    data, code = TRACES / f"{recording}.perf.data", TRACES / f"{elf}.elf"
    if not data.exists():
        pytest.skip(f"{data} is not there")
    with Trace(data) as trace:
        paths = {each.path for some in trace.mappings().values() for each in some}
    symfs = {path: code for path in paths if path.endswith(f"/{elf}")}
    with Trace(data, path_map={path: str(code) for path in symfs}) as trace:
        found = ours(trace)
    assert found == listed(data, symfs)


def test_what_is_known_is_no_later(
    program: ProgramBuilder, record: Recorder, tmp_path: Path
) -> None:
    """Where no user code began since the last timing packet perf's time is between our bounds."""
    data = tmp_path / "perf.data"
    replay(record([program("recursion")]).log, data, event="intel_pt/mtc_period=0/u")
    with Trace(data) as trace:
        rows = trace.instructions(timing=True, perf_time=True).columns()
    assert (rows["earliest"] <= rows["perf_time"]).all()
    assert (rows["perf_time"] <= rows["latest"]).mean() > 0.9
    assert (rows["time"] == rows["perf_time"]).mean() > 0.8


def test_in_a_listing(
    program: ProgramBuilder,
    record: Recorder,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    data = tmp_path / "perf.data"
    replay(record([program("recursion")]).log, data)
    (theirs,) = listed(data).values()
    last = theirs[-1][1]
    assert main(["instructions", "--fields", "perf_time,ip", str(data)]) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert [(int(time), int(ip, 16)) for time, ip in rows] == theirs
    where = f"{last:#x}-{last + 1:#x}"
    assert main(["instructions", "--fields", "perf_time", "--range", where, str(data)]) == 0
    chosen = [int(line) for line in capsys.readouterr().out.split()]
    assert chosen == [time for time, ip in theirs if ip == last]
