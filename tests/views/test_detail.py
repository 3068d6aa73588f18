"""Fields that are not rendered in native code agree with the tables and with native lines."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from rtit.capture.ptrace.session import replay_events
from rtit.cli.main import main
from rtit.packets import encode
from rtit.trace import Trace
from rtit.views.field_names import DETAILED_FIELDS, NATIVE_FIELDS
from support.recordings import RecordedProgram, Recorder

ProgramBuilder = Callable[[str], Path]


@pytest.fixture(scope="module")
def data(
    program: ProgramBuilder, record: Recorder, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """Threads, with CYCs and an MTC every tick of the crystal."""
    live: RecordedProgram = record([program("threads")])
    path = tmp_path_factory.mktemp("detail") / "perf.data"
    replay_events(live.log, path, event="intel_pt/cyc,mtc_period=0/u")
    return path


def list_instructions(capfd: pytest.CaptureFixture[str], data: Path, *options: str) -> list[str]:
    assert main(["instructions", *options, str(data)]) == 0
    found = capfd.readouterr()
    assert found.err == ""
    return found.out.splitlines()


def test_detailed_lines_equal_native_lines(data: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """One detailed field selects the slower path; the other fields must not change."""
    for options in (
        (),
        ("--merge",),
        ("--head", "100"),
        ("--tail", "70"),
        ("--merge", "--head", "9"),
    ):
        fast = list_instructions(capfd, data, "--fields", "tid,time,ip,sym,asm", *options)
        slow = list_instructions(capfd, data, "--fields", "bits,tid,time,ip,sym,asm", *options)
        assert [line.removeprefix("64 ") for line in slow] == fast


def test_detailed_lines_respect_function_and_time(
    data: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    for options in (("--function", "main"), ("--time", "1000000500,1000000900")):
        fast = list_instructions(capfd, data, "--fields", "tid,ip", *options)
        slow = list_instructions(capfd, data, "--fields", "in_tx,tid,ip", *options)
        assert [line.removeprefix("- ") for line in slow] == fast
        assert fast


def test_fields_equal_columns_of_table(data: Path, capfd: pytest.CaptureFixture[str]) -> None:
    fields = "ip,insnlen,bits,in_tx,earliest,latest,cycles,freq,pid,comm,cpu"
    lines = list_instructions(capfd, data, "--fields", fields)
    with Trace(data) as trace:
        clock = trace.clock
        assert clock is not None
        expected = []
        for stream in trace.streams:
            columns = stream.instructions(timing=True).columns()
            names = ("ip", "size", "earliest", "latest", "cycles")
            for ip, size, earliest, latest, cycles in zip(
                *(columns[name].tolist() for name in names), strict=True
            ):
                until = "-" if latest == (1 << 64) - 1 else str(clock.to_nanoseconds(latest))
                who = [str(stream.pid), stream.name or "-", "[-]"]
                since = str(clock.to_nanoseconds(earliest))
                expected.append(
                    [f"{ip:x}", str(size), "64", "-", since, until, str(cycles), "1000", *who]
                )
    assert [line.split() for line in lines] == expected


def test_fields_insn_and_dso_show_code_bytes_and_file(
    data: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    lines = list_instructions(
        capfd, data, "--fields", "dso,insnlen,insn", "--head", "1", "--tid", _tid(data)
    )
    dso, size, *code = lines[0].split()
    assert Path(dso).is_file()
    assert int(size) == len(code)


def _tid(data: Path) -> str:
    with Trace(data) as trace:
        return str(trace.streams[0].tid)


def test_ipc_sums_to_all_cycles_and_instructions(
    data: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """The clock has one cycle per instruction; CYC packets count those of other threads, too."""
    lines = list_instructions(capfd, data, "--fields", "cycles,ipc", "--tid", _tid(data))
    lines_with_ipc = [line.split() for line in lines if "(" in line]
    assert len(lines_with_ipc) > 10
    instructions = [int(words[2].strip("()").split("/")[0]) for words in lines_with_ipc]
    cycles = [int(words[2].strip("()").split("/")[1]) for words in lines_with_ipc]
    first, last = int(lines[0].split()[0]), int(lines_with_ipc[-1][0])
    assert sum(cycles) == last - first
    at = max(index for index, line in enumerate(lines) if "(" in line)
    assert sum(instructions) == at
    assert [words[1] for words in lines_with_ipc] == [
        f"{count / of:.2f}" for count, of in zip(instructions, cycles, strict=True)
    ]
    assert main(["instructions", "--fields", "ipc", "--function", "main", str(data)]) == 2
    assert "ipc counts all instructions" in capfd.readouterr().err


def test_raw_pt_without_times_prints_dashes(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    head = encode("PSB") + encode("MODE.Exec", csl=0, csd=0, iflag=0)
    packets = head + encode("FUP", ip_bytes=2, payload=0x1000) + encode("PSBEND")
    (tmp_path / "pt").write_bytes(packets + encode("TIP", ip_bytes=1, payload=0x1000))
    (tmp_path / "code").write_bytes(b"\xff\xe0")  # jmp ax
    options = ["--raw", str(tmp_path / "pt"), "--image", f"{tmp_path / 'code'}@1000"]
    fields = "ip,bits,insn,time,latest,freq,comm,asm"
    assert main(["instructions", *options, "--fields", fields]) == 0
    assert capfd.readouterr().out.split() == [
        "1000",
        "16",
        "ff",
        "e0",
        "0",
        "-",
        "-",
        "-",
        "jmp",
        "ax",
    ]


def test_fault_is_last_line_with_detailed_fields(
    program: ProgramBuilder, record: Recorder, capfd: pytest.CaptureFixture[str]
) -> None:
    crashed = record([program("crash")]).data
    for options in ((), ("--tail", "3"), ("--merge",), ("--merge", "--tail", "2"), ("--head", "4")):
        fast = list_instructions(capfd, crashed, "--fields", "ip", *options)
        slow = list_instructions(capfd, crashed, "--fields", "ip,bits", *options)
        assert [line.split()[0] for line in slow] == [line.split()[0] for line in fast]
        assert ("not executed" in slow[-1]) == ("--head" not in options)


def test_no_field_is_both_native_and_detailed() -> None:
    assert not set(DETAILED_FIELDS) & set(NATIVE_FIELDS)
