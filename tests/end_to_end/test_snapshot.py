"""Snapshots hold the last packets of each thread: the end of its path, to the instruction.

The program may end in any way; snapshots on request hold earlier parts of the path.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from differential.oracles import perf
from rtit.cli.main import main
from rtit.packets import BadBytes
from rtit.trace import Trace
from support.recordings import RTIT, require_backend

ProgramBuilder = Callable[[str], Path]

FREQUENT_PSBS = "intel_pt/psb_period=0,noretcomp/u"
"""A PSB every 2 KB, so that a small ring has one."""


@pytest.fixture(params=["qemu", "ptrace"])
def backend(request: pytest.FixtureRequest) -> str:
    require_backend(request.param)
    return str(request.param)


def record_command(backend: str, *options: str, program: object) -> list[str]:
    return [*RTIT, "record", "--backend", backend, "-q", "-e", FREQUENT_PSBS, "--truth", "truth",
            *options, "--", *str(program).split()]  # fmt: skip


def verify_snapshot(folder: Path, capsys: pytest.CaptureFixture[str]) -> list[str]:
    code = main(["verify", str(folder / "perf.data"), "--truth", str(folder / "truth")])
    printed = capsys.readouterr().out
    assert code == 0, printed
    assert int(printed.splitlines()[-1].split()[1].replace(",", "")) > 100
    return [line for line in printed.splitlines() if line.startswith("thread")]


def executed_ips(data: Path) -> dict[int, list[int]]:
    """Return the addresses by thread, over all snapshots."""
    ips: dict[int, list[int]] = {}
    with Trace(data) as trace:
        for stream in trace.streams:
            into = ips.setdefault(stream.tid, [])
            into += [int(ip) for part in stream.instructions() for ip in part.ip]
    return ips


def assert_perf_agrees(data: Path) -> None:
    try:
        theirs, errors = perf.instructions(data)
    except perf.PerfMissingError:
        return  # the differential tests report a missing perf
    assert errors == []
    assert theirs == executed_ips(data)


def test_snapshot_at_a_crash_holds_the_last_instructions(
    backend: str, program: ProgramBuilder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--snapshot=4K"]
    ended = subprocess.run(
        record_command(backend, *options, program=program("crash_late")),
        cwd=tmp_path, check=False, timeout=300, capture_output=True, text=True,
    )  # fmt: skip
    assert ended.returncode == 128 + signal.SIGSEGV, ended.stderr
    [line] = verify_snapshot(tmp_path, capsys)
    assert line.endswith("end of what was executed")
    data = tmp_path / "perf.data"
    [ips] = executed_ips(data).values()
    with Trace(data) as trace:
        [stream] = trace.streams
        [pieces] = trace.data.auxtrace_buffers().values()
        # The ring dropped old packets; it holds as many whole PSB periods as fit.
        assert pieces[0].aux_offset > 4096
        assert 2048 - 256 <= stream.size <= 4096
        assert {span.kind for span in stream.ledger()} == {"exact"}
        when = pieces[-1].reference
        name, _ = trace.symbols.lookup_many(
            stream.tid, np.array([when], np.uint64), np.array([ips[-1]], np.uint64)
        )
        assert trace.symbols.table[int(name[0])][0] == "main"
    assert_perf_agrees(data)


@pytest.fixture
def endless_recorder(
    backend: str, program: ProgramBuilder, tmp_path: Path
) -> Iterator[subprocess.Popen[bytes]]:
    """A recorder of a program that never ends, with a filled ring."""
    options = ["--snapshot=4K"]
    words = record_command(backend, *options, program=f"{program('crash_late')} on")
    with subprocess.Popen(words, cwd=tmp_path, stdout=subprocess.PIPE) as recorder:
        assert recorder.stdout is not None
        assert recorder.stdout.read(8) == b"running\n"
        yield recorder
        recorder.kill()


def recorded_pid(recorder: subprocess.Popen[bytes]) -> int:
    tasks = Path(f"/proc/{recorder.pid}/task").iterdir()
    [child] = [int(one) for task in tasks for one in (task / "children").read_text().split()]
    return child


def request_snapshot(recorder: subprocess.Popen[bytes], data: Path) -> None:
    """Request a snapshot, and return when it is written."""
    before = data.stat().st_size
    deadline = time.monotonic() + 300
    while data.stat().st_size < before + 2048 - 256:
        recorder.send_signal(signal.SIGUSR2)
        assert time.monotonic() < deadline, "nothing is written"
        time.sleep(0.3)


def test_requested_snapshots_and_kill_of_program_are_verified(
    endless_recorder: subprocess.Popen[bytes], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = tmp_path / "perf.data"
    request_snapshot(endless_recorder, data)
    request_snapshot(endless_recorder, data)
    os.kill(recorded_pid(endless_recorder), signal.SIGKILL)
    assert endless_recorder.wait(timeout=300) == 128 + signal.SIGKILL
    lines = verify_snapshot(tmp_path, capsys)
    # The stream consists of the snapshots only.
    with Trace(data) as trace:
        pieces = [piece for own in trace.data.auxtrace_buffers().values() for piece in own]
        assert len(pieces) >= 3
        assert all(piece.size <= 4096 for piece in pieces)
        streams = len(trace.streams)
    assert len(lines) == streams
    assert_perf_agrees(data)


def test_terminated_recorder_writes_a_last_snapshot(
    endless_recorder: subprocess.Popen[bytes], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    request_snapshot(endless_recorder, tmp_path / "perf.data")
    endless_recorder.send_signal(signal.SIGTERM)
    assert endless_recorder.wait(timeout=300) == 128 + signal.SIGTERM
    lines = verify_snapshot(tmp_path, capsys)
    assert lines[-1].endswith("end of what was executed")


def test_verify_fails_on_one_changed_branch_in_a_snapshot(
    backend: str, program: ProgramBuilder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = record_command(backend, "--snapshot=4K", program=program("crash_late"))
    subprocess.run(words, cwd=tmp_path, check=False, timeout=300, capture_output=True)
    assert main(["verify", str(tmp_path / "perf.data"), "--truth", str(tmp_path / "truth")]) == 0
    data = tmp_path / "perf.data"
    with Trace(data) as trace:
        [stream] = trace.streams
        packets = [each for each in stream.scan() if not isinstance(each, BadBytes)]
        tnt = [each.offset for each in packets if each.name == "TNT" and each.size == 1]
        [pieces] = trace.data.auxtrace_buffers().values()
        file_offset = pieces[0].file_offset + tnt[-1]
    raw = bytearray(data.read_bytes())
    raw[file_offset] ^= 2
    data.write_bytes(raw)
    capsys.readouterr()
    main(["verify", str(tmp_path / "perf.data"), "--truth", str(tmp_path / "truth")])
    assert "DIFFERENT" in capsys.readouterr().out


def test_many_short_threads_take_bounded_memory(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The recorder drops rings of ended processes, and the recording states their number."""
    require_backend("qemu")
    script = "for i in 1 2 3 4 5 6; do /bin/true; done"
    words = record_command("qemu", "--snapshot=4K", program="/bin/sh -c")
    subprocess.run([*words, script], cwd=tmp_path, check=True, timeout=300, capture_output=True)
    lines = verify_snapshot(tmp_path, capsys)
    with Trace(tmp_path / "perf.data") as trace:
        dropped = int(trace.data.facts["dropped"].split()[0])
    assert dropped > 0
    assert len(lines) + dropped == 7


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--snapshot=2K", "-e", "intel_pt//u"], "may not contain a PSB"),
        (["--snapshot=4X"], "--snapshot must be a number with B, K, M or G"),
        (["--max-size=0"], "--max-size must be more than 0"),
        (["--max-size=1K"], "a recording without packets takes"),
        (["--snapshot", "--max-size=1M"], "cannot be combined"),
        (["--cpi=0"], "--cpi must be a whole number"),
        (["--core-clock=fast"], "expected a frequency as a number"),
        (["--core-clock=1.25GHz"], "a multiple of 100 MHz"),
    ],
)
def test_wrong_size_options_are_a_usage_error(
    options: list[str], said: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(["record", *options, "--", "/bin/true"]) == 2
    error = capfd.readouterr().err
    assert said in error
    assert error.count("\n") == 2  # with the usage
