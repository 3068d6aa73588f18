"""More of each instruction: what the tables have, as text."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from rtit.capture.ptrace.session import replay
from rtit.cli.main import main
from rtit.packets import encode
from rtit.trace import Trace
from rtit.views.instructions import DETAILED, LISTED
from support.recordings import RecordedProgram, Recorder

ProgramBuilder = Callable[[str], Path]


@pytest.fixture(scope="module")
def data(
    program: ProgramBuilder, record: Recorder, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """Threads, with CYCs and an MTC every tick of the crystal."""
    live: RecordedProgram = record([program("threads")])
    path = tmp_path_factory.mktemp("detail") / "perf.data"
    replay(live.log, path, event="intel_pt/cyc,mtc_period=0/u")
    return path


def listed(capfd: pytest.CaptureFixture[str], data: Path, *options: str) -> list[str]:
    assert main(["instructions", *options, str(data)]) == 0
    found = capfd.readouterr()
    assert found.err == ""
    return found.out.splitlines()


def test_the_same_as_the_fast_listing(data: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """A field more sends it another way: the others are as they are without it."""
    for options in (
        (),
        ("--merge",),
        ("--head", "100"),
        ("--tail", "70"),
        ("--merge", "--head", "9"),
    ):
        fast = listed(capfd, data, "--fields", "tid,time,ip,sym,asm", *options)
        slow = listed(capfd, data, "--fields", "bits,tid,time,ip,sym,asm", *options)
        assert [line.removeprefix("64 ") for line in slow] == fast


def test_places_and_times(data: Path, capfd: pytest.CaptureFixture[str]) -> None:
    for options in (("--function", "main"), ("--time", "1000000500,1000000900")):
        fast = listed(capfd, data, "--fields", "tid,ip", *options)
        slow = listed(capfd, data, "--fields", "in_tx,tid,ip", *options)
        assert [line.removeprefix("- ") for line in slow] == fast
        assert fast


def test_what_the_tables_have(data: Path, capfd: pytest.CaptureFixture[str]) -> None:
    fields = "ip,insnlen,bits,in_tx,earliest,latest,cycles,freq,pid,comm,cpu"
    lines = listed(capfd, data, "--fields", fields)
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


def test_code_and_file(data: Path, capfd: pytest.CaptureFixture[str]) -> None:
    lines = listed(capfd, data, "--fields", "dso,insnlen,insn", "--head", "1", "--tid", _tid(data))
    dso, size, *code = lines[0].split()
    assert Path(dso).is_file()
    assert int(size) == len(code)


def _tid(data: Path) -> str:
    with Trace(data) as trace:
        return str(trace.streams[0].tid)


def test_ipc_adds_up(data: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """The clock counts a cycle an instruction; CYCs count what the other threads run, too."""
    lines = listed(capfd, data, "--fields", "cycles,ipc", "--tid", _tid(data))
    told = [line.split() for line in lines if "(" in line]
    assert len(told) > 10
    instructions = [int(words[2].strip("()").split("/")[0]) for words in told]
    cycles = [int(words[2].strip("()").split("/")[1]) for words in told]
    first, last = int(lines[0].split()[0]), int(told[-1][0])
    assert sum(cycles) == last - first
    at = max(index for index, line in enumerate(lines) if "(" in line)
    assert sum(instructions) == at
    assert [words[1] for words in told] == [
        f"{count / of:.2f}" for count, of in zip(instructions, cycles, strict=True)
    ]
    assert main(["instructions", "--fields", "ipc", "--function", "main", str(data)]) == 2
    assert "ipc counts all instructions" in capfd.readouterr().err


def test_bare_pt_without_times(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
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


def test_a_crash_is_the_last_line(
    program: ProgramBuilder, record: Recorder, capfd: pytest.CaptureFixture[str]
) -> None:
    crashed = record([program("crash")]).data
    for options in ((), ("--tail", "3"), ("--merge",), ("--merge", "--tail", "2"), ("--head", "4")):
        fast = listed(capfd, crashed, "--fields", "ip", *options)
        slow = listed(capfd, crashed, "--fields", "ip,bits", *options)
        assert [line.split()[0] for line in slow] == [line.split()[0] for line in fast]
        assert ("not executed" in slow[-1]) == ("--head" not in options)


def test_fields_have_one_meaning() -> None:
    assert not set(DETAILED) & set(LISTED)
