"""Large real programs under QEMU behave as natively and decode as executed, to the last
instruction.
"""

from __future__ import annotations

import re
import shutil
import signal
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from rtit.capture.qemu.installation import QemuInstallation
from rtit.capture.qemu.start import start_qemu
from rtit.capture.request import RecordRequest
from rtit.trace import Trace
from rtit.views.verify import ThreadVerdict, verify_threads
from support.large_programs import LARGE_PROGRAMS, LargeRecorder, write_text_lines
from support.processes import wait_until
from support.recordings import finish_recording, record_to_end, thread_ends

CHAIN_FACTOR = 0x9E3779B97F4A7C15
MASK_64 = (1 << 64) - 1


def verify_files(data: Path, truth: Path) -> list[ThreadVerdict]:
    with Trace(data) as trace:
        return verify_threads(trace, str(truth))


# node is as large as cc1, which gcc runs; bash has several processes; node and python have threads.
SLOW_PROGRAMS = {"cc1", "gcc", "sort", "xz"}


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.slow] if name in SLOW_PROGRAMS else [])
        for name in LARGE_PROGRAMS
    ],
)
def test_large_program_behaves_as_natively_and_decodes_as_executed(
    name: str, large: LargeRecorder
) -> None:
    run = large(name)
    assert run.native.code == LARGE_PROGRAMS[name].code
    assert run.recorded == run.native, run.stderr
    found = verify_files(run.data, run.truth)
    assert [each for each in found if not each.identical] == []
    assert sum(each.instructions for each in found) >= LARGE_PROGRAMS[name].instructions
    # A killed thread may lack the last part of its packets or truth; all others are complete.
    whole = {each.tid for each in found if not each.shortfall}
    assert set(thread_ends(run.truth)) <= whole
    # A hash each 2^20 instructions, or where packets are sent: less than a byte for 1000.
    assert run.truth.stat().st_size < 10_000 + sum(each.instructions for each in found) / 1000


def without_output(argv: list[str]) -> list[str]:
    return ["/bin/sh", "-c", 'exec "$@" > /dev/null', "sh", *argv]


# Programs that execute the same instructions in every run, with any pid.
DETERMINISTIC: dict[str, Callable[[Path], list[str]]] = {
    "gzip": lambda at: ["gzip", "-c", str(write_text_lines(at, 2000))],
    "sort": lambda at: ["sort", "-n", str(write_text_lines(at, 2000))],
    "ls": lambda _: ["ls", "-l", "/usr/bin"],
    "xz": lambda at: ["xz", "-0", "-c", str(write_text_lines(at, 2000))],
}


@pytest.mark.parametrize("name", DETERMINISTIC)
def test_truths_by_block_and_by_instruction_are_equal(
    name: str, qemu: QemuInstallation, tmp_path: Path
) -> None:
    if shutil.which(name) is None:
        pytest.skip(f"{name} is not installed")
    argv = DETERMINISTIC[name](tmp_path)
    paths = []
    for by_instruction in (False, True):
        truth = tmp_path / f"truth-{by_instruction}"
        data = tmp_path / "data"
        record_to_end(
            start_qemu(
                RecordRequest(without_output(argv), output=data, truth=truth),
                truth_by_instruction=by_instruction,
                installation=qemu,
            )
        )
        paths.append(list(thread_ends(truth).values()))
        assert all(each.identical for each in verify_files(data, truth))
    assert paths[0] == paths[1]
    assert paths[0][0][1] > 1_000_000


def test_killed_threads_are_verified(qemu: QemuInstallation, tmp_path: Path) -> None:
    if shutil.which("xz") is None:
        pytest.skip("xz is not installed")
    data, truth = tmp_path / "data", tmp_path / "truth"
    argv = ["xz", "-T2", "--block-size=65536", "-c", "/dev/urandom"]
    with start_qemu(
        RecordRequest(without_output(argv), output=data, truth=truth), installation=qemu
    ) as session:
        wait_until(lambda: session.step(0.2) and session.totals.pt_bytes > 4_000_000, "packets")
        session.signal(signal.SIGKILL)
        recording = finish_recording(session)
    assert (recording.exit_code, recording.threads) == (128 + signal.SIGKILL, 3)
    found = verify_files(data, truth)
    assert [each.identical for each in found] == [True] * 3
    assert sum(each.instructions for each in found) > 50_000_000
    assert all(abs(each.shortfall) < 2_000_000 for each in found)


def test_verify_reports_the_window_where_paths_diverge(
    large: LargeRecorder, tmp_path: Path
) -> None:
    """The test changes the hash of one window of the truth, and the hashes that depend on
    it.
    """
    run = large("gzip")
    (tid,) = thread_ends(run.truth)
    content = bytearray(run.truth.read_bytes())
    at, chain, executed = 16, 0, 0
    changed, last = None, 0
    while at < len(content):
        kind, size = struct.unpack_from("<II", content, at)
        if kind == 2:
            for row in range(at + 16, at + 8 + size, 24):
                instructions, value = struct.unpack_from("<8xI4xQ", content, row)
                if changed is None and executed > 50 << 20:
                    value ^= 1
                    changed = executed
                    last = executed + instructions - 1
                    struct.pack_into("<Q", content, row + 16, value)
                chain = (chain * pow(CHAIN_FACTOR, instructions, 1 << 64) + value) & MASK_64
                executed += instructions
        if kind in (3, 4):
            struct.pack_into("<Q", content, at + 24, chain)
        at += 8 + size
    truth = tmp_path / "truth"
    truth.write_bytes(content)
    (verdict,) = verify_files(run.data, truth)
    assert changed is not None
    assert (verdict.tid, verdict.identical, verdict.instructions) == (tid, False, changed)
    # The comparison ends where both paths have a boundary.
    said = re.search(r"the difference is in windows? (\d+)(?: and (\d+))? of 2\^20", verdict.reason)
    assert said is not None, verdict.reason
    assert int(said[1]) == changed >> 20
    assert int(said[2] or said[1]) >= last >> 20
    assert "--truth-format runs" in verdict.reason
