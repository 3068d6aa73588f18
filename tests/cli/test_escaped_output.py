"""Commands print printable lines of text, for any names in a recording."""

from __future__ import annotations

import ast
import io
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import rtit.cli
from rtit.cli import output
from rtit.cli.main import main
from rtit.packets import encode
from rtit.perfdata import Writer
from rtit.text_escaping import escape_control_characters
from support.streams import SYNC

UNPRINTABLE_NAME = os.fsdecode(b"a\x1b]0;b\x07\nc\r\x9b2J\xff\xe2\x80\xaed")
"""Sets a terminal title, ends a line, clears the screen, is no UTF-8, reverses the text."""
STREAM = SYNC + encode("TNT", bits="TN") + encode("TIP.PGD", ip_bytes=0, payload=None)
COMMANDS = ["packets", "instructions", "report", "events", "lint"]


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain /a/b-c.so", "plain /a/b-c.so"),
        ("größe 変", "größe 変"),
        ("a\nb\tc", r"a\nb\tc"),
        ("\x1b[31m", r"\x1b[31m"),
        ("\x9b31m\x7f", r"\x9b31m\x7f"),
        ("\u202e\u2028", r"\u202e\u2028"),
        (os.fsdecode(b"\xff"), r"\xff"),
        ("\ud800", r"\ud800"),
        ("\U000e0001", r"\U000e0001"),
    ],
)
def test_control_characters_are_shown_as_escapes(text: str, shown: str) -> None:
    assert escape_control_characters(text) == shown


@given(st.text(), st.sampled_from(["utf-8", "ascii", "latin-1", "cp1252"]))
def test_escaped_text_is_one_printable_line_in_any_encoding(text: str, encoding: str) -> None:
    shown = escape_control_characters(text, encoding)
    assert shown.isprintable()
    assert escape_control_characters(shown, encoding) == shown
    shown.encode(encoding)


@given(st.text(st.characters(min_codepoint=32, max_codepoint=126)))
def test_printable_ascii_text_is_not_escaped(text: str) -> None:
    assert escape_control_characters(text, "ascii") == text


def test_print_line_escapes_newlines() -> None:
    stream = io.StringIO()
    output.print_line("a\nb", to=stream)
    assert stream.getvalue() == "a\\nb\n"


def test_only_the_output_module_writes_to_standard_output() -> None:
    """The progress line goes to standard error."""
    folder = Path(rtit.cli.__file__).parent
    found = set()
    for path in folder.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            match node:
                case (
                    ast.Call(func=ast.Name(id="print"))
                    | ast.Attribute(
                        value=ast.Attribute(value=ast.Name(id="sys"), attr="stdout"),
                        attr="write" | "buffer",
                    )
                ):
                    found.add(path.name)
    assert found <= {"output.py"}


@pytest.fixture
def recording_with_unprintable_names(tmp_path: Path) -> Path:
    """A recording with unprintable names, of a file that does not exist."""
    path = tmp_path / "perf.data"
    with Writer(
        path,
        config=0x2601,
        cpuid="GenuineIntel,6,94,3",
        cmdline=["rtit", "record", UNPRINTABLE_NAME],
        facts={"profile": os.fsdecode(b"\x1b[2J\x9b\xff")},
    ) as writer:
        writer.comm(7, 7, 1, UNPRINTABLE_NAME)
        writer.comm(8, 8, 1, UNPRINTABLE_NAME)
        writer.fork(8, 7, 8, 7, 2)
        writer.mmap2(7, 7, 1, 0x1000, 0x1000, 0, 5, 2, 0, 0, 0, 0, "/" + UNPRINTABLE_NAME)
        writer.text_poke(7, 7, 1, 0x1000, bytes.fromhex("9074fd"))
        writer.auxtrace(7, 7, STREAM, None, 1)
        writer.auxtrace(8, 8, STREAM[1:], None, 1)
    return path


@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
@pytest.mark.parametrize("command", COMMANDS)
def test_commands_print_unprintable_names_escaped(
    command: str, encoding: str, recording_with_unprintable_names: Path, tmp_path: Path
) -> None:
    for options in ([], ["--json"]):
        if options and command == "instructions":
            continue
        ended = subprocess.run(
            [
                sys.executable,
                "-m",
                "rtit",
                command,
                *options,
                str(recording_with_unprintable_names),
            ],
            capture_output=True,
            env=os.environ | {"PYTHONIOENCODING": encoding},
            check=False,
        )
        assert b"Traceback" not in ended.stderr
        assert ended.returncode in (0, 1, 3)
        for each in (ended.stdout + ended.stderr).decode(encoding).split("\n"):
            assert each.isprintable()
        if options:
            text = ended.stdout.decode()
            for document in [text] if command == "report" else text.splitlines():
                json.loads(document)


@pytest.mark.parametrize("to", ["-", "counts"])
def test_stat_writes_unprintable_names_escaped(
    to: str, recording_with_unprintable_names: Path, tmp_path: Path
) -> None:
    command = [
        sys.executable,
        "-m",
        "rtit",
        "stat",
        "--per",
        "thread",
        "-o",
        to,
        str(recording_with_unprintable_names),
    ]
    ended = subprocess.run(command, capture_output=True, cwd=tmp_path, check=False)
    text = ended.stdout if to == "-" else (tmp_path / to).read_bytes()
    assert escape_control_characters(UNPRINTABLE_NAME) in text.decode()
    assert all(each.isprintable() for each in text.decode().split("\n"))


def test_errors_print_arguments_escaped(capsys: pytest.CaptureFixture[str]) -> None:
    for words in (
        ["packets", UNPRINTABLE_NAME],
        ["packets", "--x" + UNPRINTABLE_NAME],
        [UNPRINTABLE_NAME],
        ["msr", UNPRINTABLE_NAME],
        ["report", "--map", UNPRINTABLE_NAME],
        ["scenario", UNPRINTABLE_NAME],
        ["cpuid", "--profile", UNPRINTABLE_NAME],
        ["record", "--", "/" + UNPRINTABLE_NAME],
        ["packets", "--tid", UNPRINTABLE_NAME],
    ):
        with suppress(SystemExit):
            assert main(words)
        said = capsys.readouterr()
        assert all(each.isprintable() for each in (said.out + said.err).split("\n")), words


def test_full_standard_output_is_an_error(recording_with_unprintable_names: Path) -> None:
    with Path("/dev/full").open("wb") as full:
        ended = subprocess.run(
            [sys.executable, "-m", "rtit", "report", str(recording_with_unprintable_names)],
            stdout=full,
            stderr=subprocess.PIPE,
            check=False,
        )
    assert ended.returncode == 1
    assert ended.stderr == b"rtit report: No space left on device\n"


class NonListCollection:
    """A collection that is not a list."""

    def __init__(self, *items: object) -> None:
        self.items = items

    def __len__(self) -> int:
        return len(self.items)

    def __iter__(self) -> Iterator[object]:
        return iter(self.items)

    def __contains__(self, item: object) -> bool:
        return item in self.items


@pytest.mark.parametrize("items", [(), (1,), ("\udc80", None, {"b": []})])
def test_json_writes_any_collection_as_a_list(
    items: tuple[object, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    output.write_json({"a": NonListCollection(*items), "c": [NonListCollection(*items)]}, indent=2)
    expected = json.dumps({"a": list(items), "c": [list(items)]}, indent=2)
    assert capsys.readouterr().out == expected + "\n"
