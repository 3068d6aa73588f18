"""File names are bytes: recordings and results do not depend on the locale."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from html import escape
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rtit import Trace
from rtit.errors import UnsupportedError
from rtit.gdb.debugger import find_gdb
from rtit.text_escaping import escape_control_characters, format_json, name_to_text, text_to_name
from support.recordings import RTIT, require_backend

ASCII = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
UTF8 = {"LC_ALL": "C.UTF-8"}
LOCALES = (ASCII, UTF8)
PROGRAM = """
int climb(int n) __asm__("NAME");
int climb(int n) { return n < 2 ? n : climb(n - 1) + 1; }
int main(int count, char **words) { return climb(count + 3) & 0; }
"""
PRINTING_COMMANDS = (
    *("report", "info", "info --json", "events", "edges --json", "packets --json", "diff {data}"),
    *("stat --per dso", "stat --per function", "stat --json"),
    *("instructions --function {function}@{program} --fields tid,comm,dso,sym,asm",),
)
WRITING_COMMANDS = (
    *("stat --json", "profile --for callgrind", "profile --for pprof", "profile --for perf"),
    *("profile --for bolt --dso {program}", "coverage --dso {program}"),
    *(f"coverage --format {each}" for each in ("html", "lcov", "cobertura", "drcov", "afl")),
)


def run_in_locale(locale: dict[str, str], *words: str | bytes) -> bytes:
    environment = {**os.environ, **locale}
    ended = subprocess.run([*RTIT, *words], env=environment, capture_output=True, check=False)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout + ended.stderr


SEVERAL_COMMANDS = """
import os, sys
import rtit.trace  # imported once, for all commands
from rtit.cli.main import main

words = sys.argv[1:]
while words:
    end = words.index("--then")
    sys.argv[1:] = words[:end]
    del words[: end + 1]
    pid = os.fork()
    if not pid:
        sys.exit(main())
    _, status = os.waitpid(pid, 0)
    if status:
        sys.exit(f"{sys.argv}: {status}")
    print("--then", flush=True)
