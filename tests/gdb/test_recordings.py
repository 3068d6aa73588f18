"""Recordings that end early, have gaps or several threads, in the installed gdb."""

from __future__ import annotations

import re
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

import rtit
from rtit.capture.ptrace.session import replay_events
from rtit.capture.request import SizeLimits
from rtit.gdb.target import GdbTarget
from support.gdb import ProgramBuilder, caller_names, executed_instructions, record_program, run_gdb
from support.recordings import RTIT, Recorder, thread_ends

pytestmark = pytest.mark.usefixtures("gdb")


@pytest.mark.parametrize("step", [3, pytest.param(1, marks=pytest.mark.slow)])
def test_pc_after_stop_is_next_executed_instruction(
    step: int, program: ProgramBuilder, tmp_path: Path
) -> None:
    """A longer recording shows the next instruction, also after calls, returns and jumps."""
    exe, most = program("recursion"), 40

    def until(count: int) -> tuple[list[int], int | None]:
        """Return the executed IPs, and the PC at the end."""
        data = record_program(tmp_path, exe, backend="ptrace", start_at="main", stop_at=f"+{count}")
        with rtit.Trace(data) as trace:
            target = GdbTarget(trace, max_instructions=1000, report=lambda _: None)
            [stream] = trace.streams
            ips = [ip for batch in stream.instructions() for ip in batch.ip.tolist()]
            return ips, target.last_ip(target.tid)

    whole, _ = until(most)
    elsewhere = 0
    for count in range(10, 30, step):
        own, pc = until(count)
        assert len(own) == count
        assert pc is not None
        assert pc - own[0] == whole[count] - whole[0]
        elsewhere += not 0 < whole[count] - whole[count - 1] < 16
    assert elsewhere >= 3 // step


def test_pc_after_size_limit_is_next_executed_instruction(
    program: ProgramBuilder, tmp_path: Path
) -> None:
    """A longer recording shows the next instruction; the crash is not reached."""
    exe = program("crash_late")

    def executed(size: int | None = None) -> tuple[list[int], int | None, int]:
        event = "intel_pt/cyc,noretcomp,psb_period=0/u"
        data = record_program(tmp_path, exe, event=event, size_limits=SizeLimits(max_size=size))
        with rtit.Trace(data) as trace:
            target = GdbTarget(trace, max_instructions=1000, report=lambda _: None)
            ips = [ip for batch in trace.streams[0].instructions() for ip in batch.ip.tolist()]
            return ips, target.last_ip(target.tid), target.stop_signal(target.tid)

    whole, _, signalled = executed()
    assert signalled == signal.SIGSEGV
    turned = 0
    for size in range(1 << 14, 20 << 10, 400):  # the cut also depends on the length of paths
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
def test_crash_after_end_of_trace_is_not_the_pc(
    program: ProgramBuilder, tmp_path: Path, stop: str, backend: str
) -> None:
    """The PC is where tracing ended; the path from there to the crash is unknown."""
    data = record_program(tmp_path, program("crash_late"), stop_at=stop, backend=backend)
    session = run_gdb(data, "p $_siginfo", "info record", "bt", "info line")
    assert "followed, and the code before it was not traced" in session.err
    assert ", to SIGSEGV" not in session.err
    with rtit.Trace(data) as trace:
        [ended] = trace.endings
        assert ended.exit_status.fault is not None
        target = GdbTarget(trace, max_instructions=1000, report=lambda _: None)
        assert target.last_ip(target.tid) != ended.exit_status.fault.ip
        assert target.stop_signal(target.tid) == 5
        instructions = trace.streams[0].counts().instructions
    assert session.recorded == (instructions, 0)
    assert "*nowhere = value;" not in session.out
    assert session.status == 0


def test_gap_in_any_viewed_thread_sets_exit_code(program: ProgramBuilder, tmp_path: Path) -> None:
    """The exit code covers all threads that gdb read."""
    data = record_program(tmp_path, program("crash_thread"), event="intel_pt/psb_period=0/u")
    assert run_gdb(data, "thread apply all -s bt").status == 0
    with rtit.Trace(data) as trace:
        [ended] = trace.endings
        [other] = [each for each in trace.streams if each.tid != ended.tid]
        piece = other.source.pieces[0]  # type: ignore[attr-defined]
    broken = bytearray(data.read_bytes())
    file_offset = piece.file_offset + piece.size // 2
    broken[file_offset : file_offset + 8] = bytes.fromhex("02ff02ff02ff02ff")  # no packets
    data.write_bytes(broken)
    assert run_gdb(data, "thread apply all -s bt").status == 3


def test_threads_have_their_own_paths_and_frames(program: ProgramBuilder, tmp_path: Path) -> None:
    """The second thread crashes while the first waits for it."""
    data = record_program(tmp_path, program("crash_thread"), truth=tmp_path / "truth")
    session = run_gdb(data, "bt", "info record", "info threads", "thread apply all -s bt")
    assert session.frames[0] == "fail"
    with rtit.Trace(data) as trace:
        [ended] = trace.endings
        assert len(trace.streams) == 2
    counts = thread_ends(tmp_path / "truth")
    assert session.recorded == (counts[ended.tid][1], 0)
    listed = re.findall(r"^[* ] +\d+ +Thread (\d+) ", session.out, re.MULTILINE)
    assert set(listed) == set(map(str, counts))
    assert "main" in session.frames
    [other] = counts.keys() - {ended.tid}
    session = run_gdb(data, "info record", "bt", options=("--tid", str(other)))
    assert session.recorded == (counts[other][1], 0)
    assert "main" in session.frames
    assert run_gdb(data, options=("--tid", "1")).status == 2


