"""Counts of several threads of a CPU, with kernel code."""

from __future__ import annotations

from pathlib import Path

import pytest

from kernel import recording
from kernel.machine import Machine
from kernel.test_threads import run_switches
from rtit.profile.stat import stat
from rtit.trace import Trace
from rtit.views.statistics import compute_statistics


@pytest.fixture
def recorded(tmp_path: Path) -> Path:
    return recording.write(run_switches(Machine(), switches=12), tmp_path / "perf.data")


@pytest.mark.parametrize("extracts", [False, True])
def test_counts_of_two_threads_include_kernel_code(recorded: Path, *, extracts: bool) -> None:
    with Trace(recorded) as trace:
        apart = trace.by_thread(always_split=True)
        assert len(apart) == 2
        expected = stat(trace, apart)
        counts = [each.counts() for each in apart]
        named = compute_statistics(trace, apart)
    with Trace(recorded) as trace:
        (both,) = trace.by_thread()
        assert not both.needs_extraction
        if extracts:
            # As if further threads had run.
            both = trace.streams[0].for_threads(both.thread_ids, trace.comms)
            assert both.needs_extraction
        assert [*both.thread_ids] == [(each.pid, each.tid) for each in apart]
        assert stat(trace, [both]).as_json() == expected.as_json()
        found = both.counts()
        for name in ("instructions", "conditional", "indirect", "returns", "exact_bytes"):
            assert getattr(found, name) == sum(getattr(each, name) for each in counts)
        assert found.elsewhere_bytes == 0
        counted = dict(named.functions)
        for name, path, count in both.instructions_by_function(trace.symbols):
            counted[name, path] -= count
        assert set(counted.values()) == {0}
