"""Every command reports a recording that ends early, with exit code 3."""

from __future__ import annotations

from pathlib import Path

import pytest

from rtit.cli.main import main
from rtit.packets import encode
from rtit.perfdata import Writer

READING_COMMANDS = ["packets", "instructions", "report", "events", "lint"]
PACKETS = encode("PSB") + encode("CBR", ratio=10) + encode("PSBEND")


@pytest.fixture
def two_thread_recording(tmp_path: Path) -> bytes:
    """A recording of two threads, without code and without need for code."""
    path = tmp_path / "perf.data"
    with Writer(path, config=0x2601, cpuid="GenuineIntel,6,94,3") as out:
        out.auxtrace(7, 7, PACKETS, None, 1)
        out.auxtrace(8, 7, PACKETS, None, 1)
    return path.read_bytes()


@pytest.mark.parametrize("command", READING_COMMANDS)
def test_complete_recording_exits_0(
    two_thread_recording: bytes, command: str, tmp_path: Path
) -> None:
    assert main([command, str(tmp_path / "perf.data")]) == 0


@pytest.mark.parametrize("command", READING_COMMANDS)
def test_truncated_recording_is_reported_with_exit_code_3(
    two_thread_recording: bytes, command: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """The file ends within its features, within a record, and between two records."""
    second = two_thread_recording.rindex(PACKETS)
    path = tmp_path / "cut"
    for size in (
        len(two_thread_recording) - 1,
        second + 5,
        two_thread_recording.index(PACKETS) + len(PACKETS),
    ):
        path.write_bytes(two_thread_recording[:size])
        assert main([command, str(path)]) == 3, size
        said = capfd.readouterr()
        assert "incomplete" in (said.out if command == "report" else said.err)


@pytest.mark.parametrize("command", ["packets", "instructions"])
def test_raw_packets_that_end_within_a_packet_exit_3(
    command: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "pt.bin"
    path.write_bytes(PACKETS + PACKETS[:16] + bytes([0x19, 1, 2]))
    assert main([command, "--raw", str(path)]) == 3
