"""A static program executes the same instructions under QEMU as on the machine.

Two tracers that share no code but the table of instruction classes: their truths must agree.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from live import Recorder, ends, finished
from programs.build import PROGRAMS
from rtit.capture.qemu import find_qemu, start_qemu

# Without a C library, so at fixed addresses, without choices by CPU features, and without timing.
NAMES = [
    "altstack_longjmp",
    "crash",
    "crash_ud2",
    "exec_chain",
    "fork",
    "int3_own",
    "mov_ss",
    "pointers",
    "recursion",
    "rep",
    "rep_fault",
    "returns",
    "segv_caught",
    "signal_nested",
    "trap_flag",
    "vfork_exec",
]


@pytest.mark.parametrize("name", NAMES)
def test_same(name: str, program: Callable[[str], Path], record: Recorder, tmp_path: Path) -> None:
    found = find_qemu()
    if isinstance(found, str):
        pytest.skip(found)
    argv = [str(program(name)), *PROGRAMS[name].arguments]
    single_steps = record(argv)
    truth = tmp_path / "truth"
    with start_qemu(argv, output=tmp_path / "data", truth=truth, found=found) as session:
        finished(session)
    paths = sorted(ends(single_steps.truth).values())
    assert sorted(ends(truth).values()) == paths != []
