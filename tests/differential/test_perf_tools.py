"""Every mode that we write or read goes through stock `perf script`, `report` and `inject`."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from differential.modes import COMPRESSED, MODES
from rtit.trace import End, Trace
from rtit.trace.events import Interrupt

OfMode = Callable[[str], Path]
NOT_TAKEN = End.CUT


pytestmark = pytest.mark.skipif(
    shutil.which("perf") is None, reason="perf (package linux-perf) is not installed"
)


@pytest.fixture(params=MODES)
def data(request: pytest.FixtureRequest, of_mode: OfMode) -> Path:
    return of_mode(request.param)


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


# instructions; calls and returns; branches, errors, power, PTWRITE and event trace
@pytest.mark.parametrize("itrace", ["i0ns", "cr", "bepwI"])
def test_script(itrace: str, data: Path, tmp_path: Path) -> None:
    listed = perf(tmp_path, "script", "-f", "-i", data, f"--itrace={itrace}", "-F", "event,tid,ip")
    assert "error type" not in listed
    if itrace == "i0ns":
        with Trace(data) as trace:
            counted = sum(stream.counts().instructions for stream in trace.threads)
        assert listed.count("instructions") == counted


def test_the_same_branches(data: Path, tmp_path: Path) -> None:
    """perf lists those that were taken, from where to where, and interrupts among them; ours
    without those that were not taken, and our interrupts, are these.
    """
    theirs: dict[int, Counter[tuple[int, int]]] = {}
    for line in perf(
        tmp_path, "script", "-f", "-i", data, "--itrace=b", "-F", "event,tid,ip,addr"
    ).splitlines():
        tid, event, *rest = line.replace("=>", " => ").split()
        if not event.startswith("branches"):  # a sample that has AUX data
            continue
        source, _, target = rest
        # Where tracing begins and ends one of both is 0.
        if int(source, 16) and int(target, 16):
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
    places = (columns[name][taken].tolist() for name in ("tid", "source", "target"))
    for thread, begin, end in zip(*places, strict=True):
        ours.setdefault(thread, Counter())[begin, end] += 1
    assert theirs.keys() == {whose for whose, each in ours.items() if each}
    more: Counter[tuple[int | None, int | None]] = Counter()
    for whose, each in theirs.items():
        assert not ours[whose] - each
        more += each - ours[whose]
    assert more == interrupts


def test_report(data: Path, tmp_path: Path) -> None:
    """perf's histogram of instructions adds up to all of them."""
    words = ["-i", str(data), "--itrace=i1i", "--stdio", "--sort=sym", "--header"]
    said = perf(tmp_path, "report", "-f", *words)
    assert "intel_pt" in said
    said = said[said.index("of event 'instructions") :]
    shares = [line.split("%")[0] for line in said.splitlines() if "%" in line and "[" in line]
    assert sum(map(float, shares)) == pytest.approx(100, abs=1.0)


NOT_INJECTED = {
    **dict.fromkeys(COMPRESSED, "perf inject 6.1 does not unpack compressed records"),
    "kernel": "perf inject 6.1 does not take text pokes into account",
    "kernel, page tables not isolated": "perf inject 6.1 does not take text pokes into account",
}


@pytest.mark.parametrize("mode", [mode for mode in MODES if mode not in NOT_INJECTED])
def test_inject(mode: str, of_mode: OfMode, tmp_path: Path) -> None:
    """What perf makes of it has no packets, and as many instructions as we find."""
    data = of_mode(mode)
    output = tmp_path / "injected"
    perf(tmp_path, "inject", "-f", "-i", data, "-o", output, "--itrace=i0ns", "--strip")
    listed = perf(tmp_path, "script", "-f", "-i", output, "-F", "event,ip")
    with Trace(data) as trace:
        counted = sum(stream.counts().instructions for stream in trace.threads)
    assert listed.count("instructions") == counted
