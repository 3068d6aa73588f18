"""Help: the list of commands, the options of each, and the pages of `rtit help`."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from argparse import SUPPRESS
from pathlib import Path

import pytest

from rtit.cli import help_pages
from rtit.cli.commands import COMMANDS, GROUPS, command_parser
from rtit.cli.main import main
from rtit.views.field_names import DETAILED_FIELDS, NATIVE_FIELDS

EXTRA_COMMANDS = ("help", "completion")


@pytest.fixture(autouse=True)
def _wide_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only help itself limits the width."""
    monkeypatch.setenv("COLUMNS", "200")


def help_text(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    try:
        code = main(words)
    except SystemExit as ended:
        code = int(ended.code or 0)
    said = capsys.readouterr()
    assert (code, said.err) == (0, "")
    return said.out


def test_overview_lists_all_commands_in_groups(capsys: pytest.CaptureFixture[str]) -> None:
    text = help_text(capsys, "--help")
    assert text == help_text(capsys, "help") == help_text(capsys, "-h")
    listed = re.findall(r"^  ([a-z]+) {2,}\S", text, re.MULTILINE)
    assert listed == [*COMMANDS, *EXTRA_COMMANDS]
    assert all(f"\n{title}:\n" in text for title in GROUPS)
    assert max(map(len, text.splitlines())) <= 100


def test_no_command_prints_the_overview_and_exits_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    assert capsys.readouterr().out == help_pages.format_overview_page() + "\n"


@pytest.mark.parametrize("command", [*COMMANDS, "completion"])
@pytest.mark.parametrize("option", ["--help", "--help-all"])
def test_help_of_a_command_fits_100_columns_and_has_examples(
    command: str, option: str, capsys: pytest.CaptureFixture[str]
) -> None:
    text = help_text(capsys, command, option)
    assert text.startswith(f"usage: rtit {command} [options]")
    assert max(map(len, text.splitlines())) <= 100
    assert re.search(rf"^Examples?:\n  rtit {command}\b", text, re.MULTILINE)
    if option == "--help":
        assert help_text(capsys, "help", command) == text


@pytest.mark.parametrize("command", COMMANDS)
def test_rare_options_appear_in_help_all_only(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    short, full = help_text(capsys, command, "--help"), help_text(capsys, command, "--help-all")
    parser = command_parser(command)
    for action in parser._actions:
        names = action.option_strings
        assert all(name in full for name in names) or action.help == SUPPRESS, names
    assert len(short) <= len(full)
    assert ("--help-all" in short) == (short != full)
    if "--raw" in full and command not in ("convert", "scenario"):
        assert not re.search(r"^  --(raw|cpu-model)", short, re.MULTILINE)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_option_in_help_all_is_parsed(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    text = help_text(capsys, command, "--help-all")
    listed = re.findall(r"^  (-.*?)(?:  |$)", text, re.MULTILINE)
    names = {name for line in listed for name in re.findall(r"(?<!\S)--?[a-z][a-z0-9-]*", line)}
    assert {"-h", "--help"} <= names
    parser = command_parser(command)
    assert names - set(parser.option_names()) == set()
    for action in parser._actions:
        if not action.option_strings or "--help" in action.option_strings[-1]:
            continue
        value = next(iter(action.choices)) if action.choices else "1"
        words = [action.option_strings[-1], *([] if action.nargs == 0 else [value])]
        for other in parser._actions:
            if other.required and other is not action:
                choice = next(iter(other.choices)) if other.choices else "1"
                words += [*other.option_strings[:1], choice]
        parser.parse_args(words)


def test_help_explains_every_output_field(capsys: pytest.CaptureFixture[str]) -> None:
    assert tuple(help_pages.FIELDS) == (*NATIVE_FIELDS, *DETAILED_FIELDS)
    text = help_text(capsys, "help", "fields")
    assert all(re.search(rf"^  {name} ", text, re.MULTILINE) for name in help_pages.FIELDS)


def test_help_page_lists_exit_codes(capsys: pytest.CaptureFixture[str]) -> None:
    assert "3  incomplete" in help_text(capsys, "help", "exit-codes")


def test_unknown_help_page_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["help", "exit-code"]) == 2
    assert "no page 'exit-code'; did you mean 'exit-codes'?" in capsys.readouterr().err


def test_version_option_prints_the_version(capsys: pytest.CaptureFixture[str]) -> None:
    text = help_text(capsys, "--version")
    assert re.fullmatch(r"rtit \d+\.\d+\.\d+\n", text)
    assert help_text(capsys, "-V") == text


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_shell_accepts_its_completion_script(shell: str, tmp_path: Path) -> None:
    pytest.importorskip("shtab")
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    words = [sys.executable, "-m", "rtit", "completion", shell]
    script = subprocess.run(words, capture_output=True, check=True).stdout
    assert b"--max-edges" in script
    path = tmp_path / "script"
    path.write_bytes(script)
    ended = subprocess.run([shell, "-n", path], capture_output=True, check=False)
    assert (ended.returncode, ended.stderr) == (0, b"")


def test_completion_without_shtab_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "shtab", None)
    assert main(["completion", "bash"]) == 1
    assert "pip install 'rtit[completion]'" in capsys.readouterr().err
