"""A static program executes the same instructions under QEMU as natively.

The two tracers share only the table of instruction classes; their truths must agree.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from programs.build import PROGRAMS, CannotBuildError, compiled
from rtit.capture.ptrace.session import start_ptrace
from rtit.capture.qemu.installation import QemuInstallation
from rtit.capture.qemu.start import start_qemu
from rtit.capture.request import RecordRequest
from rtit.trace import Trace
from support.recordings import Recorder, record_to_end, require_backend, thread_ends

# Programs without a C library: at fixed addresses, and independent of CPU features and of timing.
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
def test_truths_of_qemu_and_ptrace_are_equal(
    name: str,
    program: Callable[[str], Path],
    record: Recorder,
    tmp_path: Path,
    qemu: QemuInstallation,
) -> None:
    argv = [str(program(name)), *PROGRAMS[name].arguments]
    single_steps = record(argv)
    truth = tmp_path / "truth"
    record_to_end(
        start_qemu(RecordRequest(argv, output=tmp_path / "data", truth=truth), installation=qemu)
    )
    paths = sorted(thread_ends(single_steps.truth).values())
    assert sorted(thread_ends(truth).values()) == paths != []


def test_main_image_path_of_a_dynamic_program_is_the_same_in_both_back_ends(tmp_path: Path) -> None:
    """Libraries select functions by CPU features; the code of the program itself does not."""
    require_backend("qemu")
    source = Path(__file__).parent.parent / "programs" / "sorting.c"
    try:
        path = compiled("sorting", [str(source)], language="c", flags=["-O1"], libraries=["-lm"])
    except CannotBuildError as error:
        pytest.skip(str(error))
    data = tmp_path / "data"
    paths = []
    for backend in ("ptrace", "qemu"):
        start = start_ptrace if backend == "ptrace" else start_qemu
        assert record_to_end(start(RecordRequest([str(path), "60"], output=data))).exit_code == 5
        paths.append(main_image_path(data, str(path)))
    assert np.array_equal(paths[0], paths[1])
    assert len(paths[0]) > 5000


def main_image_path(data: Path, path: str) -> NDArray[np.uint64]:
    """Return the executed offsets in a program's file, in order, of its only thread."""
    with Trace(data) as trace:
        (stream,) = trace.streams
        (image,) = [each for each in trace.images.mappings(stream.pid) if each.path == path]
        ips = stream.instructions().columns()["ip"]
    inside = ips[(ips >= image.start) & (ips < image.end)]
    return inside - np.uint64(image.start) + np.uint64(image.offset)
