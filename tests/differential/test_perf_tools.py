"""Stock `perf script`, `report` and `inject` read every mode that rtit writes or reads."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from differential.modes import COMPRESSED_MODES, MODES
from rtit.trace import End, Trace
from rtit.trace.events import Interrupt

ModeFixture = Callable[[str], Path]
NOT_TAKEN = End.CUT


pytestmark = pytest.mark.skipif(
    shutil.which("perf") is None, reason="perf (package linux-perf) is not installed"
)


@pytest.fixture(params=MODES)
def data(request: pytest.FixtureRequest, recording_of_mode: ModeFixture) -> Path:
    return recording_of_mode(request.param)


def run_perf(folder: Path, *words: str | Path) -> str:
    """Run perf with a separate home folder; return its output."""
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


# instructions; calls and returns; branches, errors, power, PTWRITE and event trace
@pytest.mark.parametrize("itrace", ["i0ns", "cr", "bepwI"])
def test_perf_script_has_no_errors_and_all_instructions(
    itrace: str, data: Path, tmp_path: Path
) -> None:
    listed = run_perf(
        tmp_path, "script", "-f", "-i", data, f"--itrace={itrace}", "-F", "event,tid,ip"
    )
    assert "error type" not in listed
    if itrace == "i0ns":
        with Trace(data) as trace:
            counted = sum(stream.counts().instructions for stream in trace.threads)
        assert listed.count("instructions") == counted


def test_perf_script_lists_the_same_branches(data: Path, tmp_path: Path) -> None:
    """perf lists taken branches, system calls and interrupts; those of rtit equal these."""
    theirs: dict[int, Counter[tuple[int, int]]] = {}
    for line in run_perf(
        tmp_path, "script", "-f", "-i", data, "--itrace=b", "-F", "event,tid,ip,addr,flags"
    ).splitlines():
        tid, event, *rest = line.replace("=>", " => ").split()
        if not event.startswith("branches"):  # a sample that has AUX data
            continue
        *flags, source, _, target = rest
        # Where tracing begins or ends, one of both is 0.
        if (int(source, 16) and int(target, 16)) or flags == ["tr", "end", "syscall"]:
            found = theirs.setdefault(int(tid), Counter())
            found[int(source, 16), int(target, 16)] += 1
    ours: dict[int, Counter[tuple[int, int]]] = {}
    with Trace(data) as trace:
        columns = trace.branches().columns()
        interrupts = Counter(
            (event.at, event.to)
            for stream in trace.streams
            for event in stream.events()
            if isinstance(event, Interrupt) and event.to is not None
        )
    taken = columns["kind"] != NOT_TAKEN
    table_columns = (columns[name][taken].tolist() for name in ("tid", "source", "target"))
    for thread, begin, end in zip(*table_columns, strict=True):
        ours.setdefault(thread, Counter())[begin, end] += 1
    assert theirs.keys() == {thread for thread, each in ours.items() if each}
    only_in_perf: Counter[tuple[int | None, int | None]] = Counter()
    for thread, each in theirs.items():
        assert not ours[thread] - each
        only_in_perf += each - ours[thread]
    assert only_in_perf == interrupts


def test_perf_report_adds_up_to_100_percent(data: Path, tmp_path: Path) -> None:
    words = ["-i", str(data), "--itrace=i1i", "--stdio", "--sort=sym", "--header"]
    printed = run_perf(tmp_path, "report", "-f", *words)
    assert "intel_pt" in printed
    printed = printed[printed.index("of event 'instructions") :]
    shares = [line.split("%")[0] for line in printed.splitlines() if "%" in line and "[" in line]
    assert sum(map(float, shares)) == pytest.approx(100, abs=1.0)


NOT_INJECTED = {
    **dict.fromkeys(COMPRESSED_MODES, "perf inject 6.1 does not unpack compressed records"),
    "kernel": "perf inject 6.1 does not take text pokes into account",
    "kernel, page tables not isolated": "perf inject 6.1 does not take text pokes into account",
}


@pytest.mark.parametrize("mode", [mode for mode in MODES if mode not in NOT_INJECTED])
def test_perf_inject_gives_all_instructions(
    mode: str, recording_of_mode: ModeFixture, tmp_path: Path
) -> None:
    """perf replaces the packets by samples, one for each instruction."""
    data = recording_of_mode(mode)
    output = tmp_path / "injected"
    run_perf(tmp_path, "inject", "-f", "-i", data, "-o", output, "--itrace=i0ns", "--strip")
    listed = run_perf(tmp_path, "script", "-f", "-i", output, "-F", "event,ip")
    with Trace(data) as trace:
        counted = sum(stream.counts().instructions for stream in trace.threads)
    assert listed.count("instructions") == counted
