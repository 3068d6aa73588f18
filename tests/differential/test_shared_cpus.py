"""Stock perf lists addresses, threads and times of threads on shared CPUs as rtit does."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from differential.oracles import perf
from rtit.capture.ptrace.session import replay_events
from rtit.perfdata import SwitchRecords
from rtit.trace import Trace
from support.recordings import Recorder

ProgramBuilder = Callable[[str], Path]
TimedPath = list[tuple[int, int]]


def paths_from_perf(data: Path) -> dict[tuple[int, int], TimedPath]:
    """Return (ns, address) by CPU and thread."""
    fields = ["--itrace=i0ns", "--ns", "-F", "tid,cpu,time,ip"]
    found: dict[tuple[int, int], TimedPath] = {}
    try:
        listed = perf.script(data, fields)
        assert perf.errors(data) == []
    except perf.PerfMissingError as error:
        pytest.skip(str(error))
    for line in listed.splitlines():
        tid, cpu, time, ip = line.split()
        when = int(time.rstrip(":").replace(".", ""))
        found.setdefault((int(cpu.strip("[]")), int(tid)), []).append((when, int(ip, 16)))
    return found


@pytest.mark.parametrize("switches", [SwitchRecords.THREADS, SwitchRecords.CPU_WIDE])
@pytest.mark.parametrize(("name", "cpus"), [("threads", 1), ("threads", 4), ("fork", 2)])
def test_perf_decodes_threads_on_shared_cpus_as_rtit(
    name: str,
    cpus: int,
    switches: SwitchRecords,
    program: ProgramBuilder,
    record: Recorder,
    tmp_path: Path,
) -> None:
    live = record([program(name)])
    data = tmp_path / "perf.data"
    replay_events(live.log, data, cpus=cpus, switches=switches)
    listed = paths_from_perf(data)
    with Trace(data) as trace:
        clock = trace.clock
        assert clock is not None
        ours = {
            (stream.cpu, stream.tid): [
                (clock.to_nanoseconds(int(time)), int(ip))
                for part in stream.instructions()
                for ip, time in zip(part.ip, part.time, strict=True)
            ]
            for stream in trace.threads
        }
    assert ours.keys() == listed.keys()
    for key, path in ours.items():
        assert [ip for _, ip in path] == [ip for _, ip in listed[key]]
        # perf extrapolates its clock between two packets; rtit's time is a lower bound
        late = [
            when - rtit_time for (rtit_time, _), (when, _) in zip(path, listed[key], strict=True)
        ]
        assert min(late) == 0
        assert late[0] == 0
