"""Counts of several threads of a CPU, with kernel code."""

from __future__ import annotations

from pathlib import Path

import pytest

from kernel import recording
from kernel.machine import Machine
from kernel.test_threads import run_switches
from rtit.profile.stat import stat
from rtit.trace import Trace
from rtit.trace.threads import thread_splitter
from rtit.views.statistics import compute_statistics


@pytest.fixture
def recorded(tmp_path: Path) -> Path:
    return recording.write(run_switches(Machine(), switches=12), tmp_path / "perf.data")


def test_counts_of_two_threads_include_kernel_code(
    recorded: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Trace(recorded) as trace:
        apart = trace.by_thread()
        assert len(apart) == 2
        expected = stat(trace, apart)
        counts = [each.counts() for each in apart]
        named = compute_statistics(trace, apart)
    monkeypatch.setattr(thread_splitter, "ALWAYS_SPLIT", 1)
    monkeypatch.setattr(thread_splitter, "MAX_WORK", 0)
    with Trace(recorded) as trace:
        (both,) = trace.by_thread()
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
