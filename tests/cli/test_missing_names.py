"""The sentence about code without a name, and the names that such code has instead."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections import Counter
from pathlib import Path

import pytest

from programs.build import build
from rtit.cli.look.missing_names import describe_missing_names
from rtit.cli.main import main
from rtit.image import is_named_by_address
from rtit.trace import Trace
from support.recordings import Recorder

PYTHON, NODE = "/usr/bin/python3.11", "/usr/bin/node"


def test_few_missing_names_are_no_sentence() -> None:
    assert describe_missing_names({}) is None
    assert describe_missing_names({("f", PYTHON): 90, ("", PYTHON): 10}) is None


def test_file_with_most_missing_names_needs_its_debug_symbols() -> None:
    functions = {("f", PYTHON): 5, ("python3.11+0x4fee40", PYTHON): 70, ("", PYTHON): 5}
    assert describe_missing_names({**functions, ("", "//anon"): 20}) == (
        "95% of the instructions have no function name, most of them in /usr/bin/python3.11: "
        "install its debug symbols, or use --debuginfod"
    )


def test_jit_code_without_names_needs_an_option_of_its_compiler() -> None:
    for module in ("", "//anon"):
        found = describe_missing_names({("f", NODE): 88, ("", module): 12})
        assert found is not None
        assert found.startswith("12% of the instructions have no function name, in memory without")
        assert "node with --perf-basic-prof" in found


def test_only_file_and_address_stand_for_a_name() -> None:
    assert is_named_by_address("python3.11+0x4fee40", PYTHON)
    assert not is_named_by_address("node+0x10", PYTHON)
    assert not is_named_by_address("python3.11+0x4fee40 ", PYTHON)
    assert not is_named_by_address("main", PYTHON)


def test_calls_of_a_program_without_symbols_have_addresses(
    record: Recorder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """They are the calls of the program with symbols, under other names."""
    tool = shutil.which("strip") or pytest.skip("strip is not installed")
    program = build("recursion")
    stripped = tmp_path / "stripped"
    subprocess.run([tool, "-o", stripped, program], check=True)
    sections = subprocess.run(["readelf", "-SW", stripped], capture_output=True, check=True).stdout
    assert not re.search(rb"symtab|dynsym|eh_frame", sections)

    def totals(data: Path) -> Counter[str]:
        with Trace(data) as trace:
            tree = trace.call_tree()
        names = {node.function: f"stripped+{node.entry:#x}" for node in tree}
        return Counter({names[name]: row.calls for (name, _), row in tree.by_function().items()})

    data = record([stripped]).data
    expected = totals(record([program]).data)
    assert totals(data) == expected
    assert main(["report", str(data), "--sort", "total"]) == 0
    printed = capsys.readouterr().out
    assert all(f" {name} (stripped)\n" in printed for name in expected)
    assert f"no function name, in {stripped}: install its debug symbols, or use" in printed
    assert main(["calls", str(data), "--function", "down"]) == 2
    assert "rtit calls: no call of a function 'down'\n" in capsys.readouterr().err
