"""A program of one thread runs ahead of who makes its packets, if there are two CPUs: they are the
same packets, and nothing is lost, however it ends.
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
from rtit.capture.recording import Recording
from rtit.capture.request import RecordRequest
from rtit.cli.main import main
from rtit.trace import Trace
from support.large_programs import write_text_lines
from support.processes import wait_until
from support.recordings import finish_recording, record_to_end

AT_ONCE = "0000000"
# Blocks in a chunk of the ring: with few the two threads meet all the time. The program sees these
# words: they are as long as one another.
FEW = ["0000001", "0000007"]
AHEAD = ["0000050", "1000000"]
EVENTS = ["intel_pt//u", "intel_pt/cyc=1/u", "intel_pt/mtc_period=0,psb_period=0/u"]
ProgramBuilder = Callable[[str], Path]


@pytest.fixture(scope="module")
def qemu() -> QemuInstallation:
    found = find_qemu()
    if isinstance(found, str):
        pytest.skip(found)
    return found


class Recorder:
    """Records in one folder, each time anew."""

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

    def packets(self) -> list[str]:
        """A hash of each thread's."""
        with Trace(self.data) as trace:
            return [hashlib.sha256(stream.read()).hexdigest() for stream in trace.streams]

    def verified(self) -> bool:
        return main(["verify", str(self.data), "--truth", str(self.truth)]) == 0


@pytest.fixture
def record(qemu: QemuInstallation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Recorder:
    return Recorder(qemu, tmp_path, monkeypatch)


def compare(record: Recorder, argv: list[str], event: str, ways: list[str]) -> int:
    """The number of instructions."""
    at_once, packets = record(argv, AT_ONCE, event), record.packets()
    for ahead in ways:
        found = record(argv, ahead, event)
        assert record.packets() == packets, ahead
        assert (found.instructions, found.branches) == (at_once.instructions, at_once.branches)
        assert (found.exit_code, found.warnings) == (at_once.exit_code, at_once.warnings)
    return at_once.instructions


@pytest.mark.parametrize("event", EVENTS)
@pytest.mark.parametrize("name", ALIKE)
def test_the_same_packets(name: str, event: str, record: Recorder, program: ProgramBuilder) -> None:
    assert compare(record, [str(program(name))], event, FEW + AHEAD[1:]) > 100


@pytest.mark.parametrize("event", EVENTS)
def test_the_same_packets_of_a_long_run(event: str, record: Recorder) -> None:
    if shutil.which("gzip") is None:
        pytest.skip("gzip is not installed")
    script = f"exec gzip -c {write_text_lines(record.folder, 300)} > /dev/null"
    assert compare(record, ["/bin/sh", "-c", script], event, AHEAD) > 1_000_000


@pytest.mark.parametrize("ahead", [AT_ONCE, *AHEAD])
def test_processes_and_signals(ahead: str, record: Recorder) -> None:
    script = (
        "trap 'echo trapped' USR1; for i in 1 2 3; do seq 1 300 | sort -rn | wc -l; done;"
        "kill -USR1 $$; sh -c 'kill -SEGV $$'; (exit 3); exit 4"
    )
    found = record(["/bin/sh", "-c", script], ahead, truth=True)
    assert (found.exit_code, found.warnings) == (4, ())
    assert found.threads > 9
    assert record.verified()


@pytest.mark.parametrize("ahead", [AT_ONCE, *AHEAD])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_program_that_is_killed(
    number: signal.Signals, ahead: str, record: Recorder, program: ProgramBuilder
) -> None:
    record.monkeypatch.setenv(RUN_AHEAD, ahead)
    request = RecordRequest([str(program("endless"))], output=record.data, truth=record.truth)
    with start_qemu(request, installation=record.found) as session:
        wait_until(lambda: session.step(0.2) and session.totals.pt_bytes > 100_000, "packets")
        session.signal(number)
        recording = finish_recording(session)
    assert recording.exit_code == 128 + number
    # Nobody can say more when it is killed; otherwise nothing is missing.
    assert bool(recording.warnings) == (number == signal.SIGKILL)
    assert record.verified()


@pytest.mark.parametrize(("ahead", "more"), [(AT_ONCE, 0), ("1000000", 1)])
def test_one_more_thread_where_it_pays(
    ahead: str, more: int, record: Recorder, capfd: pytest.CaptureFixture[str]
) -> None:
    """QEMU has two itself."""
    loop = "i=0; while [ $i -lt 30000 ]; do i=$((i + 1)); done"
    record(["/bin/sh", "-c", f"{loop}; set -- /proc/$$/task/*; echo $#"], ahead)
    assert int(capfd.readouterr().out) == 2 + more


def test_one_cpu_is_not_enough(record: Recorder, capfd: pytest.CaptureFixture[str]) -> None:
    cpus = os.sched_getaffinity(0)
    loop = "i=0; while [ $i -lt 30000 ]; do i=$((i + 1)); done"
    os.sched_setaffinity(0, {min(cpus)})
    try:
        record(["/bin/sh", "-c", f"{loop}; set -- /proc/$$/task/*; echo $#"], "auto")
    finally:
        os.sched_setaffinity(0, cpus)
    assert int(capfd.readouterr().out) == 2
