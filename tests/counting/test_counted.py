"""Counts without a trace equal those of a decoded recording of the same run."""

from __future__ import annotations

import shutil
import subprocess
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import rtit
from programs.build import PROGRAMS
from rtit.capture.request import RecordRequest
from rtit.counting.counted_run import CountedRun, CountingRun
from rtit.errors import UsageError
from rtit.profile.stat import stat as decoded
from support.recordings import require_backend

ProgramBuilder = Callable[[str], Path]

# the same each run, and with all that interrupts a block: signals, faults, iterations, new programs
NAMES = (
    "altstack_longjmp",
    "branch_next",
    "crash_late",
    "crash_ud2",
    "endings",
    "exec_chain",
    "fork",
    "int3_own",
    "pointers",
    "recursion",
    "rep",
    "rep_fault",
    "returns",
    "segv_caught",
    "self_modify",
    "signal_nested",
    "vfork_exec",
    "vsyscall",
)


@pytest.fixture(autouse=True)
def _qemu() -> None:
    require_backend("qemu")


def tables(found: dict[str, Any]) -> dict[str, Any]:
    """Without the numbers of threads, which are others each time, and without processes, which a
    recording does not have.
    """
    found = {**found, "threads": sorted(found["threads"].values())}
    found.pop("processes", None)
    return found


@pytest.mark.parametrize("name", NAMES)
def test_counts_equal_those_of_a_decoded_recording(
    name: str, program: ProgramBuilder, tmp_path: Path
) -> None:
    argv = [str(program(name)), *PROGRAMS[name].arguments]
    counted = rtit.stat(argv, backend="qemu")
    recording = rtit.record(argv, backend="qemu", output=tmp_path / "data")
    with rtit.Trace(recording.path) as trace:
        wanted = decoded(trace, trace.streams)
    assert tables(counted.stat.as_json()) == tables(wanted.as_json())
    assert counted.stat.counts["instructions"] == recording.instructions > 0
    assert (counted.exit_code, counted.warnings) == (recording.exit_code, ())
    assert counted.stat.threads.total() == recording.instructions


def test_each_thread_has_its_own_count(program: ProgramBuilder) -> None:
    counted = rtit.stat([str(program("threads"))], backend="qemu")
    found = counted.stat
    assert len(found.threads) == found.counts["threads"] > 1
    assert found.counts["processes"] == 1
    assert found.threads.total() == found.counts["instructions"] == found.functions.total()
    by_name = {name: count for (name, _), count in found.functions.items()}
    # the work of each thread, and not how often one waits for another
    again = rtit.stat([str(program("threads"))], backend="qemu").stat
    [work] = {count for (name, _), count in again.functions.items() if name == "work"}
    assert by_name["work"] == work > 0


def costs(text: str, symbols: str) -> Counter[str]:
    """callgrind's own cost of each function, by the definition of its format and what nm lists."""
    starts = {int(row[0], 16): row[2] for row in map(str.split, symbols.splitlines())}
    found: Counter[str] = Counter()
    called = False
    for line in text.splitlines():
        if line.startswith("calls="):
            called = True
        elif line.startswith("0x"):
            at, _, cost = line.split()
            if not called:
                name = starts[max(start for start in starts if start <= int(at, 16))]
                found[name] += int(cost)
            called = False
    return found


@pytest.mark.parametrize("name", ["pointers", "recursion", "branch_next", "returns"])
def test_function_counts_equal_those_of_callgrind(
    name: str, program: ProgramBuilder, tmp_path: Path
) -> None:
    valgrind, nm = shutil.which("valgrind"), shutil.which("nm")
    if valgrind is None or nm is None:
        pytest.skip("valgrind or nm is not installed")
    theirs = tmp_path / "theirs"
    options = ["--dump-instr=yes", "--compress-pos=no", f"--callgrind-out-file={theirs}"]
    command = [valgrind, "--tool=callgrind", *options, str(program(name))]
    subprocess.run(command, capture_output=True, check=False, timeout=300)
    symbols = subprocess.run([nm, program(name)], capture_output=True, text=True, check=True)
    wanted = costs(theirs.read_text(), symbols.stdout)
    counted = rtit.stat([str(program(name))], backend="qemu").stat
    found = Counter({each: count for (each, _), count in counted.functions.items()})
    # callgrind counts a block at its end, and the last has none: there the program is ended
    [(_, last)] = (found - wanted).items()
    assert 0 < last < 20
    assert not wanted - found
    assert len(wanted) > 2


