"""Output of the commands for kernel code."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path

import pytest

from kernel import recording
from kernel.machine import Machine
from rtit.cli.main import main
from rtit.trace import Trace
from rtit.views.statistics import compute_statistics
from support.profiles import ToolRunner


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    machine = Machine()
    machine.syscall(calls="made_open")
    machine.syscall()
    return recording.write(machine, tmp_path_factory.mktemp("made") / "perf.data")


def run_command(capsys: pytest.CaptureFixture[str], code: int, *words: str) -> str:
    assert main(list(words)) == code
    return capsys.readouterr().out


def test_listing_names_kernel_functions(recorded: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = run_command(capsys, 0, "instructions", str(recorded), "--fields", "sym,asm")
    calls = [line.split()[0] for line in text.splitlines() if line.split()[1] == "call"]
    assert calls[:3] == ["entry_SYSCALL_64+0x4", "do_syscall_64+0x17", "made_open+0x6"]


def test_extra_fields_include_kernel(recorded: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Computed fields cover kernel code, too."""
    text = run_command(capsys, 0, "instructions", str(recorded), "--fields", "ip,insn,dso,sym")
    lines = [line.split() for line in text.splitlines()]
    (entry,) = {tuple(line[1:]) for line in lines if line[-1] == "entry_SYSCALL_64"}
    assert entry == ("90", "[kernel.kallsyms]_text", "entry_SYSCALL_64")
    (module,) = {tuple(line[1:]) for line in lines if line[-1] == "made_open+0x5"}
    assert module == ("90", recording.MODULE_PATH, "made_open+0x5")


def test_functions_are_selected_by_name(recorded: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("instructions", str(recorded), "--function", "helper", "--fields", "sym")
    assert run_command(capsys, 0, *words).split() == ["helper", "helper+0x2"] * 2
    report = run_command(capsys, 0, "report", str(recorded))
    assert "helper ([kernel.kallsyms]_text)" in report
    assert "made_open (made.ko)" in report


def test_diff_finds_an_additional_system_call_in_the_kernel(
    recorded: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    machine = Machine()
    machine.syscall()
    machine.syscall()
    other = recording.write(machine, tmp_path / "perf.data")
    assert "identical" in run_command(capsys, 0, "diff", str(recorded), str(recorded))
    assert "made_open" in run_command(capsys, 1, "diff", str(recorded), str(other))


def test_info_reports_missing_kernel_code(
    recorded: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "code: 3 of 3 files are known" in run_command(capsys, 0, "info", str(recorded))
    alone = str(recorded / "data")
    text = run_command(capsys, 3, "info", alone)
    assert "[kernel.kallsyms]_text (build id not known): the kernel's code is not known" in text
    assert "record with perf record --kcore" in text
    kcore = str(recorded / "kcore_dir" / "kcore")
    found = json.loads(run_command(capsys, 0, "info", "--json", alone, "--kcore", kcore))
    assert found["hints"] == []


def function_counts(recorded: Path) -> dict[str, int]:
    """Return instructions by function and file from an independent count."""
    with Trace(recorded) as trace:
        found = compute_statistics(trace, trace.streams).functions
    return {f"{name} ({path.rpartition('/')[2]})": count for (name, path), count in found.items()}


def test_function_counts_include_kernel(recorded: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Counts include functions of the kernel and of its modules."""
    wanted = function_counts(recorded)
    assert wanted["helper ([kernel.kallsyms]_text)"] == 4
    found = json.loads(run_command(capsys, 0, "stat", "--json", str(recorded)))
    assert found["functions"] == wanted
    assert found["counts"]["instructions"] == sum(wanted.values())
    assert found["missing"] == []


def test_profiles_include_or_report_kernel_code(
    recorded: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Formats for one binary omit the kernel and say so; formats with names include it."""
    wanted = function_counts(recorded)
    kernel = sum(count for name, count in wanted.items() if "one)" not in name)
    for kind in ("bolt", "autofdo", "llvm", "perf"):
        assert main(["profile", "--for", kind, "-o", f"{recorded}.{kind}", str(recorded)]) == 0
        assert f"missing: {kernel} instructions ran in the kernel" in capsys.readouterr().err
    for kind in ("callgrind", "pprof"):
        assert main(["profile", "--for", kind, "-o", f"{recorded}.{kind}", str(recorded)]) == 0
        said = capsys.readouterr().err
        assert "(100.0%)" in said
        assert "missing" not in said
    own = functions_of(Path(f"{recorded}.callgrind").read_text())
    assert {name: count for name, count in own.items() if "???" not in name} == {
        f"{name} ({file.removesuffix(')')})": count
        for each, count in wanted.items()
        for name, _, file in [each.partition(" (")]
    }
    assert sum(own.values()) == sum(wanted.values())


def functions_of(text: str) -> dict[str, int]:
    """Return the self instructions of each function in a callgrind profile.

    By the format's definition the line after `calls=` does not count for the function itself.
    """
    named: dict[tuple[str, str], str] = {}
    found: Counter[str] = Counter()
    file = function = ""
    called = False
    for line in text.splitlines():
        key, _, value = line.partition("=")
        if key in ("ob", "fn", "cob", "cfn"):
            number, _, name = value.partition(" ")
            name = named.setdefault((key[-2:], number), name)
            file, function = (name, function) if key == "ob" else (file, function)
            function = name if key == "fn" else function
        elif key == "calls":
            called = True
        elif line.startswith("0x"):
            if not called:
                found[f"{function} ({Path(file).name})"] += int(line.split()[2])
            called = False
    return dict(found)


def test_stacks_include_kernel(recorded: Path, run_tool: ToolRunner) -> None:
    wanted, data = function_counts(recorded), f"{recorded}.pprof"
    assert main(["profile", "--for", "pprof", "-o", data, str(recorded)]) == 0
    top = run_tool("go", "tool", "pprof", "-top", "-nodecount=1000", "-nodefraction=0", data)
    assert f"of {sum(wanted.values())} total" in top
    # Two instructions; it is called once, and jumped to once.
    assert re.search(r"^ +4 .* helper$", top, re.MULTILINE)
    stacks = run_tool("go", "tool", "pprof", "-traces", "-focus=^helper$", data)
    assert re.search(r" helper\n +made_open\n +do_syscall_64\n +entry_SYSCALL_64\n", stacks)


def test_info_lists_kernel_and_modules_of_a_hardware_recording(
    traces: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = run_command(capsys, 3, "info", str(traces / "chromeos" / "cpu-wide.perf.data"))
    assert "[kernel.kallsyms]_text (build id 672679ceaecf17b7a879e56c56802afc568aa242)" in text
    assert "joydev.ko (build id f11e67f797e555534805f3bc4b4ac018ad31e71d)" in text
    with Trace(traces / "chromeos" / "cpu-wide.perf.data") as trace:
        missing = [each for each in trace.image_problems if not each.path.startswith("/usr")]
        modules = [each for each in missing if "modules" in each.path]
    assert [str(each) for each in modules] == [
        "/lib/modules: the code of 55 kernel modules is not known"
    ]
