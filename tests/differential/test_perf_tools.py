"""Every mode that we write goes through stock `perf script`, `perf report` and `perf inject`."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from live import Recorder
from rtit.capture import Extent
from rtit.capture.ptrace import replay
from rtit.perfdata import Switches
from rtit.trace import End, Trace

ProgramBuilder = Callable[[str], Path]
NOT_TAKEN = End.CUT
MODES: dict[str, dict[str, Any]] = {
    "threads": {},
    "a CPU": {"cpus": 1, "switches": Switches.THREADS},
    "CPUs, all switches": {"cpus": 2, "switches": Switches.WIDE},
    "snapshot": {"event": "intel_pt/psb_period=0/u", "extent": Extent(snapshot=8192)},
    "up to a size": {"event": "intel_pt/psb_period=0/u", "extent": Extent(max_size=20_000)},
    "cycles": {"event": "intel_pt/cyc,mtc_period=0/u"},
    "no RET compression": {"event": "intel_pt/noretcomp/u"},
    "no MTC": {"event": "intel_pt/mtc=0/u"},
    "PTWRITE, power and events": {"event": "intel_pt/ptw,fup_on_ptw,pwr_evt,event/u"},
}


@pytest.fixture(params=MODES)
def data(
    request: pytest.FixtureRequest, program: ProgramBuilder, record: Recorder, tmp_path: Path
) -> Path:
    if shutil.which("perf") is None:
        pytest.skip("perf (package linux-perf) is not installed")
    live = record([program("threads")])
    path = tmp_path / "perf.data"
    replay(live.log, path, **MODES[request.param])
    return path


def perf(folder: Path, *words: str | Path) -> str:
    """What it says; with a home of its own."""
    ended = subprocess.run(
        ["perf", *words],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
        env={**os.environ, "HOME": str(folder), "LC_ALL": "C"},
    )
    assert ended.returncode == 0, ended.stderr
    assert "segfault" not in ended.stderr
    return ended.stdout


# instructions, branches, errors, power, PTWRITE, event trace, calls and returns
@pytest.mark.parametrize("itrace", ["i0ns", "b", "e", "p", "w", "I", "cr", "bepwI"])
def test_script(itrace: str, data: Path, tmp_path: Path) -> None:
    listed = perf(tmp_path, "script", "-f", "-i", data, f"--itrace={itrace}", "-F", "event,tid,ip")
    assert "error type" not in listed
    if itrace == "i0ns":
        with Trace(data) as trace:
            counted = sum(stream.counts().instructions for stream in trace.threads)
        assert listed.count("instructions") == counted


def test_the_same_branches(data: Path, tmp_path: Path) -> None:
    """perf lists those that were taken, from where to where; ours without the others are these."""
    theirs: dict[int, Counter[tuple[int, int]]] = {}
    for line in perf(
        tmp_path, "script", "-f", "-i", data, "--itrace=b", "-F", "tid,ip,addr"
    ).splitlines():
        tid, source, _, target = line.replace("=>", " => ").split()
        # Where tracing begins and ends one of both is 0.
        if int(source, 16) and int(target, 16):
            found = theirs.setdefault(int(tid), Counter())
            found[int(source, 16), int(target, 16)] += 1
    ours: dict[int, Counter[tuple[int, int]]] = {}
    with Trace(data) as trace:
        for stream in trace.threads:
            for branches in stream.branches():
                taken = branches.kind != NOT_TAKEN
                pairs = zip(
                    branches.source[taken].tolist(), branches.target[taken].tolist(), strict=True
                )
                ours.setdefault(stream.tid, Counter()).update(pairs)
    assert theirs
    assert {tid: each for tid, each in ours.items() if each} == theirs


def test_report(data: Path, tmp_path: Path) -> None:
    """perf's histogram of instructions adds up to all of them."""
    words = ["-i", str(data), "--itrace=i1i", "--stdio", "--sort=sym", "--header"]
    said = perf(tmp_path, "report", "-f", *words)
    assert "intel_pt" in said
    shares = [line.split("%")[0] for line in said.splitlines() if "%" in line and "[" in line]
    assert sum(map(float, shares)) == pytest.approx(100, abs=1.0)


def test_inject(data: Path, tmp_path: Path) -> None:
    """What perf makes of it has no packets, and as many instructions as we find."""
    output = tmp_path / "injected"
    perf(tmp_path, "inject", "-f", "-i", data, "-o", output, "--itrace=i0ns", "--strip")
    listed = perf(tmp_path, "script", "-f", "-i", output, "-F", "event,ip")
    with Trace(data) as trace:
        counted = sum(stream.counts().instructions for stream in trace.threads)
    assert listed.count("instructions") == counted
