"""Recordings that end early, have gaps or several threads, in the gdb that is installed."""

from __future__ import annotations

import re
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

import rtit
from rtit.capture.ptrace.session import replay
from rtit.capture.store.size_limits import SizeLimits
from rtit.gdb.target import Target
from support.gdb import ProgramBuilder, caller_names, executed_instructions, record_program, run_gdb
from support.recordings import RTIT, Recorder, thread_ends

pytestmark = pytest.mark.usefixtures("gdb")


def test_a_recording_that_ends_anywhere(program: ProgramBuilder, tmp_path: Path) -> None:
    """It stands at what a longer recording executed next, also behind calls, returns and jumps."""
    exe, most = program("recursion"), 40

    def until(count: int) -> tuple[list[int], int | None]:
        """The IPs that were executed, and where it stands."""
        data = record_program(tmp_path, exe, backend="ptrace", start_at="main", stop_at=f"+{count}")
        with rtit.Trace(data) as trace:
            target = Target(trace, last=1000, tell=lambda _: None)
            [stream] = trace.streams
            ips = [ip for batch in stream.instructions() for ip in batch.ip.tolist()]
            return ips, target.pc(target.tid)

    whole, _ = until(most)
    elsewhere = 0
    for count in range(10, 30):
        own, pc = until(count)
        assert len(own) == count
        assert pc is not None
        assert pc - own[0] == whole[count] - whole[0]
        elsewhere += not 0 < whole[count] - whole[count - 1] < 16
    assert elsewhere >= 3


def test_a_recording_that_stops_at_a_size(program: ProgramBuilder, tmp_path: Path) -> None:
    """It stands at what a longer recording executed next; the crash came later."""
    exe = program("crash_late")

    def executed(size: int | None = None) -> tuple[list[int], int | None, int]:
        event = "intel_pt/cyc,noretcomp,psb_period=0/u"
        data = record_program(tmp_path, exe, event=event, size_limits=SizeLimits(max_size=size))
        with rtit.Trace(data) as trace:
            target = Target(trace, last=1000, tell=lambda _: None)
            ips = [ip for batch in trace.streams[0].instructions() for ip in batch.ip.tolist()]
            return ips, target.pc(target.tid), target.signal(target.tid)

    whole, _, signalled = executed()
    assert signalled == signal.SIGSEGV
    turned = 0
    for size in range(1 << 14, 20 << 10, 400):  # where it is cut is also a matter of paths
        if turned and size > 17 << 10:
            break
        own, pc, signalled = executed(size)
        count = len(own)
        assert 100 < count < len(whole)
        assert signalled == signal.SIGTRAP
        assert pc is not None
        assert pc - own[0] == whole[count] - whole[0]
        turned += not 0 < whole[count] - whole[count - 1] < 16
    assert turned


@pytest.mark.parametrize("backend", ["auto", "ptrace"])
@pytest.mark.parametrize("stop", ["+500", "some"])
def test_a_crash_behind_the_end_of_the_trace(
    program: ProgramBuilder, tmp_path: Path, stop: str, backend: str
) -> None:
    """It stands where tracing ended: what led from there to the crash is not known."""
    data = record_program(tmp_path, program("crash_late"), stop_at=stop, backend=backend)
    said = run_gdb(data, "p $_siginfo", "info record", "bt", "info line")
    assert "came later, and what led there was not traced" in said.err
    assert ", to SIGSEGV" not in said.err
    with rtit.Trace(data) as trace:
        [ended] = trace.endings
        assert ended.ending.fault is not None
        target = Target(trace, last=1000, tell=lambda _: None)
        assert target.pc(target.tid) != ended.ending.fault.ip
        assert target.signal(target.tid) == 5
        instructions = trace.streams[0].counts().instructions
    assert said.recorded == (instructions, 0)
    assert "*nowhere = value;" not in said.out
    assert said.status == 0


def test_a_gap_in_another_thread(program: ProgramBuilder, tmp_path: Path) -> None:
    """The exit code tells of all threads that were looked at."""
    data = record_program(tmp_path, program("crash_thread"), event="intel_pt/psb_period=0/u")
    assert run_gdb(data, "thread apply all -s bt").status == 0
    with rtit.Trace(data) as trace:
        [ended] = trace.endings
        [other] = [each for each in trace.streams if each.tid != ended.tid]
        piece = other.source.pieces[0]  # type: ignore[attr-defined]
    broken = bytearray(data.read_bytes())
    place = piece.file_offset + piece.size // 2
    broken[place : place + 8] = bytes.fromhex("02ff02ff02ff02ff")  # no packets
    data.write_bytes(broken)
    assert run_gdb(data, "thread apply all -s bt").status == 3


def test_several_threads(program: ProgramBuilder, tmp_path: Path) -> None:
    """The second one crashes, while the first waits for it."""
    data = record_program(tmp_path, program("crash_thread"), truth=tmp_path / "truth")
    said = run_gdb(data, "bt", "info record", "info threads", "thread apply all -s bt")
    assert said.frames[0] == "fail"
    with rtit.Trace(data) as trace:
        [ended] = trace.endings
        assert len(trace.streams) == 2
    counts = thread_ends(tmp_path / "truth")
    assert said.recorded == (counts[ended.tid][1], 0)
    listed = re.findall(r"^[* ] +\d+ +Thread (\d+) ", said.out, re.MULTILINE)
    assert set(listed) == set(map(str, counts))
    assert "main" in said.frames
    [other] = counts.keys() - {ended.tid}
    said = run_gdb(data, "info record", "bt", options=("--tid", str(other)))
    assert said.recorded == (counts[other][1], 0)
    assert "main" in said.frames
    assert run_gdb(data, options=("--tid", "1")).status == 2