"""
"""Runs commands, each in a process of its own, and prints a line after each."""


def run_several_in_locale(
    locale: dict[str, str], commands: Sequence[Sequence[bytes]]
) -> list[bytes]:
    """Return the output of each command."""
    words = [word for command in commands for word in (*command, b"--then")]
    ended = subprocess.run(
        [sys.executable, "-c", SEVERAL_COMMANDS, *words],
        env={**os.environ, **locale},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout
    *outputs, rest = ended.stdout.split(b"--then\n")
    assert (len(outputs), rest) == (len(commands), b"")
    return outputs


def run_in_ascii(*words: str) -> str:
    return run_in_locale(ASCII, *words).decode("ascii")


class RecordedProgram(NamedTuple):
    """A program, its source and one function, all of one name; and a recording of it."""

    program: Path
    source: Path
    function: str
    data: Path


UTF8_NAME, NOT_TEXT = "prög€", os.fsdecode(b"pr\xffg")


@pytest.fixture(
    params=[
        pytest.param(UTF8_NAME + NOT_TEXT, id="both"),
        pytest.param(UTF8_NAME, id="utf-8", marks=pytest.mark.slow),
        pytest.param(NOT_TEXT, id="bytes", marks=pytest.mark.slow),
    ]
)
def recorded_program(request: pytest.FixtureRequest, tmp_path: Path) -> RecordedProgram:
    require_backend("qemu")
    name = request.param
    folder = tmp_path / name
    folder.mkdir()
    source, program, data = folder / f"{name}.c", folder / name, tmp_path / "data"
    source.write_bytes(PROGRAM.encode().replace(b"NAME", os.fsencode(name)))
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler")
    subprocess.run([compiler, "-g", "-O1", "-o", program, source], check=True)
    run_in_locale(ASCII, "record", "--backend", "qemu", "-o", str(data), "--", str(program))
    # function names are text
    return RecordedProgram(program, source, os.fsencode(name).decode(errors="replace"), data)


@pytest.mark.parametrize("backend", ["ptrace", "qemu"])
def test_recording_keeps_names_that_are_not_ascii(
    backend: str, program: Callable[[str], Path], tmp_path: Path
) -> None:
    require_backend(backend)
    for name in (UTF8_NAME, NOT_TEXT):
        path, data = tmp_path / name, str(tmp_path / "data")
        shutil.copy(program("recursion"), path)
        run_in_ascii("record", "--backend", backend, "-o", data, "--", str(path))
        with Trace(data) as trace:
            assert list(trace.comms.values()) == [name]
            (stream,) = trace.streams
            assert str(path) in {each.path for each in trace.images.mappings(stream.tid)}
            assert trace.image_problems == []
        assert f"({expected_text(name, 'ascii')})" in run_in_ascii("report", data)
        assert f"  {expected_text(name, 'ascii')}\n" in run_in_ascii(
            "stat", "--per", "dso", "--", str(path)
        )


@pytest.mark.slow
def test_every_command_gives_the_same_in_any_locale(recorded_program: RecordedProgram) -> None:
    program, source, function, data = recorded_program
    given = {"program": program.name, "function": function, "data": str(data)}

    def words(command: str) -> list[bytes]:
        return [os.fsencode(word.format(**given)) for word in command.split()]

    path = os.fsencode(data)
    commands = [[*words(command), path] for command in PRINTING_COMMANDS]
    printed = [run_several_in_locale(each, commands) for each in LOCALES]
    for command, ascii_, utf8 in zip(PRINTING_COMMANDS, *printed, strict=True):
        assert ascii_ == utf8.decode().encode("ascii", "backslashreplace"), command
    outputs = [f"{data}.{number}" for number in range(len(WRITING_COMMANDS))]
    commands = [
        [*words(command), b"-o", os.fsencode(output), path]
        for command, output in zip(WRITING_COMMANDS, outputs, strict=True)
    ]
    written = []
    for each in LOCALES:
        run_several_in_locale(each, commands)
        written.append([Path(output).read_bytes() for output in outputs])
    found = dict(zip(WRITING_COMMANDS, written[0], strict=True))
    assert dict(zip(WRITING_COMMANDS, written[1], strict=True)) == found
    named = expected_text(str(source)).encode()
    assert b"SF:" + named + b"\nFN:3," + function.encode() in found["coverage --format lcov"]
    lines = escape(expected_text(PROGRAM.replace("NAME", function))).split("\n")
    assert all(line.encode() in found["coverage --format html"] for line in lines)
    assert b" 2/2       100.0% " in found["coverage --dso {program}"].split(b"source\n")[1]


@pytest.mark.slow
def test_pack_is_the_same_in_any_locale(recorded_program: RecordedProgram) -> None:
    data = recorded_program.data
    asked = [(locale, command) for locale in LOCALES for command in ("coverage", "instructions")]
    expected = [run_in_locale(locale, command, str(data)) for locale, command in asked]
    for number, locale in enumerate(LOCALES):
        run_in_locale(locale, "pack", "-o", f"{data}.{number}", str(data))
    recorded_program.program.unlink()
    for number in range(len(LOCALES)):
        assert [
            run_in_locale(locale, command, f"{data}.{number}") for locale, command in asked
        ] == expected


def test_gdb_gets_the_bytes_of_the_program_name(recorded_program: RecordedProgram) -> None:
    try:
        if not find_gdb().has_libipt:
            pytest.skip("gdb was built without libipt")
    except UnsupportedError as error:
        pytest.skip(str(error))
    answer = run_in_locale(
        ASCII, "gdb", "--batch", "--ex", "info inferiors", str(recorded_program.data)
    )
    assert os.fsencode(recorded_program.program) in answer


@given(st.binary())
def test_names_are_text_where_their_bytes_are(name: bytes) -> None:
    for encoding in ("ascii", "utf-8"):  # as os.fsdecode has it in the one locale and the other
        assert name_to_text(name.decode(encoding, "surrogateescape")) == os.fsdecode(name)
    assert os.fsencode(text_to_name(name_to_text(os.fsdecode(name)))) == name


@given(st.recursive(st.text(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)))
def test_json_text_parses_as_that_of_json_dumps(value: object) -> None:
    for indent in (None, 1):
        assert json.loads(format_json(value, indent)) == json.loads(json.dumps(value))


def test_json_is_printable_whatever_comes_with_it() -> None:
    """The printed text is the original text."""
    text = format_json(["\x7f", "\udcff"])
    assert escape_control_characters(text) == text
    assert json.loads(text) == ["\x7f", "\udcff"]


def expected_text(name: str, encoding: str = "utf-8") -> str:
    """Return the name with bytes that are no text, and characters outside the encoding,
    escaped.
    """
    text = "".join(f"\\x{ord(c) & 0xFF:02x}" if "\udc80" <= c <= "\udcff" else c for c in name)
    return text.encode(encoding, "backslashreplace").decode(encoding)
