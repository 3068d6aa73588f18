"""A fault in a listing and a report: its instruction is the last line, with its source line."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rtit.capture.backends import start_recording
from rtit.capture.request import RecordRequest, SizeLimits
from rtit.cli.main import main
from rtit.trace import Trace
from support.recordings import record_to_end, require_backend

ProgramBuilder = Callable[[str], Path]
SOURCE = Path(__file__).resolve().parent.parent / "programs" / "crash_late.c"


@pytest.fixture(params=["qemu", "ptrace"])
def backend(request: pytest.FixtureRequest) -> str:
    require_backend(request.param)
    return str(request.param)


def test_fault_is_last_line_of_listing_and_in_report(
    backend: str,
    program: ProgramBuilder,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    data = tmp_path / "data"
    exe = program("crash_late")
    record_to_end(start_recording(RecordRequest([str(exe)], backend=backend, output=data)))
    lines = SOURCE.read_text().splitlines()
    crash_line = 1 + next(n for n, line in enumerate(lines) if "*nowhere = value;" in line)
    capfd.readouterr()

    def listed(*options: str) -> list[str]:
        assert main(["instructions", *options, str(data)]) == 0
        return capfd.readouterr().out.splitlines()

    with Trace(data) as trace:
        [ended] = trace.endings
        [stream] = trace.streams
        count = stream.counts().instructions
    assert ended.exit_status.fault is not None
    every = listed("--fields", "ip,sym,asm")
    assert len(every) == count + 1
    last = every[-1]
    assert int(last.split()[0], 16) == ended.exit_status.fault.ip
    assert " main+" in last
    assert last.endswith(f"<- SIGSEGV at address 0x0, not executed, crash_late.c:{crash_line}")
    assert not any("<-" in line for line in every[:-1])
    assert listed("--fields", "ip,sym,asm", "--merge", "--tail", "3") == every[-3:]
    assert listed("--fields", "ip,sym,asm", "--function", "main", "--tail", "1") == [last]
    assert not any("<-" in line for line in listed("--function", "some"))

    assert main(["report", str(data)]) == 0
    report = capfd.readouterr().out
    assert "SIGSEGV at address 0x0 in main+" in report
    assert f"(crash_late.c:{crash_line})" in report
    # main calls some(), which calls through the table; what it prints comes last
    calls = [line for line in report.splitlines() if " -> " in line]
    assert len(calls) == 5
    assert all("main" in call or "say" in call or "some" in call for call in calls)


@pytest.mark.parametrize(
    "stop", [{"stop_at": "main"}, {"size_limits": SizeLimits(max_size=16 << 10)}]
)
def test_trace_that_ends_before_the_crash_has_no_last_calls(
    stop: dict[str, Any],
    program: ProgramBuilder,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    data = tmp_path / "data"
    require_backend("qemu")
    exe, event = program("crash_late"), "intel_pt/cyc,noretcomp,psb_period=0/u"
    record_to_end(
        start_recording(RecordRequest([str(exe)], backend="qemu", output=data, event=event, **stop))
    )
    capfd.readouterr()
    main(["report", str(data)])
    report = capfd.readouterr().out
    assert "SIGSEGV at address 0x0 in main+" in report
    assert " -> " not in report


def test_trace_with_damaged_end_has_no_last_calls(
    program: ProgramBuilder, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    data, exe = tmp_path / "data", program("crash_late")
    require_backend("qemu")
    event = "intel_pt/psb_period=5/u"
    record_to_end(
        start_recording(RecordRequest([str(exe)], backend="qemu", output=data, event=event))
    )
    with Trace(data) as trace:
        [stream] = trace.streams
        piece = stream.source.pieces[0]  # type: ignore[attr-defined]
    broken = bytearray(data.read_bytes())
    crash_line = piece.file_offset + piece.size // 2
    broken[crash_line : crash_line + 8] = (
        b"\x02\xff" * 4
    )  # bytes that are no packets, without a PSB after them
    data.write_bytes(broken)
    capfd.readouterr()
    assert main(["report", str(data)]) == 3
    report = capfd.readouterr().out
    assert "SIGSEGV at address 0x0 in main+" in report
    assert " -> " not in report
