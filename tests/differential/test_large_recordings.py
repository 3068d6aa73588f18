"""libipt and stock perf on large recordings: the same instructions, to the last one."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from differential.oracles import libipt, perf
from differential.oracles.raw import Section, auxtrace
from rtit.trace import Stream, Trace
from support.large_programs import LargeRecorder, LargeRecording
from support.recordings import thread_ends

PERIOD = 251


SLOW_PROGRAMS = [pytest.param(name, marks=pytest.mark.slow) for name in ("gzip", "cc1")]
SLOW_WITH_PERF = [pytest.param(name, marks=pytest.mark.slow) for name in ("python", "bash")]


@pytest.mark.parametrize("name", ["ls", *SLOW_PROGRAMS])
def test_libipt_decodes_a_large_recording_as_executed(name: str, large: LargeRecorder) -> None:
    """The hash of libipt's addresses equals that of the truth, which does not depend on
    rtit's decoder.
    """
    # Without return compression, since libipt's return stack differs where returns mismatch calls.
    run = large(name, "-e", "intel_pt/noretcomp/u")
    (executed,) = thread_ends(run.truth).items()
    tid, (_, instructions, chain) = executed
    (stream,) = auxtrace(run.data)
    assert stream.tid == tid
    try:
        found = libipt.path(stream.data, mapped_sections(run.data, tid))
    except libipt.LibiptMissingError as error:
        pytest.skip(str(error))
    assert found == (instructions, chain, 0)


def mapped_sections(data: Path, pid: int) -> list[Section]:
    with Trace(data) as trace:
        return [
            Section(
                Path(every_nth.path),
                every_nth.offset,
                every_nth.end - every_nth.start,
                every_nth.start,
            )
            for every_nth in trace.images.mappings(pid)
            if every_nth.path.startswith("/")
        ]


@pytest.mark.parametrize("name", ["ls", *SLOW_WITH_PERF, *SLOW_PROGRAMS])
def test_perf_samples_a_large_recording_as_rtit(name: str, large: LargeRecorder) -> None:
    """perf follows every instruction; the test compares every 251st of a thread."""
    run = large(name)
    try:
        theirs, errors = perf.sampled_instructions(run.data, PERIOD)
    except perf.PerfMissingError as error:
        pytest.skip(str(error))
    assert errors == []
    ours = sampled_ips(run)
    assert {tid: len(ips) for tid, ips in theirs.items()} == {
        tid: len(ips) for tid, ips in ours.items() if ips
    }
    assert all(ips == ours[tid] for tid, ips in theirs.items())


def sampled_ips(run: LargeRecording) -> dict[int, list[int]]:
    with Trace(run.data) as trace:
        return {stream.tid: every_nth(stream, PERIOD) for stream in trace.streams}


def every_nth(stream: Stream, period: int) -> list[int]:
    """Return the last of every `period` instructions."""
    flow = stream.native_decoder()
    found: list[int] = []
    skip = period - 1
    while (columns := flow.instructions(1 << 20)) is not None:
        ips = np.asarray(columns["ip"])
        found += ips[skip::period].tolist()
        skip = (skip - len(ips)) % period
    return found
