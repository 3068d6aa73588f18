"""The totals that `record` returns."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from rtit.capture.backends import record
from rtit.trace import Trace
from rtit.views.statistics import compute_statistics
from support.recordings import require_backend, thread_ends


@pytest.mark.parametrize("backend", ["qemu", "ptrace"])
@pytest.mark.parametrize("name", ["pointers", "returns", "fork", "far"])
def test_totals_of_a_recording_equal_those_of_the_decoded_path(
    backend: str, name: str, program: Callable[[str], Path], tmp_path: Path
) -> None:
    require_backend(backend)
    if backend == "qemu" and name == "far":
        pytest.skip("QEMU does not run it: far transfers in user mode")
    data = tmp_path / "perf.data"
    recording = record([str(program(name))], backend=backend, output=data)
    with Trace(data) as trace:
        found_there = compute_statistics(trace, trace.streams)
    assert recording.instructions == found_there.instructions
    assert recording.branches == sum(each.branches for each in found_there.streams)
    assert recording.pt_bytes == sum(each.pt_bytes for each in found_there.streams)


def test_totals_include_instructions_outside_filters_before_an_exec(tmp_path: Path) -> None:
    require_backend("qemu")
    truth = tmp_path / "truth"
    recording = record(
        ["/bin/sh", "-c", "exec /bin/true"],
        backend="qemu",
        output=tmp_path / "perf.data",
        truth=truth,
        event="intel_pt/tsc=0,mtc=0/u",
        filters=["filter * @ /bin/true"],
    )
    [(_, instructions, _)] = thread_ends(truth).values()
    assert recording.instructions == instructions
