"""The settings that a perf.data file gives a decoder."""

from __future__ import annotations

from pathlib import Path

import pytest

from rtit.perfdata import PerfData
from rtit.trace.settings import of_perf, processor


@pytest.mark.parametrize(
    ("cpuid", "cpu"),
    [
        ("GenuineIntel,6,94,3", (6, 94, 3)),
        ("GenuineIntel,6,151,2,1", (6, 151, 2)),
        ("AuthenticAMD,25,1,1", None),
        ("GenuineIntel,6,94", None),
        ("GenuineIntel,6,x,3", None),
        ("GenuineIntel,6,99999,3", None),
        ("", None),
        (None, None),
    ],
)
def test_the_processor(cpuid: str | None, cpu: tuple[int, int, int] | None) -> None:
    assert processor(cpuid) == cpu


@pytest.mark.parametrize(
    ("name", "cpu"),
    [("loopy-skylake", (6, 94, 3)), ("loopy-broadwell-snapshot", (6, 61, 4))],
)
def test_the_processor_of_a_real_trace(name: str, cpu: tuple[int, int, int], traces: Path) -> None:
    with PerfData(traces / "hase" / f"{name}.perf.data") as data:
        assert of_perf(data, 0).cpu == cpu