@pytest.mark.parametrize("name", ["exec_chain", "fork", "rep", "segv_caught", "vfork_exec"])
def test_totals_without_addresses_equal_full_counts(name: str, program: ProgramBuilder) -> None:
    request = RecordRequest([str(program(name))], backend="qemu")
    with CountingRun(request, where=False) as counting:
        while counting.session.step(0.2):
            pass
        found = counting.finish().stat
    wanted = rtit.stat(request.argv, backend="qemu").stat
    assert found.counts == wanted.counts
    assert sorted(found.threads.values()) == sorted(wanted.threads.values())


def killed(script: str) -> CountedRun:
    return rtit.stat(["/bin/sh", "-c", script], backend="qemu")


def test_killed_program_keeps_its_counts() -> None:
    loop = "i=0; while [ $i -lt 3000 ]; do i=$((i+1)); done; "
    ends, dies = killed(loop + "kill -0 $$; :"), killed(loop + "kill -9 $$; :")
    assert (ends.exit_code, dies.exit_code) == (0, 128 + 9)
    assert ends.warnings == ()
    assert ["killed" in text for text in dies.warnings] == [True]
    least, most = ends.stat.counts["instructions"], dies.stat.counts["instructions"]
    assert abs(least - most) < 10_000 < least
    assert dies.stat.threads.total() == most


def test_counts_include_child_processes(tmp_path: Path) -> None:
    one = killed("/bin/true; :").stat.counts
    three = killed("/bin/true; /bin/true; /bin/true; :").stat.counts
    assert (one["processes"], three["processes"]) == (2, 4)
    child = rtit.stat(["/bin/true"], backend="qemu").stat.counts["instructions"]
    assert three["instructions"] - one["instructions"] > 2 * child


def test_child_without_counts_file_is_not_added_to_its_parent() -> None:
    loop = "i=0; while [ $i -lt 3000 ]; do i=$((i+1)); done; "
    alone, forks = killed(loop + ":"), killed(f"ulimit -f 1; {loop} ({loop}:); :")
    assert ["are missing: File too large" in text for text in forks.warnings] == [True]
    assert (alone.whole, forks.whole) == (True, False)
    assert not killed("ulimit -f 64; exec /bin/true").whole
    own = alone.stat.counts["instructions"]
    assert own / 2 < forks.stat.counts["instructions"] < own * 1.5


def test_single_stepping_counts_as_qemu_does(program: ProgramBuilder) -> None:
    stepped, translated = (
        rtit.stat([str(program("recursion"))], backend=backend) for backend in ("ptrace", "qemu")
    )
    assert (stepped.backend, translated.backend) == ("ptrace", "qemu")
    assert tables(stepped.stat.as_json()) == tables(translated.stat.as_json())


@pytest.mark.parametrize("backend", ["qemu", "ptrace"])
def test_addresses_beyond_max_counters_are_reported(backend: str, program: ProgramBuilder) -> None:
    argv = [str(program("recursion"))]
    whole = rtit.stat(argv, backend=backend).stat
    part = rtit.stat(argv, backend=backend, max_counters=5).stat
    assert part.counts["instructions"] == whole.counts["instructions"] == whole.functions.total()
    assert 0 < part.functions.total() < whole.functions.total()
    assert any(
        "runs of instructions are beyond --max-edges" in line
        for line in part.describe_uncounted_code
    )
    with pytest.raises(UsageError, match="max_counters is -1"):
        rtit.stat(argv, max_counters=-1)
