"""Names of files are bytes: what a locale makes of them does not show in a recording, nor in what
is written of it.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable
from html import escape
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rtit import Trace
from rtit.errors import UnsupportedError
from rtit.gdb.debugger import find_gdb
from rtit.readable import escape_control_characters, format_json, name_to_text, text_to_name
from support.recordings import RTIT, require_backend

ASCII = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
UTF8 = {"LC_ALL": "C.UTF-8"}
LOCALES = (ASCII, UTF8)
PROGRAM = """
int climb(int n) __asm__("NAME");
int climb(int n) { return n < 2 ? n : climb(n - 1) + 1; }
int main(int count, char **words) { return climb(count + 3) & 0; }
"""
VERBS = (
    *("report", "info", "info --json", "events", "edges --json", "packets --json", "diff {data}"),
    *("stat --per dso", "stat --per function", "stat --json"),
    *("instructions --function {function}@{program} --fields tid,comm,dso,sym,asm",),
)
FILES = (
    *("stat --json", "profile --for callgrind", "profile --for pprof", "profile --for perf"),
    *("profile --for bolt --dso {program}", "coverage --dso {program}"),
    *(f"coverage --format {each}" for each in ("html", "lcov", "cobertura", "drcov", "afl")),
)


def told(locale: dict[str, str], *words: str | bytes) -> bytes:
    environment = {**os.environ, **locale}
    ended = subprocess.run([*RTIT, *words], env=environment, capture_output=True, check=False)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout + ended.stderr


def run(*words: str) -> str:
    return told(ASCII, *words).decode("ascii")


class Recorded(NamedTuple):
    """A program, its source and a function in it, all of one name; and a recording of it."""

    program: Path
    source: Path
    function: str
    data: Path


# in UTF-8 and in nothing
@pytest.fixture(params=["prög€", os.fsdecode(b"pr\xffg")], ids=["utf-8", "bytes"])
def recorded(request: pytest.FixtureRequest, tmp_path: Path) -> Recorded:
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
    told(ASCII, "record", "--backend", "qemu", "-o", str(data), "--", str(program))
    # a name of a function is text
    return Recorded(program, source, os.fsencode(name).decode(errors="replace"), data)


@pytest.mark.parametrize("backend", ["ptrace", "qemu"])
def test_names_that_are_not_ascii(
    backend: str, program: Callable[[str], Path], tmp_path: Path
) -> None:
    require_backend(backend)
    # in UTF-8 and in nothing
    for name in ("prög€", os.fsdecode(b"pr\xffg")):
        path, data = tmp_path / name, str(tmp_path / "data")
        shutil.copy(program("recursion"), path)
        run("record", "--backend", backend, "-o", data, "--", str(path))
        with Trace(data) as trace:
            assert list(trace.comms.values()) == [name]
            (stream,) = trace.streams
            assert str(path) in {each.path for each in trace.images.mappings(stream.tid)}
            assert trace.image_problems == []
        assert f"({shown(name, 'ascii')})" in run("report", data)
        assert f"  {shown(name, 'ascii')}\n" in run("stat", "--per", "dso", "--", str(path))


def test_every_verb_tells_the_same_in_any_locale(recorded: Recorded) -> None:
    program, source, function, data = recorded
    given = {"program": program.name, "function": function, "data": str(data)}
    for verb in VERBS:
        words = [os.fsencode(word.format(**given)) for word in verb.split()]
        ascii_, utf8 = (told(each, *words, str(data)) for each in LOCALES)
        assert ascii_ == utf8.decode().encode("ascii", "backslashreplace"), verb
    found: dict[str, bytes] = {}
    for verb in FILES:
        words = [os.fsencode(word.format(**given)) for word in verb.split()]
        for each in LOCALES:
            told(each, *words, "-o", f"{data}.out", str(data))
            content = Path(f"{data}.out").read_bytes()
            assert found.setdefault(verb, content) == content, verb
    named = shown(str(source)).encode()
    assert b"SF:" + named + b"\nFN:3," + function.encode() in found["coverage --format lcov"]
    lines = escape(shown(PROGRAM.replace("NAME", function))).split("\n")
    assert all(line.encode() in found["coverage --format html"] for line in lines)
    assert b" 2/2       100.0% " in found["coverage --dso {program}"].split(b"source\n")[1]


def test_a_pack_is_that_of_any_locale(recorded: Recorded) -> None:
    data = recorded.data
    asked = [(locale, verb) for locale in LOCALES for verb in ("coverage", "instructions")]
    expected = [told(locale, verb, str(data)) for locale, verb in asked]
    for number, locale in enumerate(LOCALES):
        told(locale, "pack", "-o", f"{data}.{number}", str(data))
    recorded.program.unlink()
    for number in range(len(LOCALES)):
        assert [told(locale, verb, f"{data}.{number}") for locale, verb in asked] == expected


def test_gdb_gets_the_name_of_the_program(recorded: Recorded) -> None:
    try:
        if not find_gdb().has_libipt:
            pytest.skip("gdb was built without libipt")
    except UnsupportedError as error:
        pytest.skip(str(error))
    answer = told(ASCII, "gdb", "--batch", "--ex", "info inferiors", str(recorded.data))
    assert os.fsencode(recorded.program) in answer


@given(st.binary())
def test_names_are_text_where_their_bytes_are(name: bytes) -> None:
    for encoding in ("ascii", "utf-8"):  # as os.fsdecode has it in the one locale and the other
        assert name_to_text(name.decode(encoding, "surrogateescape")) == os.fsdecode(name)
    assert os.fsencode(text_to_name(name_to_text(os.fsdecode(name)))) == name


@given(st.recursive(st.text(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)))
def test_json_is_that_of_json(value: object) -> None:
    for indent in (None, 1):
        assert json.loads(format_json(value, indent)) == json.loads(json.dumps(value))


def test_json_is_printable_whatever_comes_with_it() -> None:
    """What is printed of it is what it was."""
    text = format_json(["\x7f", "\udcff"])
    assert escape_control_characters(text) == text
    assert json.loads(text) == ["\x7f", "\udcff"]


def shown(name: str, encoding: str = "utf-8") -> str:
    """As it is printed: bytes that are no text, and what the encoding does not have, escaped."""
    text = "".join(f"\\x{ord(c) & 0xFF:02x}" if "\udc80" <= c <= "\udcff" else c for c in name)
    return text.encode(encoding, "backslashreplace").decode(encoding)
