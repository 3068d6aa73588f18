"""A recording that stops at a size is valid and holds the beginning of the path.

The program runs on to its end.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from differential.oracles import perf
from rtit._core import TruthFile
from rtit.capture.backends import start_recording
from rtit.capture.request import RecordRequest
from rtit.capture.store import packet_store
from rtit.capture.store.packet_store import FileStore
from rtit.cli.main import main
from rtit.perfdata import Writer
from rtit.perfdata.writer import OutputFile
from rtit.trace import Trace
from support.recordings import RTIT, record_to_end, require_backend

ProgramBuilder = Callable[[str], Path]

SIZE = 16 * 1024
TRAILER_SIZE = 4096
"""Room for the index and the features, which are written when the file is closed."""


@pytest.fixture(params=["qemu", "ptrace"])
def backend(request: pytest.FixtureRequest) -> str:
    require_backend(request.param)
    return str(request.param)


def run_record(
    backend: str, folder: Path, *program: object, options: tuple[str, ...] = ()
) -> subprocess.CompletedProcess[str]:
    command = [*RTIT, "record", "--backend", backend, "--max-size=16K", "--truth", "truth",
               *options, "--", *map(str, program)]  # fmt: skip
    return subprocess.run(
        command, cwd=folder, check=False, timeout=300, capture_output=True, text=True
    )


def test_recording_that_reaches_max_size_holds_the_beginning(
    backend: str, program: ProgramBuilder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # CYCs and uncompressed returns give more than 16 KB in few enough instructions to single-step.
    options = ("-e", "intel_pt/cyc,noretcomp,mtc_period=0,psb_period=0/u")
    ended = run_record(backend, tmp_path, program("crash_late"), options=options)
    assert ended.returncode == 139, ended.stderr
    assert ended.stdout == "running\nvalue 65533\n"
    assert "stopped at a size of 16K" in ended.stderr
    data = tmp_path / "perf.data"
    assert SIZE / 2 < data.stat().st_size < SIZE + TRAILER_SIZE
    assert main(["verify", str(data), "--truth", str(tmp_path / "truth")]) == 0
    printed = capsys.readouterr().out
    decoded = int(printed.splitlines()[-1].split()[1].replace(",", ""))
    [(_, _, executed, *_)] = TruthFile(str(tmp_path / "truth")).threads()
    assert 5_000 < decoded < executed
    with Trace(data) as trace:
        assert trace.incomplete is None
        [stream] = trace.streams
        assert {span.kind for span in stream.ledger()} == {"exact"}
        ips = {stream.tid: [int(ip) for part in stream.instructions() for ip in part.ip]}
    assert main(["report", str(data)]) == 0
    assert "stopped: at a size of 16K" in capsys.readouterr().out
    try:
        theirs, errors = perf.instructions(data)
    except perf.PerfMissingError:
        return
    assert errors == []
    assert theirs == ips


def test_processes_started_after_max_size_run_unrecorded(
    program: ProgramBuilder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    require_backend("qemu")
    script = f"{program('crash_late')}; echo $(echo one two | /usr/bin/tr o 0); exit 3"
    ended = run_record("qemu", tmp_path, "/bin/sh", "-c", script)
    assert ended.returncode == 3, ended.stderr
    assert ended.stdout == "running\nvalue 65533\n0ne tw0\n"
    data = tmp_path / "perf.data"
    assert data.stat().st_size < SIZE + TRAILER_SIZE
    assert main(["verify", str(data), "--truth", str(tmp_path / "truth")]) == 0


def test_exec_after_max_size_runs_on(
    backend: str, program: ProgramBuilder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ("-e", "intel_pt/cyc,noretcomp,mtc_period=0,psb_period=0/u")
    ended = run_record(backend, tmp_path, program("crash_late"), "and", "again", options=options)
    assert ended.returncode == 139, ended.stderr
    assert ended.stdout == 2 * "running\nvalue 65533\n"
    data = tmp_path / "perf.data"
    assert data.stat().st_size < SIZE + TRAILER_SIZE
    assert main(["verify", str(data), "--truth", str(tmp_path / "truth")]) == 0


def test_program_below_max_size_is_recorded_completely(
    backend: str, program: ProgramBuilder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ended = run_record(backend, tmp_path, program("fork"))
    assert ended.returncode == 0
    assert "stopped" not in ended.stderr
    assert main(["verify", str(tmp_path / "perf.data"), "--truth", str(tmp_path / "truth")]) == 0
    assert "more were executed" not in capsys.readouterr().out


def test_nearly_full_disk_stops_the_recording_but_not_the_program(
    backend: str, program: ProgramBuilder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """1 GB of 100 GB is less than the reserve of 1 GiB."""

    def disk(file: OutputFile) -> tuple[int, int]:
        return 50 * 10**9 if file.offset < SIZE else 10**9, 10**11

    monkeypatch.setattr(OutputFile, "disk_space", disk)
    monkeypatch.setattr(packet_store, "_FREE_SPACE_CHECK_BYTES", 4096)
    argv = [str(program("crash_late"))]
    data, truth = tmp_path / "perf.data", tmp_path / "truth"
    event = "intel_pt/cyc,noretcomp,mtc_period=0,psb_period=0/u"
    request = RecordRequest(argv, backend=backend, event=event, output=data, truth=truth)
    recording = record_to_end(start_recording(request))
    assert (recording.exit_code, recording.stopped) == (139, "before the disk was full")
    assert recording.partial
    assert main(["verify", str(data), "--truth", str(truth)]) == 0
    with Trace(data) as trace:
        assert trace.facts["stopped"] == "before the disk was full"
        assert [each.exit_status.signal for each in trace.endings] == [11]


def test_recording_stops_only_below_the_disk_reserve(tmp_path: Path) -> None:
    """The reserve of a small disk is a twentieth of it."""
    with Writer(tmp_path / "perf.data", config=1, cpuid="") as writer:
        writer.disk_space = lambda: (6 * 10**6, 10**8)  # type: ignore[method-assign]
        store = FileStore(writer)
        for _ in range(8):
            store.add_packets(7, 7, bytes(1 << 16), 10**9)
        assert not store.is_full
        writer.disk_space = lambda: (4 * 10**6, 10**8)  # type: ignore[method-assign]
        for _ in range(8):
            store.add_packets(7, 7, bytes(1 << 16), 10**9)
        assert store.is_full
