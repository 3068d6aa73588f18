"""What the commands tell of kernel code."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kernel import recording
from kernel.machine import Machine
from rtit.cli.main import main
from rtit.trace import Trace


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    machine = Machine()
    machine.syscall(calls="made_open")
    machine.syscall()
    return recording.write(machine, tmp_path_factory.mktemp("made") / "perf.data")


def told(capsys: pytest.CaptureFixture[str], code: int, *words: str) -> str:
    assert main(list(words)) == code
    return capsys.readouterr().out


def test_names_in_a_listing(recorded: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = told(capsys, 0, "instructions", str(recorded), "--fields", "sym,asm")
    calls = [line.split()[0] for line in text.splitlines() if line.split()[1] == "call"]
    assert calls[:3] == ["entry_SYSCALL_64+0x4", "do_syscall_64+0x17", "made_open+0x6"]


def test_more_fields(recorded: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Those that tables make are of kernel code, too."""
    text = told(capsys, 0, "instructions", str(recorded), "--fields", "ip,insn,dso,sym")
    lines = [line.split() for line in text.splitlines()]
    (entry,) = {tuple(line[1:]) for line in lines if line[-1] == "entry_SYSCALL_64"}
    assert entry == ("90", "[kernel.kallsyms]_text", "entry_SYSCALL_64")
    (module,) = {tuple(line[1:]) for line in lines if line[-1] == "made_open+0x5"}
    assert module == ("90", recording.MODULE_PATH, "made_open+0x5")


def test_functions_by_name(recorded: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("instructions", str(recorded), "--function", "helper", "--fields", "sym")
    assert told(capsys, 0, *words).split() == ["helper", "helper+0x2"] * 2
    report = told(capsys, 0, "report", str(recorded))
    assert "helper ([kernel.kallsyms]_text)" in report
    assert "made_open (made.ko)" in report


def test_info_names_what_is_missing(recorded: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "code: 3 of 3 files are known" in told(capsys, 0, "info", str(recorded))
    alone = str(recorded / "data")
    text = told(capsys, 3, "info", alone)
    assert "[kernel.kallsyms]_text (build id not known): the kernel's code is not known" in text
    assert "record with perf record --kcore" in text
    kcore = str(recorded / "kcore_dir" / "kcore")
    found = json.loads(told(capsys, 0, "info", "--json", alone, "--kcore", kcore))
    assert found["hints"] == []


def test_counts_for_other_tools(recorded: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """They are of binaries; what ran in the kernel is elsewhere."""
    for kind in ("bolt", "perf", "callgrind"):
        assert main(["profile", "--for", kind, "-o", f"{recorded}.{kind}", str(recorded)]) == 0
    capsys.readouterr()


def test_a_real_kernel_is_named(traces: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = told(capsys, 3, "info", str(traces / "chromeos" / "cpu-wide.perf.data"))
    assert "[kernel.kallsyms]_text (build id 672679ceaecf17b7a879e56c56802afc568aa242)" in text
    assert "joydev.ko (build id f11e67f797e555534805f3bc4b4ac018ad31e71d)" in text
    with Trace(traces / "chromeos" / "cpu-wide.perf.data") as trace:
        missing = [each for each in trace.image_problems if not each.path.startswith("/usr")]
        modules = [each for each in missing if "modules" in each.path]
    assert [str(each) for each in modules] == [
        "/lib/modules: the code of 55 kernel modules is not known"
    ]
