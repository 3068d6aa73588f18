"""Programs of many threads, of waiting threads, and with timers run as natively.

Their recordings are exact and legal.
"""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import pytest

from programs.build import COMMON, SOURCES, CannotBuildError, compiled
from rtit.packets.scan import scan_chunks
from rtit.trace import Trace
from support.linting import lint_findings
from support.recordings import RTIT, require_backend

FLAGS = [*COMMON, "-static", "-pthread"]


@dataclass(frozen=True)
class Case:
    """A program to record; single steps take tens of microseconds each."""

    name: str
    backend: str
    arguments: tuple[str, ...] = ()

    @property
    def argv(self) -> list[str]:
        require_backend(self.backend)
        source = SOURCES / f"{self.name}.c"
        try:
            path = compiled(self.name, [str(source)], language="c", flags=FLAGS)
        except CannotBuildError as error:
            pytest.skip(str(error))
        return [str(path), *self.arguments]


WAITING_CASES = [
    Case("threads_waiting", "qemu", ("50", "100000")),
    Case("threads_waiting", "ptrace", ("5", "10000")),
]
CASES = [
    *WAITING_CASES,
    Case("timers", "qemu"),
    Case("timers", "ptrace"),
    Case("threads_many", "qemu", ("1000",)),
    Case("threads_many", "ptrace", ("30",)),
]
SLOW_CASES = [
    Case("threads_many", "qemu", ("3000",)),
    Case("threads_many", "ptrace", ("100",)),
]


def record_case(case: Case, folder: Path) -> tuple[int, bytes]:
    """Record the program, and return its exit code and output."""
    words = ["record", "-q", "--backend", case.backend, "--truth", "truth", "--", *case.argv]
    ended = subprocess.run([*RTIT, *words], cwd=folder, capture_output=True, check=False)
    assert ended.stderr == b""
    return ended.returncode, ended.stdout


@pytest.mark.parametrize(
    "case",
    [*CASES, *(pytest.param(case, marks=pytest.mark.slow) for case in SLOW_CASES)],
    ids=lambda case: "-".join((case.name, case.backend, *case.arguments)),
)
def test_recording_is_exact_and_legal(case: Case, tmp_path: Path) -> None:
    alone = subprocess.run(case.argv, capture_output=True, check=False)
    assert record_case(case, tmp_path) == (alone.returncode, alone.stdout)
    verify = [*RTIT, "verify", "perf.data", "--truth", "truth"]
    verified = subprocess.run(verify, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert verified.returncode == 0, verified.stdout
    assert verified.stdout.endswith(", decoded as executed\n")
    assert lint_findings(tmp_path / "perf.data") == []


@pytest.mark.parametrize("case", WAITING_CASES, ids=lambda case: case.backend)
def test_waiting_thread_has_few_time_packets(case: Case, tmp_path: Path) -> None:
    record_case(case, tmp_path)
    with Trace(tmp_path / "perf.data") as trace:
        _first, *others = sorted(trace.streams, key=lambda stream: stream.tid)
        assert len(others) == int(case.arguments[0])
        for stream in others:
            packets = [getattr(packet, "name", None) for packet in scan_chunks(stream.chunks())]
            # There is an MTC every 320 instructions; the first thread executes six an iteration.
            assert packets.count("MTC") < 6 * int(case.arguments[1]) // 320 // 2
            assert packets.count("TSC") > 1


def test_atomic_instructions_order_the_clocks_of_threads(tmp_path: Path) -> None:
    argv = Case("relay", "qemu").argv
    data = tmp_path / "perf.data"
    event = "intel_pt/cyc=1,mtc_period=3,noretcomp/u"
    command = [*RTIT, "record", "-q", "--backend", "qemu", "-e", event, "-o", str(data), "--"]
    subprocess.run([*command, *argv], check=True)
    with Trace(data) as trace:
        turns = [call for call in trace.calls().rows() if call.function == "take_turn"]
    turns.sort(key=lambda call: call.begin_time)
    assert len(turns) == 20
    for before, after in pairwise(turns):
        assert before.end_tid != after.end_tid
        assert before.end_time <= after.begin_time
