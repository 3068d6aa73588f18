"""The first lines of `rtit report` state what limits the figures below them."""

from __future__ import annotations

import json
import re
from pathlib import Path, PurePath

import pytest

from calls.instrumented import recorded
from rtit.cli.main import main
from rtit.packets import encode
from rtit.perfdata import Writer
from rtit.trace import FunctionTotals, Trace
from support.streams import SYNC

PACKETS = SYNC + encode("TNT", bits="TN") + encode("TIP.PGD", ip_bytes=0, payload=None)


@pytest.fixture
def recording_without_program(tmp_path: Path) -> Path:
    """A recording of a program that does not exist."""
    path = tmp_path / "perf.data"
    with Writer(path, config=0x2601, cpuid="GenuineIntel,6,94,3") as writer:
        writer.comm(7, 7, 1, "program")
        writer.mmap2(7, 7, 1, 0x1000, 0x1000, 0, 5, 2, 0, 0, 0, 0, "/absent/program")
        writer.auxtrace(7, 7, PACKETS, None, 1)
    return path


def test_missing_code_is_the_first_line_with_its_share_and_the_remedy(
    recording_without_program: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["report", str(recording_without_program)]) == 3
    first, second, *rest = capsys.readouterr().out.splitlines()
    why = r"the code of /absent/program is missing \(file not found\)"
    share = re.fullmatch(rf"warning: (\d+\.\d%) of the trace was not decoded: {why}", first)
    assert share
    # the ledger at the end states the rest
    exact = re.search(r"bytes exactly \((\d+\.\d%)\)", "\n".join(rest))
    assert exact
    assert float(share[1][:-1]) + float(exact[1][:-1]) == pytest.approx(100)
    command = f"rtit report --map /absent/program=PATH {recording_without_program}"
    assert second == f"  to name the file:  {command}"
    assert "image: /absent/program: the file does not exist" in rest
    assert rest[0] == str(recording_without_program)


def test_truncated_recording_is_the_first_line(
    recording_without_program: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = recording_without_program.read_bytes()
    cut = whole.index(PACKETS) + 5
    recording_without_program.write_bytes(whole[:cut])
    assert main(["report", str(recording_without_program)]) == 3
    first, second, *_ = capsys.readouterr().out.splitlines()
    why = f"the file has {cut:,} bytes, its records end at byte "
    assert first.startswith(f"warning: the recording is incomplete: {why}")
    assert second == "  rtit decodes the existing part (exit code 3)"


@pytest.mark.parametrize(
    ("sort", "column"),
    [("self", "self_instructions"), ("total", "total_instructions"), ("calls", "calls")],
)
def test_functions_are_sorted_with_self_total_and_calls(
    sort: str, column: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path, _ = recorded("unwinding.c", "qemu")
    with Trace(path) as trace:
        expected = trace.call_tree().by_function()
    assert main(["report", str(path), "--sort", sort, "--top", "1000"]) == 0
    table = capsys.readouterr().out.partition(" calls  function\n")[2].partition("\n\n")[0]
    found = {}
    for line in table.splitlines():
        own, _, total, _, calls, name = line.split(maxsplit=5)
        numbers = (int(each.replace(",", "")) for each in (calls, own, total))
        found[name] = FunctionTotals(*numbers)
    labels = {f"{name} ({PurePath(module).name})": row for (name, module), row in expected.items()}
    assert found == labels
    sorted_by = [getattr(row, column) for row in found.values()]
    assert sorted_by == sorted(sorted_by, reverse=True)
    assert main(["report", str(path), "--sort", sort, "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["calls"]
    shown = [f"{row['function']} ({PurePath(row['module']).name})" for row in rows]
    assert shown == list(found)
    assert [row[sort] for row in rows] == sorted_by


def test_functions_of_one_name_in_two_files_have_a_row_each(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The program and ld.so have a `_start`. That of ld.so continues in another function, without
    a branch.
    """
    path, _ = recorded("unwinding.c", "qemu")
    assert main(["report", str(path), "--sort", "self", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    by_address = {
        each["module"]: each["instructions"]
        for each in report["functions"]
        if each["function"] == "_start"
    }
    assert len(by_address) == 2
    rows = [each for each in report["calls"] if each["function"] == "_start"]
    by_calls = {each["module"]: each["self"] for each in rows}
    assert by_calls.keys() == by_address.keys()
    [loader] = [module for module in by_calls if Path(module).name.startswith("ld")]
    assert by_calls.pop(loader) >= by_address.pop(loader)
    assert by_calls == by_address
