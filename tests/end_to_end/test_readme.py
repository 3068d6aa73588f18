"""Every command of the README runs."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from inspect import isfunction
from pathlib import Path

import pytest

import rtit
from rtit import Decoder, Image, Trace
from rtit.cli.main import VERBS, main
from rtit.perfdata import TimeConversion
from rtit.trace import Batch, Counts, Ledger, Stream, Table
from support.doc_commands import README, ROOT, python_blocks, readme_commands, run_readme_commands

PAGES = ("README.md", "docs/decoding.md")
WITHOUT = {
    # what other parts of rtit ask of them
    *("Trace.of", "Trace.guest_processes", "Ledger.of", "Counts.of", "Image.native"),
    *("Stream.native", "Stream.others", "Stream.has_several", "Stream.last_turn"),
    *("Stream.has_one_process", "Stream.edges_by_process"),
    *("Stream.timed_runs", "Stream.places_of"),
    *("Batch.joined", "Batch.with_columns", "Batch.without"),
}


def test_the_readme_has_commands() -> None:
    assert len(readme_commands()) > 5
    assert len(python_blocks()) == 4


def test_commands(tmp_path: Path) -> None:
    if sys.platform != "linux":
        pytest.skip("recording needs Linux")
    (tmp_path / "bin").mkdir()
    rtit = tmp_path / "bin" / "rtit"
    rtit.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m rtit "$@"\n')
    rtit.chmod(0o755)
    run_readme_commands(tmp_path, rtit.parent)


CALLS = """
import sys as _sys
def _seen(frame, event, _argument, known=set()):
    code = frame.f_code
    if event == "call" and code not in known and "/rtit/" in code.co_filename:
        known.add(code)
        open("calls", "a").write(code.co_qualname + "\\n")
_sys.setprofile(_seen)
"""
"""What comes before a program, so that it is known afterwards which functions of ours it called."""


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """All programs have run, and called these functions, by their qualified names."""
    if sys.platform != "linux":
        pytest.skip("recording needs Linux")
    folder = tmp_path_factory.mktemp("programs")
    main(["scenario", "--raw", str(folder / "pt.bin"), "table_33_10_begin"])
    (folder / "code.bin").write_bytes(b"\x90")
    shutil.copy("/bin/true", folder / "program")
    for program in (each for page in PAGES for each in python_blocks(ROOT / page)):
        ended = subprocess.run(
            [sys.executable, "-c", CALLS + program],
            cwd=folder,
            capture_output=True,
            text=True,
            check=False,
        )
        assert ended.returncode == 0, ended.stderr
        assert ended.stdout
    return set((folder / "calls").read_text().split())


def public(of: type) -> set[str]:
    """Qualified names of the methods and properties that a class has of its own."""
    functions = {
        name: getattr(member, "func", getattr(member, "fget", getattr(member, "__func__", member)))
        for name, member in vars(of).items()
        if not name.startswith("_")
    }
    return {each.__qualname__ for each in functions.values() if isfunction(each)}


@pytest.mark.parametrize(
    "of", [Trace, Stream, Table, Batch, Decoder, Image, Ledger, Counts, TimeConversion]
)
def test_each_method_has_an_example(of: type, ran: set[str]) -> None:
    names = public(of)
    assert names
    assert names - ran - WITHOUT == set()


def test_each_name_has_an_example(ran: set[str]) -> None:
    # a test of its own runs those of counting, which need QEMU
    pages = (*PAGES, "docs/counting.md")
    shown = "".join(program for page in pages for program in python_blocks(ROOT / page))
    words = "\n".join(readme_commands())
    for name in set(rtit.__all__) - {"__version__"}:
        assert re.search(rf"\brtit\.{name}\b", shown), name
    for verb in set(VERBS) - {"record"}:
        assert re.search(rf"\brtit {verb}\b", words), verb


def test_make_targets_exist() -> None:
    makefile = (ROOT / "Makefile").read_text()
    targets = [
        word.split()[1] for word in README.read_text().splitlines() if word.startswith("    make ")
    ]
    assert targets
    for target in targets:
        assert f"\n{target}:" in makefile
