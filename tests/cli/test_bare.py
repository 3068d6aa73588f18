"""Bare PT and its code on the command line, against what libipt and the processor's makers say."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from rtit.cli.main import main

RETURNS = "call_indirect-ret_compressed"


@pytest.fixture
def cases(traces: Path) -> Path:
    return traces / "libipt-cases"


def bare(cases: Path, name: str) -> list[str]:
    return ["--raw", str(cases / f"{name}.pt"), "--image", f"{cases / name}.bin@0x100000"]


def test_instructions(cases: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["instructions", *bare(cases, RETURNS), "--fields", "ip"]) == 0
    expected = re.findall(
        "^[0-9a-f]{16}$", (cases / f"{RETURNS}.instructions.txt").read_text(), re.M
    )
    shown = capsys.readouterr().out.split()
    assert [int(ip, 16) for ip in shown] == [int(ip, 16) for ip in expected]
    assert main(["instructions", *bare(cases, RETURNS)]) == 0
    assert capsys.readouterr().out.splitlines()[0].split() == ["100000", "0x100000", "call", "rbx"]


def test_events_and_rules(cases: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["events", *bare(cases, RETURNS)]) == 0
    assert "[disabled]" in (cases / f"{RETURNS}.instructions.txt").read_text()
    assert "disabled" in capsys.readouterr().out
    assert main(["lint", "--raw", str(cases / f"{RETURNS}.pt"), "--cpu", "6/94/3"]) in (0, 1)


def test_packets(cases: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["packets", "--raw", str(cases / f"{RETURNS}.pt")]) == 0
    expected = (cases / f"{RETURNS}.packets.txt").read_text().splitlines()
    shown = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert [int(words[0], 16) for words in shown] == [int(line.split()[0], 16) for line in expected]
    names = {"TNT": "tnt.8"}
    assert [names.get(words[1], words[1].lower()) for words in shown] == [
        line.split()[1] for line in expected
    ]


def test_an_elf_file_and_its_clocks(traces: Path, capsys: pytest.CaptureFixture[str]) -> None:
    # `mov mov mov mov syscall mov mov syscall`, at the offsets that the recording's notes give
    folder = traces / "dynamorio"
    words = ["--raw", str(folder / "pt.bin"), "--elf", str(folder / "hello"), "--cpu", "6/85/4"]
    clock = ["--mtc-freq", "3", "--nom-freq", "0x25", "--cpuid-15", "2,308"]
    assert main(["instructions", *words, *clock, "--fields", "ip,sym,asm"]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    first = int(lines[0][0], 16)
    assert [int(line[0], 16) - first for line in lines] == [0, 5, 10, 20, 25, 27, 32, 37]
    assert {line[1].partition("+")[0] for line in lines} == {"_start"}
    assert [line[2] for line in lines].count("syscall") == 2
    # MTCs and CYCs between the two give time
    times = []
    for more in ([], clock):
        assert main(["instructions", *words, *more, "--fields", "time", "--tail", "1"]) == 0
        times.append(int(capsys.readouterr().out))
    assert times[1] > times[0]


def test_the_base_of_an_elf_file(traces: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = traces / "dynamorio"
    words = ["--raw", str(folder / "pt.bin"), "--elf", f"{folder / 'hello'}@0x400000"]
    assert main(["report", *words]) == 0
    assert "_start (hello)" in capsys.readouterr().out
    assert main(["report", *words[:-1], f"{folder / 'hello'}@0x500000"]) == 3
    assert "no code is known at 0x401000" in capsys.readouterr().out


def test_from_a_pipe(cases: Path) -> None:
    command = [sys.executable, "-m", "rtit", "report", "--raw", "-"]
    with (cases / f"{RETURNS}.pt").open("rb") as file:
        ended = subprocess.run(
            [*command, "--image", f"{cases / RETURNS}.bin@100000"],
            stdin=file,
            capture_output=True,
            text=True,
            check=False,
        )
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.startswith("<stdin>\n")
    assert re.search("^ +3 +2 +35 .* stream$", ended.stdout, re.M)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--elf", "x"], "--elf tells of bare PT: it goes with --raw FILE"),
        (["--cpuid-15", "2,3"], "--cpuid-15 tells of bare PT"),
        (["--raw", "PT", "perf.data"], "two files given: perf.data and --raw PT"),
        (["--raw", "PT", "--image", "code"], "--image takes FILE@ADDRESS, not 'code'"),
        (["--raw", "PT", "--image", "code@1g"], "'1g' is no hexadecimal address"),
        (["--raw", "PT", "--mtc-freq", "16"], "mtc_freq is 16: it has 4 bits"),
        (["--raw", "PT", "--nom-freq", "x"], "--nom-freq takes a number, not 'x'"),
        (["--raw", "PT", "--cpuid-15", "2"], "--cpuid-15 takes EAX,EBX, not '2'"),
        (["--raw", "PT", "--cpu", "6/x"], "cpu '6/x': it is FAMILY/MODEL/STEPPING"),
        (["--cpu", "6/1", "--cpu", "6/2"], "--cpu names two processors: 6/1 and 6/2"),
    ],
)
def test_words_that_do_not_fit(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["report", *words]) == 2
    assert message in capsys.readouterr().err


def test_files_that_are_not_there(cases: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", "--raw", "/nowhere/pt"]) == 1
    assert "/nowhere/pt: No such file" in capsys.readouterr().err
    assert (
        main(["report", "--raw", str(cases / f"{RETURNS}.pt"), "--elf", "/nowhere/elf@4000"]) == 1
    )
    assert "/nowhere/elf: cannot be read" in capsys.readouterr().err


def test_the_processor_of_a_recording_can_be_named(traces: Path) -> None:
    from rtit.trace import Settings, Trace

    with Trace(traces / "hase" / "loopy-skylake.perf.data", cpu=(6, 61, 4)) as trace:
        settings = trace.streams[0].settings
        assert isinstance(settings, Settings)
        assert settings.cpu == (6, 61, 4)
