"""What ends a verb half-way: signals, and a reader that goes. It dies of it, without a traceback,
leaves no file or folder behind, and loses nothing that it has said.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from rtit.cli.commands import COMMANDS
from rtit.cli.main import main
from support.recordings import RTIT, RecordedProgram, Recorder, require_backend

ProgramBuilder = Callable[[str], Path]

READING = {
    "info": ["PACK"],
    "report": ["PACK"],
    "packets": ["PACK"],
    "instructions": ["PACK"],
    "blocks": ["PACK"],
    "branches": ["PACK"],
    "edges": ["PACK"],
    "profile": ["--for", "callgrind", "PACK"],
    "stat": ["PACK"],
    "verify": ["PACK", "--truth", "TRUTH"],
    "coverage": ["--format", "drcov", "PACK"],
    "diff": ["PACK", "PACK"],
    "events": ["PACK"],
    "lint": ["--rules"],
    "scenario": ["table_33_10_begin"],
    "msr": ["IA32_RTIT_CTL", "0x2401"],
    "cpuid": ["--profile", "icelake"],
    "doctor": [],
}
WRITING = {
    "pack": ["DATA", "-o", "made.zip"],
    "profile": ["--for", "callgrind", "-o", "made", "PACK"],
    "coverage": ["--format", "drcov", "-o", "made", "PACK"],
    "convert": ["DATA", "--split", "parts"],
}
ELSEWHERE = {"record", "gdb"}
"""Programs run in them: end_to_end/test_interrupted.py and gdb/test_debugger.py."""

AT = """
import os, sys
from rtit.cli import output
from rtit.cli.main import main

waiting = [{number}]
late = {late}

def patched(holder, name):
    plain = getattr(holder, name)
    def first(*words, **named):
        try:
            return plain(*words, **named)
        finally:
            if waiting:
                os.kill(os.getpid(), waiting.pop())
    setattr(holder, name, first)

def before(holder, name):
    plain = getattr(holder, name)
    def first(*words, **named):
        for number in () if waiting else late:
            os.kill(os.getpid(), number)
        return plain(*words, **named)
    setattr(holder, name, first)

for name in {names}:
    patched({holder}, name)
