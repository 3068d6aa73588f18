"""Samples with AUX data: stock perf decodes the same path from the same file."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from differential.modes import sample_ranges
from differential.oracles import perf
from rtit.capture.ptrace.session import replay_events
from rtit.perfdata import SampleType
from rtit.trace import Trace
from support.recording_variants import write_sampled_recording
from support.recordings import Recorder

ProgramBuilder = Callable[[str], Path]


@pytest.fixture
def unsampled_recording(program: ProgramBuilder, record: Recorder, tmp_path: Path) -> Path:
    live = record([program("exceptions")])
    data = tmp_path / "whole"
    replay_events(live.log, data, event="intel_pt/psb_period=0/u")
    return data


# samples that overlap, that are adjacent, and that leave gaps
@pytest.mark.parametrize(
    ("step", "size", "has_raw_data"), [(3000, 4096, True), (1000, 8192, False), (9000, 4096, False)]
)
def test_perf_decodes_samples_as_rtit(
    step: int, size: int, has_raw_data: bool, unsampled_recording: Path, tmp_path: Path
) -> None:
    data = tmp_path / "samples"
    kinds = SampleType.RAW if has_raw_data else SampleType(0)
    before = struct.pack("<I", 12) + b"raw data 12." if has_raw_data else b""
    tid = write_sampled_recording(
        unsampled_recording,
        data,
        sample_ranges(unsampled_recording, step, size),
        kinds=kinds,
        more=before,
    )
    try:
        # The samples themselves have no address in a program.
        listed = [
            int(words[-1], 16)
            for words in map(
                str.split, perf.script(data, ["--itrace=i0ns", "-F", "event,ip"]).splitlines()
            )
            if words[0].startswith("instructions")
        ]
        assert perf.errors(data) == []
    except perf.PerfMissingError as error:
        pytest.skip(str(error))
    with Trace(data) as trace:
        assert trace.is_snapshot
        assert {stream.tid for stream in trace.streams} == {tid}
        found = trace.instructions().columns()["ip"].tolist()
        errors = {name for stream in trace.streams for name in stream.counts().errors}
        assert errors <= {"incomplete"}
    assert found == listed
    assert len(found) > 10_000
