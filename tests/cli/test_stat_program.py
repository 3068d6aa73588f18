"""Whether `rtit stat` reads a recording or runs a program."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rtit.cli.commands import command_parser


def parsed(*words: str) -> Any:
    return command_parser("stat").parse_args(words)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with a recording named as a program of PATH, and PATH with this program."""
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
def test_an_executable_word_begins_a_program(
    words: list[str], program: list[str], here: Path
) -> None:
    found = parsed(*words)
    assert (found.program, found.file) == (program, None)
    assert found.json == ("--json" in words)


@pytest.mark.parametrize("name", ["perf.data", "absent.data", "bin", "-"])
def test_other_words_name_a_recording(name: str, here: Path) -> None:
    found = parsed("--tid", "1", name, "--tid", "2", "--per", "dso")
    assert (found.program, found.file) == (None, name)
    assert (found.tid, found.per) == (["1", "2"], "dso")


def test_no_word_is_the_default_recording(here: Path) -> None:
    assert (parsed("--json").program, parsed("--json").file) == (None, None)


def test_a_word_after_a_recording_is_an_error(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        parsed("perf.data", "more")
    assert "unexpected argument 'more'" in capsys.readouterr().err