import atexit, pathlib, shutil
before(atexit, "_run_exitfuncs")
before(pathlib.Path, "unlink")
before(shutil, "rmtree")
sys.exit(main(sys.argv[1:]))
"""
"""A verb that gets a signal when it has done something for the first time, and others when it then
tidies up.
"""


@pytest.fixture(scope="module")
def live(program: ProgramBuilder, record: Recorder) -> RecordedProgram:
    return record([program("pointers")])


@pytest.fixture(scope="module")
def pack(live: RecordedProgram, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("pack") / "pack.rtit.zip"
    assert main(["pack", str(live.data), "-o", str(path)]) == 0
    return path


class Runner:
    """Runs verbs in an empty folder, with another for temporary files."""

    def __init__(self, folder: Path, live: RecordedProgram, pack: Path) -> None:
        self.here = folder / "here"
        self.temporary = folder / "temporary"
        for each in (self.here, self.temporary):
            each.mkdir()
        self.files = {"PACK": str(pack), "DATA": str(live.data), "TRUTH": str(live.truth)}

    def __call__(
        self, command: list[str], verb: str, words: list[str], stdout: int = subprocess.PIPE
    ) -> tuple[int, bytes]:
        """How it ended, and what it said; what is left behind is an error."""
        ended = subprocess.run(
            [*command, verb, *(self.files.get(word, word) for word in words)],
            cwd=self.here,
            env={**os.environ, "TMPDIR": str(self.temporary), "PYTHONUNBUFFERED": ""},
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=subprocess.PIPE,
            check=False,
            timeout=300,
        )
        for text in (b"Traceback", b"Exception ignored", b"Error:"):
            assert text not in ended.stderr, ended.stderr.decode()
        assert [*self.temporary.iterdir()] == []
        assert [each for each in self.here.rglob("*") if not each.is_dir()] == []
        return ended.returncode, ended.stdout or b""


@pytest.fixture
def run(tmp_path: Path, live: RecordedProgram, pack: Path) -> Runner:
    return Runner(tmp_path, live, pack)


def at(number: int, holder: str, names: list[str], late: Sequence[int] = ()) -> list[str]:
    late = [int(each) for each in late]
    return [sys.executable, "-c", AT.format(number=number, holder=holder, names=names, late=late)]


def test_every_verb_is_here() -> None:
    assert READING.keys() | WRITING.keys() | ELSEWHERE == COMMANDS.keys()


@pytest.mark.parametrize("verb", READING)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_what_was_said_is_there(verb: str, number: signal.Signals, run: Runner) -> None:
    """One signal, right behind the first line or the first bytes."""
    names = ["print_line", "write_lines", "write_bytes", "write_json"]
    code, said = run(at(number, "output", names), verb, READING[verb])
    assert code == -number
    assert said


UNPACKED = ("__import__('rtit.trace.recording.packs').trace.recording.packs", "_unpack")
"""The pack has been opened: its files are in a folder."""
BEGUN = {
    "pack": ("__import__('rtit.trace.recording.packs').trace.recording.packs", "_more"),
    "convert": (
        "__import__('rtit.trace.recording.byte_source').trace.recording.byte_source.AuxBytes",
        "_own",
    ),
}
"""A file has."""
OPENED = ("__import__('rtit.cli.output_file').cli.output_file", "NamedFile")


@pytest.mark.parametrize("verb", [verb for verb, words in READING.items() if "PACK" in words])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_before_anything_was_said(verb: str, number: signal.Signals, run: Runner) -> None:
    holder, name = UNPACKED
    code, said = run(at(number, holder, [name]), verb, READING[verb])
    assert (code, said) == (-number, b"")


@pytest.mark.parametrize("verb", WRITING)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_no_half_of_a_file(verb: str, number: signal.Signals, run: Runner) -> None:
    holder, name = BEGUN.get(verb, OPENED)
    code, _ = run(at(number, holder, [name]), verb, WRITING[verb])
    assert code == -number


@pytest.mark.parametrize("verb", ["info", *WRITING])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_more_signals_while_it_tidies_up(verb: str, number: signal.Signals, run: Runner) -> None:
    holder, name = UNPACKED if verb == "info" else BEGUN.get(verb, OPENED)
    late = [signal.SIGTERM, signal.SIGINT, signal.SIGHUP]
    words = READING[verb] if verb == "info" else WRITING[verb]
    code, _ = run(at(number, holder, [name], late), verb, words)
    assert code == -number


@pytest.mark.parametrize("verb", READING)
def test_a_reader_that_has_gone(verb: str, run: Runner) -> None:
    ours, theirs = os.pipe()
    os.close(ours)
    try:
        code, _ = run(RTIT, verb, READING[verb], theirs)
    finally:
        os.close(theirs)
    assert code == -signal.SIGPIPE


@pytest.mark.parametrize("verb", ["info", "report", "cpuid"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_reader_that_has_stopped(verb: str, number: signal.Signals, run: Runner) -> None:
    """What does not fit is not waited for."""
    ours, theirs = os.pipe()
    os.set_blocking(theirs, False)
    with open(theirs, "wb", buffering=0) as file:  # noqa: PTH123 - there is no Path of a descriptor
        while file.write(bytes(4096)):
            pass
        os.set_blocking(theirs, True)
        code, _ = run(at(number, "output", ["print_line"]), verb, READING[verb], theirs)
    os.close(ours)
    assert code == -number


def test_a_program_whose_reader_has_gone(run: Runner) -> None:
    """The program's own affair; what was counted is said all the same."""
    require_backend("qemu")
    ours, theirs = os.pipe()
    os.close(ours)
    words = ["--", "/bin/sh", "-c", "exec 2>/dev/null; echo x || exit 7"]
    try:
        code, _ = run(RTIT, "stat", words, theirs)
    finally:
        os.close(theirs)
    assert code in (7, 128 + signal.SIGPIPE)
