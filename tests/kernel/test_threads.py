"""Who ran, in a stream that has the kernel in it: from __switch_to on the next thread."""

from __future__ import annotations

from pathlib import Path

import pytest

from kernel import recording
from kernel.machine import Machine
from kernel.test_paths import busy
from rtit.cli.main import main
from rtit.image import KernelFiles
from rtit.trace import Trace


@pytest.fixture(scope="module")
def machine() -> Machine:
    return busy(Machine())


@pytest.fixture(scope="module")
def recorded(machine: Machine, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return recording.write(machine, tmp_path_factory.mktemp("made") / "perf.data")


@pytest.mark.parametrize("timing", [False, True])
def test_instructions_have_their_threads(recorded: Path, machine: Machine, timing: bool) -> None:
    with Trace(recorded) as trace:
        (stream,) = trace.streams
        found = stream.instructions(timing=timing).columns()
        assert list(zip(found["tid"].tolist(), found["ip"].tolist(), strict=True)) == machine.ran
        whole = trace.instructions(timing=timing).columns()
        assert whole["tid"].tolist() == found["tid"].tolist()


def test_blocks_and_branches_have_their_threads(recorded: Path, machine: Machine) -> None:
    with Trace(recorded) as trace:
        (stream,) = trace.streams
        at = 0
        for rows in stream.blocks():
            for tid, count in zip(rows.more["tid"].tolist(), rows.instructions, strict=True):
                assert {each for each, _ in machine.ran[at : at + int(count)]} == {tid}
                at += int(count)
        assert at == len(machine.ran)
        places = iter(machine.ran)
        for part in stream.branches():
            for tid, source in zip(part.more["tid"].tolist(), part.source.tolist(), strict=True):
                assert any((tid, source) == place for place in places)


def test_a_listing_has_threads_and_their_names(
    recorded: Path, machine: Machine, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["instructions", str(recorded), "--fields", "tid,comm,ip,sym"]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert [(int(line[0]), int(line[2], 16)) for line in lines] == machine.ran
    assert {(line[0], line[1]) for line in lines} == {("100", "made-one"), ("200", "made-two")}
    assert main(["instructions", str(recorded), "--fields", "tid,ip,asm"]) == 0
    listed = [line.split(maxsplit=2) for line in capsys.readouterr().out.splitlines()]
    assert [(int(line[0]), int(line[1], 16)) for line in listed] == machine.ran
    assert "jmp short 0x40100b" not in [line[2] for line in listed if line[0] == "100"]


def test_without_names_it_is_told_later(recorded: Path, machine: Machine) -> None:
    """Where __switch_to is not known: at the next far transfer."""
    kcore = KernelFiles(kcore=str(recorded / "kcore_dir" / "kcore"))
    with Trace(recorded / "data", kernel=kcore) as trace:
        (stream,) = trace.streams
        found = stream.instructions().columns()
        assert found["ip"].tolist() == [ip for _, ip in machine.ran]
        pairs = zip(found["tid"].tolist(), machine.ran, strict=True)
        others = [ip for tid, (own, ip) in pairs if tid != own]
        assert others
        assert all(ip >= 1 << 63 for ip in others)


def long(machine: Machine, *, switches: int) -> Machine:
    """Two processes in turns, with an MTC or two between switches at different places."""
    for number in range(switches):
        for _ in range(number % 7 + 4):
            machine.syscall(calls="made_open" if number % 3 else None)
        one, two = machine.threads
        machine.syscall(one if machine.now is two else two)
    return machine


@pytest.mark.parametrize("isolated", [False, True])
def test_cr3_tells_whose_code_runs_where_time_is_behind(isolated: bool, tmp_path: Path) -> None:
    """Time is told seldom: after a switch user code may go on before the stream's time has come to
    that of the switch. Once it is known whose page tables are whose, CR3 says it.
    """
    machine = long(Machine(cyc=False, isolated=isolated), switches=60)
    with Trace(recording.write(machine, tmp_path / "perf.data")) as trace:
        (stream,) = trace.streams
        ips = [int(ip) for part in stream.instructions() for ip in part.ip]
        ran = [ip for _, ip in machine.ran]
        learned = len(ran) // 4
        assert ips[-(len(ran) - learned) :] == ran[learned:]
        spans = [span for span in stream.ledger() if span.is_gap]
        assert all(span.start < stream.size // 4 for span in spans)


def test_a_cr3_that_contradicts_is_in_the_ledger(tmp_path: Path) -> None:
    """Page tables that were one process's are another's: nothing says when."""
    machine = long(Machine(cyc=False), switches=20)
    one, two = machine.threads
    one.cr3, two.cr3 = two.cr3, one.cr3
    machine = long(machine, switches=6)
    with Trace(recording.write(machine, tmp_path / "perf.data")) as trace:
        (stream,) = trace.streams
        stream.counts()
        told = [span.error for span in stream.ledger()]
        assert any("another process's than the one that has the processor" in each for each in told)


def test_rows_have_threads_and_names(
    recorded: Path, machine: Machine, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["blocks", str(recorded)]) == 0
    at = 0
    for line in capsys.readouterr().out.splitlines():
        tid, start, name, count = line.split()[:4]
        assert machine.ran[at] == (int(tid), int(start, 16))
        assert name != "-" or int(start, 16) < 1 << 63
        at += int(count)
    assert at == len(machine.ran)
