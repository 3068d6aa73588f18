"""Stock perf lists the kernel and user code that a simulated machine ran."""

from __future__ import annotations

from pathlib import Path

import pytest

from differential.oracles import perf
from kernel import recording
from kernel.machine import Machine
from kernel.test_paths import run_kernel_code


def instructions_from_perf(data: Path) -> list[tuple[int, int]]:
    try:
        listed = perf.script(data, ["--itrace=i0nse", "-F", "tid,ip"])
    except perf.PerfMissingError as error:
        pytest.skip(str(error))
    assert "error" not in listed
    return [(int(tid), int(ip, 16)) for tid, ip in map(str.split, listed.splitlines())]


@pytest.mark.parametrize("isolated", [False, True])
def test_perf_finds_the_kernel_in_the_directory(isolated: bool, tmp_path: Path) -> None:
    """perf uses the kernel copies beside the recording, text pokes at their times, and
    __switch_to.
    """
    machine = run_kernel_code(Machine(isolated=isolated))
    assert instructions_from_perf(recording.write(machine, tmp_path / "perf.data")) == machine.ran
