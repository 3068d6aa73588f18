"""perf -D and rtit's reader list the same records of real files."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections import Counter
from pathlib import Path

import pytest

from rtit.perfdata import AuxBuffer, PerfData, records

PERF = shutil.which("perf")
pytestmark = pytest.mark.skipif(PERF is None, reason="needs stock perf")

FILES = (
    "hase/loopy-skylake",
    "hase/control_flow-skylake",
    "hase/loopy-broadwell-snapshot",
    "chromeos/cpu-wide",
)


@pytest.fixture(params=FILES)
def recording_path(request: pytest.FixtureRequest, traces: Path) -> Path:
    return traces / f"{request.param}.perf.data"


@pytest.fixture
def perf_dump(recording_path: Path, tmp_path: Path) -> str:
    """`perf script -D`: a line `time offset [size]: PERF_RECORD_NAME ...` for each record."""
    return subprocess.run(
        [PERF or "perf", "script", "-i", str(recording_path), "-D"],
        capture_output=True,
        text=True,
        errors="replace",
        env={"HOME": str(tmp_path), "PATH": "/usr/bin:/bin", "LC_ALL": "C"},
        check=True,
        timeout=300,
    ).stdout


def test_records_equal_those_of_perf(recording_path: Path, perf_dump: str) -> None:
    """The test compares offset, size, type and time."""
    lines = re.findall(
        r"^(?:(-?\d+) )?(?:(\d+) )?(0x[0-9a-f]+) \[(0x[0-9a-f]+)\]: PERF_RECORD_(\w+)",
        perf_dump,
        re.MULTILINE,
    )
    perf = {
        int(offset, 16): (name, int(size, 16), int(b or a or 0))
        for a, b, offset, size, name in lines
    }
    with PerfData(recording_path) as file:
        ours = {r.offset: (r.name, r.size, r.time or 0) for r in file.records()}
    assert len(perf) > 50
    # perf drops the time of FINISHED_ROUND, and prints no line for some of its own record types.
    for offset, row in perf.items():
        assert ours[offset] == row
    not_printed = Counter(ours[offset][0] for offset in ours.keys() - perf.keys())
    assert set(not_printed) <= {"TIME_CONV", "FINISHED_ROUND"}


def test_aux_buffers_equal_those_of_perf(recording_path: Path, perf_dump: str) -> None:
    found = re.findall(
        r"PERF_RECORD_AUXTRACE size: (\S+)  offset: (\S+)  ref: (\S+)  idx: (\d+)"
        r"  tid: (-?\d+)  cpu: (-?\d+)",
        perf_dump,
    )
    with PerfData(recording_path) as file:
        queues = file.auxtrace_buffers()
    pieces = [piece for queue in queues.values() for piece in queue]
    assert [
        (p.size, p.aux_offset, p.reference, p.idx, p.tid, p.cpu)
        for p in sorted(pieces, key=lambda p: p.file_offset)
    ] == [tuple(int(value, 0) for value in row) for row in found]
    assert all(queue == AuxBuffer(piece.cpu, -1) for queue in queues for piece in queues[queue])


def test_auxtrace_info_equals_that_of_perf(recording_path: Path, perf_dump: str) -> None:
    labels = {
        "PMU Type": "pmu_type",
        "Time Shift": "time_shift",
        "Time Muliplier": "time_mult",
        "Time Zero": "time_zero",
        "Cap Time Zero": "cap_user_time_zero",
        "TSC bit": "tsc_bit",
        "NoRETComp bit": "noretcomp_bit",
        "Have sched_switch": "have_sched_switch",
        "Snapshot mode": "snapshot_mode",
        "Per-cpu maps": "per_cpu_mmaps",
        "MTC bit": "mtc_bit",
        "TSC:CTC numerator": "tsc_ctc_n",
        "TSC:CTC denominator": "tsc_ctc_d",
        "CYC bit": "cyc_bit",
        "Max non-turbo ratio": "max_nonturbo_ratio",
    }
    with PerfData(recording_path) as file:
        info = file.info
    assert info is not None
    for label, field in labels.items():
        match = re.search(rf"^  {re.escape(label)} +(\S+)$", perf_dump, re.MULTILINE)
        assert match is not None, label
        assert getattr(info, field) == int(match[1], 0)


def test_aux_records_equal_those_of_perf(recording_path: Path, perf_dump: str) -> None:
    found = re.findall(r"PERF_RECORD_AUX offset: (\S+) size: (\S+) flags: (\S+)", perf_dump)
    with PerfData(recording_path) as file:
        ours = [
            (record.time, record.aux_offset, record.length, record.flags)
            for record in file.records()
            if isinstance(record, records.Aux)
        ]
    rows = Counter(tuple(int(value, 0) for value in row) for row in found)
    assert Counter(row[1:] for row in ours) == rows
