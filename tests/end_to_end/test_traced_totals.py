"""The recorder's totals of traced instructions and branches equal those that decoding finds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from rtit.capture.backends import start_recording
from rtit.capture.request import RecordRequest, SizeLimits
from rtit.capture.session import Recording
from rtit.cli.main import main
from rtit.trace import Trace
from support.recordings import record_to_end, require_backend

ProgramBuilder = Callable[[str], Path]


@pytest.fixture(params=["qemu", "ptrace"])
def backend(request: pytest.FixtureRequest) -> str:
    require_backend(request.param)
    return str(request.param)


def decoded_totals(data: Path) -> tuple[int, int]:
    """Return the numbers of decoded instructions and branches."""
    with Trace(data) as trace:
        counts = [stream.counts() for stream in trace.streams]
        losses = [span for stream in trace.streams for span in stream.ledger()]
    assert all(span.kind == "exact" for span in losses)
    return sum(each.instructions for each in counts), sum(each.branches for each in counts)


def record_program(
    exe: Path, backend: str, data: Path, *, filters: Sequence[str] = (), window: Sequence[str] = ()
) -> Recording:
    at = dict(zip(("start_at", "stop_at"), window, strict=False))
    named = [each.replace("@ EXE", f"@ {exe}") for each in filters]
    request = RecordRequest(
        [str(exe)], backend=backend, output=data, filters=named,
        start_at=at.get("start_at") or None, stop_at=at.get("stop_at") or None,
    )  # fmt: skip
    return record_to_end(start_recording(request))


@pytest.mark.parametrize(
    ("name", "filters", "window"),
    [
        ("recursion", ["filter main @ EXE"], ()),
        ("recursion", ["filter main @ EXE", "tracestop say @ EXE"], ()),
        ("pointers", ["filter main @ EXE", "filter say @ EXE"], ()),
        ("rep_fault", ["filter main @ EXE"], ()),
        ("segv_caught", ["filter main @ EXE"], ()),
        ("signal_nested", ["filter main @ EXE"], ()),
        ("self_modify", ["filter main @ EXE"], ()),
        ("fork", ["filter main @ EXE"], ()),
        ("exec_chain", ["filter main @ EXE"], ()),
        ("crash_late", ["filter * @ EXE"], ()),
        ("threads", ["filter work @ EXE", "filter main @ EXE"], ()),
        ("recursion", [], ("1000", "+2000")),
        ("recursion", [], ("main", "")),
        ("fork", [], ("200", "+100")),
        ("segv_caught", [], ("", "300")),
        ("threads", [], ("2000", "+20000")),
        ("recursion", ["filter main @ EXE"], ("1000", "+5000")),
        ("signal_async", [], ()),
        ("recursion", [], ()),
    ],
)
def test_traced_totals_equal_decoded_totals(
    name: str,
    filters: list[str],
    window: tuple[str, ...],
    backend: str,
    program: ProgramBuilder,
    tmp_path: Path,
) -> None:
    recording = record_program(
        program(name), backend, tmp_path / "data", filters=filters, window=window
    )
    found = decoded_totals(tmp_path / "data")
    assert (recording.traced_instructions, recording.traced_branches) == found
    assert found[0] > 0
    whole = not filters and not window
    assert found[0] == recording.instructions if whole else found[0] <= recording.instructions
    assert recording.partial != whole


def test_snapshot_has_no_traced_totals(
    backend: str, program: ProgramBuilder, tmp_path: Path
) -> None:
    request = RecordRequest(
        [str(program("recursion"))], backend=backend, output=tmp_path / "data",
        size_limits=SizeLimits(snapshot=1 << 16),
    )  # fmt: skip
    recording = record_to_end(start_recording(request))
    assert (recording.traced_instructions, recording.traced_branches) == (None, None)


def test_summary_prints_executed_and_traced_totals(
    backend: str, program: ProgramBuilder, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    exe, data = str(program("recursion")), str(tmp_path / "data")
    words = ["--backend", backend, "-o", data, "--filter", f"filter main @ {exe}", "--", exe]
    assert main(["record", *words]) == 0
    instructions, branches = decoded_totals(tmp_path / "data")
    said = capfd.readouterr().err
    assert f"executed, of them {instructions:,} instructions, {branches:,} branches traced" in said


def test_environment_order_is_that_of_the_back_end(
    backend: str, program: ProgramBuilder, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """The order changes the path of a program that iterates over it. QEMU reverses the
    order.
    """
    env = {f"V{number}": str(number) for number in range(40)}
    argv = [str(program("environment"))]
    record_to_end(
        start_recording(RecordRequest(argv, backend=backend, output=tmp_path / "data", env=env))
    )
    found = capfd.readouterr().out.splitlines()
    given = [f"{name}={value}" for name, value in env.items()]
    order = 1 if backend == "ptrace" else -1
    assert [line for line in found if line.startswith("V")] == given[::order]
