"""`rtit stat` reads a recording or runs a program, depending on its first argument."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rtit.cli.commands import command_parser


def parse_stat(*words: str) -> Any:
    return command_parser("stat").parse_args(words)


@pytest.fixture
def folder_with_programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a recording that has the name of a program in PATH."""
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in ("list", "perf.data"):
        (programs / name).touch(0o755)
    (tmp_path / "perf.data").touch(0o644)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(programs))
    return tmp_path


@pytest.mark.parametrize(
    ("words", "program"),
    [
        (["list", "-l"], ["list", "-l"]),
        (["--json", "list", "--", "x", "--top"], ["list", "--", "x", "--top"]),
        (["--", "list", "-l"], ["list", "-l"]),
        (["--", "perf.data"], ["perf.data"]),
        (["--"], []),
        (["./bin/list"], ["./bin/list"]),
    ],
)
def test_executable_argument_begins_a_program(
    words: list[str], program: list[str], folder_with_programs: Path
) -> None:
    found = parse_stat(*words)
    assert (found.program, found.file) == (program, None)
    assert found.json == ("--json" in words)


@pytest.mark.parametrize("name", ["perf.data", "absent.data", "bin", "-"])
def test_non_executable_argument_names_a_recording(name: str, folder_with_programs: Path) -> None:
    found = parse_stat("--tid", "1", name, "--tid", "2", "--per", "dso")
    assert (found.program, found.file) == (None, name)
    assert (found.tid, found.per) == (["1", "2"], "dso")


def test_no_argument_means_the_default_recording(folder_with_programs: Path) -> None:
    assert (parse_stat("--json").program, parse_stat("--json").file) == (None, None)


def test_words_after_a_recording_are_recordings_and_options(folder_with_programs: Path) -> None:
    found = parse_stat("perf.data", "--json", "more", "--top", "3", "others")
    assert found.files == ["perf.data", "more", "others"]
    assert (found.json, found.top, found.program) == (True, 3, None)
