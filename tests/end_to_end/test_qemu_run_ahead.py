"""With two CPUs, a program of one thread runs ahead of the thread that makes its packets.

The packets stay the same, and none is lost, however the program ends.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from programs.build import ALIKE
from rtit.capture.qemu.installation import QemuInstallation, find_qemu
from rtit.capture.qemu.plugin_protocol import RUN_AHEAD
from rtit.capture.qemu.start import start_qemu
from rtit.capture.request import RecordRequest
from rtit.capture.session import Recording
from rtit.cli.main import main
from rtit.trace import Trace
from support.large_programs import write_text_lines
from support.processes import wait_until
from support.recordings import finish_recording, record_to_end

WITHOUT_RUN_AHEAD = "0000000"
# Blocks in a chunk of the ring: with few blocks the two threads synchronize often. The values have
# equal lengths, since the program sees them in its environment.
SMALL_CHUNKS = ["0000001", "0000007"]
LARGE_CHUNKS = ["0000050", "1000000"]
EVENTS = ["intel_pt//u", "intel_pt/cyc=1/u", "intel_pt/mtc_period=0,psb_period=0/u"]
ProgramBuilder = Callable[[str], Path]


@pytest.fixture(scope="module")
def qemu() -> QemuInstallation:
    found = find_qemu()
    if isinstance(found, str):
        pytest.skip(found)
    return found


class RunAheadRecorder:
    """Records into one folder, with a given chunk size."""

    def __init__(
        self, found: QemuInstallation, folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        self.found = found
        self.folder = folder
        self.data = folder / "perf.data"
        self.truth = folder / "truth"
        self.monkeypatch = monkeypatch

    def __call__(
        self, argv: list[str], ahead: str, event: str = EVENTS[0], *, truth: bool = False
    ) -> Recording:
        self.monkeypatch.setenv(RUN_AHEAD, ahead)
        wanted = self.truth if truth else None
        request = RecordRequest(argv, output=self.data, event=event, truth=wanted)
        return record_to_end(start_qemu(request, installation=self.found))

    def packet_hashes(self) -> list[str]:
        """Return a hash of the packets of each thread."""
        with Trace(self.data) as trace:
            return [hashlib.sha256(stream.read()).hexdigest() for stream in trace.streams]

    def is_verified(self) -> bool:
        return main(["verify", str(self.data), "--truth", str(self.truth)]) == 0


@pytest.fixture
def record(
    qemu: QemuInstallation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> RunAheadRecorder:
    return RunAheadRecorder(qemu, tmp_path, monkeypatch)


def assert_same_packets(
    record: RunAheadRecorder, argv: list[str], event: str, chunk_sizes: list[str]
) -> int:
    """Compare recordings with and without run-ahead; return the number of instructions."""
    at_once, packets = record(argv, WITHOUT_RUN_AHEAD, event), record.packet_hashes()
    for ahead in chunk_sizes:
        found = record(argv, ahead, event)
        assert record.packet_hashes() == packets, ahead
        assert (found.instructions, found.branches) == (at_once.instructions, at_once.branches)
        assert (found.exit_code, found.warnings) == (at_once.exit_code, at_once.warnings)
    return at_once.instructions


@pytest.mark.parametrize("event", EVENTS)
@pytest.mark.parametrize("name", ALIKE)
def test_run_ahead_does_not_change_packets(
    name: str, event: str, record: RunAheadRecorder, program: ProgramBuilder
) -> None:
    assert (
        assert_same_packets(record, [str(program(name))], event, SMALL_CHUNKS + LARGE_CHUNKS[1:])
        > 100
    )


@pytest.mark.parametrize("event", EVENTS)
def test_run_ahead_does_not_change_packets_of_a_long_run(
    event: str, record: RunAheadRecorder
) -> None:
    if shutil.which("gzip") is None:
        pytest.skip("gzip is not installed")
    script = f"exec gzip -c {write_text_lines(record.folder, 300)} > /dev/null"
    assert assert_same_packets(record, ["/bin/sh", "-c", script], event, LARGE_CHUNKS) > 1_000_000


@pytest.mark.parametrize("ahead", [WITHOUT_RUN_AHEAD, *LARGE_CHUNKS])
def test_processes_and_signals_are_verified(ahead: str, record: RunAheadRecorder) -> None:
    script = (
        "trap 'echo trapped' USR1; for i in 1 2 3; do seq 1 300 | sort -rn | wc -l; done;"
        "kill -USR1 $$; sh -c 'kill -SEGV $$'; (exit 3); exit 4"
    )
    found = record(["/bin/sh", "-c", script], ahead, truth=True)
    assert (found.exit_code, found.warnings) == (4, ())
    assert found.threads > 9
    assert record.is_verified()


@pytest.mark.parametrize("ahead", [WITHOUT_RUN_AHEAD, *LARGE_CHUNKS])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_killed_program_is_verified(
    number: signal.Signals, ahead: str, record: RunAheadRecorder, program: ProgramBuilder
) -> None:
    record.monkeypatch.setenv(RUN_AHEAD, ahead)
    request = RecordRequest([str(program("endless"))], output=record.data, truth=record.truth)
    with start_qemu(request, installation=record.found) as session:
        wait_until(lambda: session.step(0.2) and session.totals.pt_bytes > 100_000, "packets")
        session.signal(number)
        recording = finish_recording(session)
    assert recording.exit_code == 128 + number
    # After SIGKILL the end may be missing, which is a warning; otherwise nothing is missing.
    assert bool(recording.warnings) == (number == signal.SIGKILL)
    assert record.is_verified()


@pytest.mark.parametrize(("ahead", "more"), [(WITHOUT_RUN_AHEAD, 0), ("1000000", 1)])
def test_run_ahead_adds_one_thread(
    ahead: str, more: int, record: RunAheadRecorder, capfd: pytest.CaptureFixture[str]
) -> None:
    """QEMU itself has two threads."""
    loop = "i=0; while [ $i -lt 30000 ]; do i=$((i + 1)); done"
    record(["/bin/sh", "-c", f"{loop}; set -- /proc/$$/task/*; echo $#"], ahead)
    assert int(capfd.readouterr().out) == 2 + more


def test_run_ahead_is_off_on_one_cpu(
    record: RunAheadRecorder, capfd: pytest.CaptureFixture[str]
) -> None:
    cpus = os.sched_getaffinity(0)
    loop = "i=0; while [ $i -lt 30000 ]; do i=$((i + 1)); done"
    os.sched_setaffinity(0, {min(cpus)})
    try:
        record(["/bin/sh", "-c", f"{loop}; set -- /proc/$$/task/*; echo $#"], "auto")
    finally:
        os.sched_setaffinity(0, cpus)
    assert int(capfd.readouterr().out) == 2