@pytest.mark.parametrize("cpus", [1, 2])
def test_threads_that_share_cpus(
    program: ProgramBuilder, record: Recorder, tmp_path: Path, cpus: int
) -> None:
    """No packets are a thread's own: gdb gets what was decoded."""
    live = record([program("threads")])
    data = tmp_path / "data"
    replay(live.log, data, cpus=cpus)
    for tid, (_, instructions, _) in thread_ends(live.truth).items():
        said = run_gdb(data, "info record", options=("--tid", str(tid)))
        assert said.recorded == (instructions, 0)
        assert f"all {instructions:,} instructions, as blocks" in said.err


def test_a_recorder_that_was_killed(program: ProgramBuilder, tmp_path: Path) -> None:
    data = tmp_path / "data"
    command = [*RTIT, "record", "--backend", "ptrace", "-q", "-o", str(data)]
    package = str(Path(rtit.__file__).parent.parent)
    with subprocess.Popen(
        [*command, "--", program("endless")],
        stdout=subprocess.DEVNULL,
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": package},
    ) as recorder:
        while not (data.exists() and data.stat().st_size > 12000):
            assert recorder.poll() is None
        recorder.send_signal(signal.SIGKILL)
    with rtit.Trace(data) as trace:
        assert trace.incomplete
        instructions = trace.streams[0].counts().instructions
    said = run_gdb(data, "info record", "bt")
    assert said.status == 3
    assert "is incomplete" in said.err
    count, gaps = said.recorded
    # Where the packets end libipt may go on to the branch that needs the next.
    assert gaps == 0
    assert abs(instructions - count) < 10
    assert set(said.frames) <= {"step", "main", "_start", "??"}


def test_a_program_that_was_built_again(program: ProgramBuilder, tmp_path: Path) -> None:
    exe = tmp_path / "exe"
    shutil.copy(program("crash_late"), exe)
    data = record_program(tmp_path, exe)
    exe.write_bytes(exe.read_bytes()[:5000])
    said = run_gdb(data, "bt")
    assert said.status == 3
    assert str(exe) in said.err


def test_behind_an_exec(program: ProgramBuilder, tmp_path: Path) -> None:
    """What the program before it did has other code at the same addresses."""
    exe = program("crash_late")
    truth = tmp_path / "truth"
    record_program(tmp_path, exe, truth=truth)
    (tmp_path / "again").mkdir()
    data = record_program(tmp_path / "again", exe, "and", "again")
    said = run_gdb(data, "info record", "bt")
    assert said.recorded == (executed_instructions(truth), 0)
    assert said.frames == ["main"]


@pytest.mark.parametrize("form", ["pt", "bts"])
def test_a_gap(program: ProgramBuilder, tmp_path: Path, form: str) -> None:
    exe, truth = program("crash_late"), tmp_path / "truth"
    data = record_program(tmp_path, exe, event="intel_pt/psb_period=0/u", truth=truth)
    with rtit.Trace(data) as trace:
        pieces = trace.streams[0].source.pieces  # type: ignore[attr-defined]
        points = [point.offset for batch in trace.streams[0].sync_points() for point in batch]
        wrong = points[2] - 100
        [piece] = [each for each in pieces if 0 <= wrong - each.aux_offset < each.size - 8]
        place = piece.file_offset + wrong - piece.aux_offset
    broken = bytearray(data.read_bytes())
    broken[place : place + 8] = bytes.fromhex("02ff02ff02ff02ff")  # no packets
    data.write_bytes(broken)
    said = run_gdb(data, "info record", "bt", options=("--format", form))
    count, gaps = said.recorded
    assert gaps >= 1
    assert 0 < count < executed_instructions(truth)
    assert said.frames == ["main"]
    assert said.status == 3
    assert "something is missing in 1 place\n" in said.err
    # main was called before it: nothing is known of that any more.
    assert caller_names(data) == []


@pytest.mark.parametrize("form", ["pt", "bts"])
def test_the_snapshot_before_a_crash(program: ProgramBuilder, tmp_path: Path, form: str) -> None:
    extent = SizeLimits(snapshot=4096)
    data = record_program(
        tmp_path, program("crash_late"), event="intel_pt/psb_period=0/u", size_limits=extent
    )
    with rtit.Trace(data) as trace:
        assert trace.is_snapshot
        instructions = trace.streams[0].counts().instructions
    said = run_gdb(data, "info record", "bt", "reverse-stepi", options=("--format", form))
    assert said.recorded[0] == instructions
    assert said.frames == ["main"]


@pytest.mark.parametrize("form", ["pt", "bts"])
def test_the_end_alone(program: ProgramBuilder, tmp_path: Path, form: str) -> None:
    data = record_program(
        tmp_path, program("crash_late"), event="intel_pt/psb_period=0/u", truth=tmp_path / "truth"
    )
    whole = executed_instructions(tmp_path / "truth")
    said = run_gdb(data, "info record", "bt", options=("--format", form, "--last", "2000"))
    count, gaps = said.recorded
    assert gaps == 0
    assert 2000 <= count < whole / 2
    assert f"the last {count:,} of {whole:,} instructions" in said.err
    assert said.frames == ["main"]
