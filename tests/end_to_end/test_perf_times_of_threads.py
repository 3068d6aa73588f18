"""`perf_time` of a thread on a shared CPU equals that in the rows of all threads, in damaged
traces too.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from rtit.capture.ptrace.session import replay
from rtit.trace import Trace
from rtit.trace.recording.byte_source import MemorySource
from support.recordings import Recorder


@pytest.mark.parametrize("row_kind", ["instructions", "branches"])
def test_perf_time_of_one_thread_is_that_in_the_rows_of_its_cpu(
    row_kind: str, program: Callable[[str], Path], record: Recorder, tmp_path: Path
) -> None:
    """The decoder must follow the other threads for it, even if only user code was traced."""
    data = tmp_path / "perf.data"
    log = record([program("threads")]).log
    replay(log, data, event="intel_pt/psb_period=0/u", cpus=1)
    drawn = Random(7)
    with Trace(data) as trace:
        (stream,) = trace.streams
        packets = stream.read()
        damaged = bytearray(packets)
        for index in drawn.sample(range(len(packets)), 6):
            damaged[index] = drawn.randrange(256)
        source = MemorySource(bytes(damaged))
        whole = getattr(replace(stream, source=source), row_kind)(perf_time=True).columns()
        for thread in trace.threads[:2]:
            found = getattr(replace(thread, source=source), row_kind)(perf_time=True).columns()
            own = whole["tid"] == thread.tid
            for name in found:
                assert found[name].tolist() == whole[name][own].tolist()
