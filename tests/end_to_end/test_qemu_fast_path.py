"""Without a truth, the plugin takes a fast path for blocks that make no packet of their own.

The packets must be the same as with a truth, where it never takes the fast path.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TypedDict

import pytest

from programs.build import ALIKE, PROGRAMS
from rtit.capture.qemu.installation import QemuInstallation
from rtit.capture.qemu.start import start_qemu
from rtit.capture.request import RecordRequest
from rtit.capture.session import Recording
from rtit.packets import Packet, scan
from rtit.trace import Trace
from rtit.unit.time_model import TimeModel
from support.large_programs import write_text_lines
from support.recordings import record_to_end

PSB = bytes.fromhex("0282" * 8)
EVENTS = {
    "default": ("intel_pt//u", 1),
    "cyc": ("intel_pt/cyc=1/u", 1),
    "noretcomp": ("intel_pt/noretcomp/u", 1),
    "mtc-often": ("intel_pt/mtc_period=0,psb_period=0/u", 1),
    "mtc-seldom": ("intel_pt/mtc_period=9,noretcomp/u", 1),
    "no-time": ("intel_pt/tsc=0,mtc=0/u", 1),
    "cpi": ("intel_pt/mtc_period=0/u", 7),
    "cpi-cyc": ("intel_pt/cyc=1,psb_period=0/u", 7),
}


class PartialRecording(TypedDict, total=False):
    """Options that record less than everything."""

    filters: list[str]
    start_at: str
    stop_at: str


PARTIAL_RECORDINGS: dict[str, PartialRecording] = {
    "filter": {"filters": ["filter 0x4000/0x4000 @ /bin/gzip"]},
    "library": {"filters": ["filter * @ /lib/x86_64-linux-gnu/libc.so.6"]},
    "tracestop": {"filters": ["tracestop 0x9000/0x100 @ /bin/gzip"]},
    "window": {"start_at": "100003", "stop_at": "+1000001"},
}


def record_packets(
    found: QemuInstallation,
    argv: list[str],
    folder: Path,
    kind: str,
    part: PartialRecording,
    *,
    truth: bool,
) -> tuple[Recording, list[bytes]]:
    """Return a recording and the packets of each thread."""
    event, cpi = EVENTS[kind]
    data = folder / f"data-{truth}"
    session = start_qemu(
        RecordRequest(
            argv,
            output=data,
            event=event,
            time=TimeModel(cpi=cpi),
            truth=folder / "truth" if truth else None,
            **part,
        ),
        installation=found,
    )
    recording = record_to_end(session)
    with Trace(data) as trace:
        return recording, [stream.read() for stream in trace.streams]


def without_padding(data: bytes) -> bytes:
    """Return the packets without PADs.

    With a truth, packets are sent at other points, where they are padded to whole words.
    """
    packets = [each for each in scan(data) if isinstance(each, Packet)]
    return b"".join(each.raw for each in packets if each.name != "PAD")


def path_hashes(data: Path) -> list[bytes]:
    """Return the hash of the decoded path of each thread."""
    with Trace(data) as trace:
        paths = []
        for stream in trace.streams:
            path = hashlib.sha256()
            for part in stream.instructions():
                path.update(part.ip.tobytes())
            paths.append(path.digest())
        return paths


def assert_same_packets(
    found: QemuInstallation,
    argv: list[str],
    folder: Path,
    kind: str,
    part: PartialRecording | None = None,
) -> int:
    """Compare recordings with and without truth; return the number of instructions."""
    shorter, quietly = record_packets(found, argv, folder, kind, part or {}, truth=False)
    whole, packets = record_packets(found, argv, folder, kind, part or {}, truth=True)
    assert (shorter.warnings, whole.warnings) == ((), ())
    assert shorter.exit_code == whole.exit_code
    assert (shorter.instructions, shorter.branches) == (whole.instructions, whole.branches)
    assert len(quietly) == len(packets)
    assert min(map(len, quietly)) > 100
    pairs = zip(quietly, packets, strict=True)
    if all(one == other or without_padding(one) == without_padding(other) for one, other in pairs):
        return whole.instructions
    # Padding counts towards the PSB period, so that the next PSB may be elsewhere.
    assert any(one.count(PSB) > 1 for one in quietly)
    assert path_hashes(folder / "data-False") == path_hashes(folder / "data-True")
    return whole.instructions


@pytest.mark.parametrize("kind", EVENTS)
@pytest.mark.parametrize("name", ALIKE)
def test_fast_path_makes_the_same_packets_of_static_programs(
    name: str, kind: str, qemu: QemuInstallation, program: Callable[[str], Path], tmp_path: Path
) -> None:
    argv = [str(program(name)), *PROGRAMS[name].arguments]
    assert assert_same_packets(qemu, argv, tmp_path, kind) > 100


@pytest.fixture
def gzip_command(tmp_path: Path) -> list[str]:
    """A dynamic program that a shell starts by exec."""
    if shutil.which("gzip") is None:
        pytest.skip("gzip is not installed")
    return ["/bin/sh", "-c", f"exec gzip -c {write_text_lines(tmp_path, 300)} > /dev/null"]


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param(kind, marks=[pytest.mark.slow] if kind.startswith("cpi") else [])
        for kind in EVENTS
    ],
)
def test_fast_path_makes_the_same_packets_of_a_dynamic_program(
    kind: str, qemu: QemuInstallation, gzip_command: list[str], tmp_path: Path
) -> None:
    assert assert_same_packets(qemu, gzip_command, tmp_path, kind) > 1_000_000


@pytest.mark.parametrize("kind", ["default", pytest.param("cpi", marks=pytest.mark.slow)])
@pytest.mark.parametrize("part", PARTIAL_RECORDINGS)
def test_fast_path_makes_the_same_packets_of_partial_recordings(
    part: str, kind: str, qemu: QemuInstallation, gzip_command: list[str], tmp_path: Path
) -> None:
    assert (
        assert_same_packets(qemu, gzip_command, tmp_path, kind, PARTIAL_RECORDINGS[part])
        > 1_000_000
    )