@pytest.mark.parametrize(
    ("cpus", "threads"),
    [(2, 2), *(pytest.param(each, 99, marks=pytest.mark.slow) for each in (1, 2))],
)
def test_threads_that_share_cpus_are_replayed_from_branches(
    program: ProgramBuilder, record: Recorder, tmp_path: Path, cpus: int, threads: int
) -> None:
    """Packets of a CPU belong to no single thread: gdb gets decoded branches."""
    live = record([program("threads")])
    data = tmp_path / "data"
    replay_events(live.log, data, cpus=cpus)
    ends = sorted(thread_ends(live.truth).items())
    for tid, (_, instructions, _) in ends[:threads]:
        session = run_gdb(data, "info record", options=("--tid", str(tid)))
        assert session.recorded == (instructions, 0)
        assert f"all {instructions:,} instructions, as blocks" in session.err


def test_recording_of_killed_recorder_is_replayed(program: ProgramBuilder, tmp_path: Path) -> None:
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
    session = run_gdb(data, "info record", "bt")
    assert session.status == 3
    assert "is incomplete" in session.err
    count, gaps = session.recorded
    # libipt may continue after the last packet up to the branch that needs the next one
    assert gaps == 0
    assert abs(instructions - count) < 10
    assert set(session.frames) <= {"step", "main", "_start", "??"}


def test_rebuilt_program_is_reported(program: ProgramBuilder, tmp_path: Path) -> None:
    exe = tmp_path / "exe"
    shutil.copy(program("crash_late"), exe)
    data = record_program(tmp_path, exe)
    exe.write_bytes(exe.read_bytes()[:5000])
    session = run_gdb(data, "bt")
    assert session.status == 3
    assert str(exe) in session.err


def test_path_starts_after_exec(program: ProgramBuilder, tmp_path: Path) -> None:
    """The program before the exec has other code at the same addresses."""
    exe = program("crash_late")
    truth = tmp_path / "truth"
    record_program(tmp_path, exe, truth=truth)
    (tmp_path / "again").mkdir()
    data = record_program(tmp_path / "again", exe, "and", "again")
    session = run_gdb(data, "info record", "bt")
    assert session.recorded == (executed_instructions(truth), 0)
    assert session.frames == ["main"]


@pytest.mark.parametrize("form", ["pt", "bts"])
def test_damaged_packets_are_a_gap(program: ProgramBuilder, tmp_path: Path, form: str) -> None:
    exe, truth = program("crash_late"), tmp_path / "truth"
    data = record_program(tmp_path, exe, event="intel_pt/psb_period=0/u", truth=truth)
    callers = caller_names(data)
    with rtit.Trace(data) as trace:
        pieces = trace.streams[0].source.pieces  # type: ignore[attr-defined]
        psb_offsets = [psb.offset for batch in trace.streams[0].sync_points() for psb in batch]
        wrong = psb_offsets[2] - 100
        [piece] = [each for each in pieces if 0 <= wrong - each.aux_offset < each.size - 8]
        file_offset = piece.file_offset + wrong - piece.aux_offset
    broken = bytearray(data.read_bytes())
    broken[file_offset : file_offset + 8] = bytes.fromhex("02ff02ff02ff02ff")  # no packets
    data.write_bytes(broken)
    session = run_gdb(data, "info record", "bt", options=("--format", form))
    count, gaps = session.recorded
    assert gaps >= 1
    assert 0 < count < executed_instructions(truth)
    assert session.frames == ["main"]
    assert session.status == 3
    assert "something is missing in 1 place\n" in session.err
    # main was called before the gap; a return to main after it shows that the call goes on
    assert caller_names(data) == callers


@pytest.mark.parametrize("form", ["pt", "bts"])
def test_snapshot_before_a_crash_is_replayed(
    program: ProgramBuilder, tmp_path: Path, form: str
) -> None:
    extent = SizeLimits(snapshot=4096)
    data = record_program(
        tmp_path, program("crash_late"), event="intel_pt/psb_period=0/u", size_limits=extent
    )
    with rtit.Trace(data) as trace:
        assert trace.is_snapshot
        instructions = trace.streams[0].counts().instructions
    session = run_gdb(data, "info record", "bt", "reverse-stepi", options=("--format", form))
    assert session.recorded[0] == instructions
    assert session.frames == ["main"]


@pytest.mark.parametrize("form", ["pt", "bts"])
def test_last_limits_instructions(program: ProgramBuilder, tmp_path: Path, form: str) -> None:
    data = record_program(
        tmp_path, program("crash_late"), event="intel_pt/psb_period=0/u", truth=tmp_path / "truth"
    )
    whole = executed_instructions(tmp_path / "truth")
    session = run_gdb(data, "info record", "bt", options=("--format", form, "--last", "2000"))
    count, gaps = session.recorded
    assert gaps == 0
    assert 2000 <= count < whole / 2
    assert f"the last {count:,} of {whole:,} instructions" in session.err
    assert session.frames == ["main"]
