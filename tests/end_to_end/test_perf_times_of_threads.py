"""Of threads that share a CPU, `perf_time` of one is that of all, whatever the damage."""

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


@pytest.mark.parametrize("what", ["instructions", "branches"])
def test_one_thread_has_what_all_have(
    what: str, program: Callable[[str], Path], record: Recorder, tmp_path: Path
) -> None:
    """Where nothing but user code was traced, too: others are followed for it."""
    data = tmp_path / "perf.data"
    log = record([program("threads")]).log
    replay(log, data, event="intel_pt/psb_period=0/u", cpus=1)
    drawn = Random(7)
    with Trace(data) as trace:
        (stream,) = trace.streams
        packets = stream.read()
        damaged = bytearray(packets)
        for place in drawn.sample(range(len(packets)), 6):
            damaged[place] = drawn.randrange(256)
        source = MemorySource(bytes(damaged))
        whole = getattr(replace(stream, source=source), what)(perf_time=True).columns()
        for thread in trace.threads[:2]:
            found = getattr(replace(thread, source=source), what)(perf_time=True).columns()
            own = whole["tid"] == thread.tid
            for name in found:
                assert found[name].tolist() == whole[name][own].tolist()
