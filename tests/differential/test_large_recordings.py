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


@pytest.mark.parametrize("name", ["ls", "gzip", "cc1"])
def test_libipt(name: str, large: LargeRecorder) -> None:
    """Its hash over all addresses is the truth's, which rtit's decoder has no part in."""
    # Without return compression: libipt's return stack differs where returns mismatch.
    run = large(name, "-e", "intel_pt/noretcomp/u")
    (executed,) = thread_ends(run.truth).items()
    tid, (_, instructions, chain) = executed
    (stream,) = auxtrace(run.data)
    assert stream.tid == tid
    try:
        found = libipt.path(stream.data, sections(run.data, tid))
    except libipt.LibiptMissingError as error:
        pytest.skip(str(error))
    assert found == (instructions, chain, 0)


def sections(data: Path, pid: int) -> list[Section]:
    with Trace(data) as trace:
        return [
            Section(Path(each.path), each.offset, each.end - each.start, each.start)
            for each in trace.images.mappings(pid)
            if each.path.startswith("/")
        ]


@pytest.mark.parametrize("name", ["ls", "gzip", "cc1", "python", "bash"])
def test_perf(name: str, large: LargeRecorder) -> None:
    """It follows every instruction; each 251st of a thread is compared."""
    run = large(name)
    try:
        theirs, errors = perf.sampled(run.data, PERIOD)
    except perf.PerfMissingError as error:
        pytest.skip(str(error))
    assert errors == []
    ours = sampled(run)
    assert {tid: len(ips) for tid, ips in theirs.items()} == {
        tid: len(ips) for tid, ips in ours.items() if ips
    }
    assert all(ips == ours[tid] for tid, ips in theirs.items())


def sampled(run: LargeRecording) -> dict[int, list[int]]:
    with Trace(run.data) as trace:
        return {stream.tid: each(stream, PERIOD) for stream in trace.streams}


def each(stream: Stream, period: int) -> list[int]:
    """The last of every `period` instructions."""
    flow = stream.native_decoder()
    found: list[int] = []
    skip = period - 1
    while (columns := flow.ips(1 << 20)) is not None:
        ips = np.asarray(columns[0])
        found += ips[skip::period].tolist()
        skip = (skip - len(ips)) % period
    return found
