"""A signal or a closed pipe ends a command without a traceback.

The command removes its files and folders, and loses no output that it has already written.
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
from support.properties import pairs_in_turn
from support.recordings import RTIT, RecordedProgram, Recorder, require_backend

ProgramBuilder = Callable[[str], Path]

READING_COMMANDS = {
    "info": ["PACK"],
    "report": ["PACK"],
    "calls": ["PACK"],
    "timeline": ["--for", "chrome", "PACK"],
    "packets": ["PACK"],
    "instructions": ["PACK"],
    "blocks": ["PACK"],
    "branches": ["PACK"],
    "edges": ["PACK"],
    "profile": ["--for", "callgrind", "PACK"],
    "stat": ["PACK"],
    "verify": ["PACK", "--truth", "TRUTH"],
    "coverage": ["--format", "drcov", "PACK"],
    "annotate": ["main", "PACK"],
    "diff": ["PACK", "PACK"],
    "events": ["PACK"],
    "query": ["PACK", "select * from branches"],
    "lint": ["--rules"],
    "scenario": ["table_33_10_begin"],
    "msr": ["IA32_RTIT_CTL", "0x2401"],
    "cpuid": ["--profile", "icelake"],
    "doctor": [],
}
WRITING_COMMANDS = {
    "pack": ["DATA", "-o", "made.zip"],
    "calls": ["--flamegraph", "-o", "made", "PACK"],
    "timeline": ["-o", "made", "PACK"],
    "profile": ["--for", "callgrind", "-o", "made", "PACK"],
    "coverage": ["--format", "drcov", "-o", "made", "PACK"],
    "annotate": ["main", "--html", "-o", "made", "PACK"],
    "view": ["-o", "made", "PACK"],
    "convert": ["DATA", "--split", "parts"],
    "query": ["PACK", "select * from branches", "--format", "parquet", "-o", "made"],
    "export": ["PACK", "--to", "made", "--tables", "packets,blocks"],
}
TESTED_ELSEWHERE = {"record", "gdb"}
"""These run programs: see end_to_end/test_interrupted.py and gdb/test_debugger.py."""

SIGNAL_SCRIPT = """
import os, sys
from rtit.cli import output
from rtit.cli.main import main

waiting = [{number}]
late = {cleanup_signals}

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
"""Runs a command that gets a signal after a first call, and other signals during its cleanup."""


@pytest.fixture(scope="module")
def recorded_program(program: ProgramBuilder, record: Recorder) -> RecordedProgram:
    return record([program("pointers")])


@pytest.fixture(scope="module")
def pack(recorded_program: RecordedProgram, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("pack") / "pack.rtit.zip"
    assert main(["pack", str(recorded_program.data), "-o", str(path)]) == 0
    return path


class CommandRunner:
    """Runs commands in an empty folder, with another folder for temporary files."""

    def __init__(self, folder: Path, recorded_program: RecordedProgram, pack: Path) -> None:
        self.working_folder = folder / "here"
        self.temporary_folder = folder / "temporary"
        for each in (self.working_folder, self.temporary_folder):
            each.mkdir()
        self.files = {
            "PACK": str(pack),
            "DATA": str(recorded_program.data),
            "TRUTH": str(recorded_program.truth),
        }

    def __call__(
        self, launcher: list[str], command: str, words: list[str], stdout: int = subprocess.PIPE
    ) -> tuple[int, bytes]:
        """Return the exit status and the output; a file that remains is an error."""
        ended = subprocess.run(
            [*launcher, command, *(self.files.get(word, word) for word in words)],
            cwd=self.working_folder,
            env={**os.environ, "TMPDIR": str(self.temporary_folder), "PYTHONUNBUFFERED": ""},
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=subprocess.PIPE,
            check=False,
            timeout=300,
        )
        for text in (b"Traceback", b"Exception ignored", b"Error:"):
            assert text not in ended.stderr, ended.stderr.decode()
        assert [*self.temporary_folder.iterdir()] == []
        assert [each for each in self.working_folder.rglob("*") if not each.is_dir()] == []
        return ended.returncode, ended.stdout or b""


@pytest.fixture
def run_command(tmp_path: Path, recorded_program: RecordedProgram, pack: Path) -> CommandRunner:
    return CommandRunner(tmp_path, recorded_program, pack)


def python_with_signal(
    number: int, holder: str, names: list[str], cleanup_signals: Sequence[int] = ()
) -> list[str]:
    cleanup_signals = [int(each) for each in cleanup_signals]
    return [
        sys.executable,
        "-c",
        SIGNAL_SCRIPT.format(
            number=number, holder=holder, names=names, cleanup_signals=cleanup_signals
        ),
    ]


def test_every_command_is_in_a_table_of_tested_commands() -> None:
    assert READING_COMMANDS.keys() | WRITING_COMMANDS.keys() | TESTED_ELSEWHERE == COMMANDS.keys()


@pytest.mark.parametrize(
    ("command", "number"),
    pairs_in_turn(READING_COMMANDS, [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]),
)
def test_signal_after_first_output_keeps_the_output(
    command: str, number: signal.Signals, run_command: CommandRunner
) -> None:
    """The signal follows the first line or the first bytes."""
    names = ["print_line", "write_lines", "write_bytes", "write_json", "print_styled_line"]
    code, printed = run_command(
        python_with_signal(number, "output", names), command, READING_COMMANDS[command]
    )
    assert code == -number
    assert printed


AFTER_UNPACKING = (
    "__import__('rtit.trace.recording.packs').trace.recording.packs",
    "_extract_pack",
)
"""The signal arrives after the pack was unpacked into a folder."""
AFTER_FIRST_WRITE = {
    "pack": (
        "__import__('rtit.trace.recording.pack_writer').trace.recording.pack_writer",
        "_extra_members",
    ),
    "convert": (
        "__import__('rtit.trace.recording.byte_source').trace.recording.byte_source.AuxDataSource",
        "_pieces_with_overlap",
    ),
    "export": ("__import__('rtit.query').query.Database", "write_parquet"),
}
"""The signal arrives after a part of a file was written."""
AFTER_OPENING = ("__import__('rtit.capture.output_files').capture.output_files", "NamedFile")


@pytest.mark.parametrize(
    ("command", "number"),
    pairs_in_turn(
        [command for command, words in READING_COMMANDS.items() if "PACK" in words],
        [signal.SIGINT, signal.SIGTERM],
    ),
)
def test_signal_before_any_output_prints_nothing(
    command: str, number: signal.Signals, run_command: CommandRunner
) -> None:
    holder, name = AFTER_UNPACKING
    code, printed = run_command(
        python_with_signal(number, holder, [name]), command, READING_COMMANDS[command]
    )
    assert (code, printed) == (-number, b"")


@pytest.mark.parametrize(
    ("command", "number"), pairs_in_turn(WRITING_COMMANDS, [signal.SIGINT, signal.SIGTERM])
)
def test_signal_while_writing_leaves_no_file(
    command: str, number: signal.Signals, run_command: CommandRunner
) -> None:
    holder, name = AFTER_FIRST_WRITE.get(command, AFTER_OPENING)
    code, _ = run_command(
        python_with_signal(number, holder, [name]), command, WRITING_COMMANDS[command]
    )
    assert code == -number


@pytest.mark.parametrize(
    ("command", "number"),
    pairs_in_turn(["info", *WRITING_COMMANDS], [signal.SIGTERM, signal.SIGINT]),
)
def test_further_signals_during_cleanup_leave_no_file(
    command: str, number: signal.Signals, run_command: CommandRunner
) -> None:
    holder, name = (
        AFTER_UNPACKING if command == "info" else AFTER_FIRST_WRITE.get(command, AFTER_OPENING)
    )
    cleanup_signals = [signal.SIGTERM, signal.SIGINT, signal.SIGHUP]
    words = READING_COMMANDS[command] if command == "info" else WRITING_COMMANDS[command]
    code, _ = run_command(
        python_with_signal(number, holder, [name], cleanup_signals), command, words
    )
    assert code == -number


@pytest.mark.parametrize("command", READING_COMMANDS)
def test_closed_pipe_ends_by_sigpipe(command: str, run_command: CommandRunner) -> None:
    ours, theirs = os.pipe()
    os.close(ours)
    try:
        code, _ = run_command(RTIT, command, READING_COMMANDS[command], theirs)
    finally:
        os.close(theirs)
    assert code == -signal.SIGPIPE


@pytest.mark.parametrize("command", ["info", "report", "cpuid"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signal_while_the_pipe_is_full_ends_at_once(
    command: str, number: signal.Signals, run_command: CommandRunner
) -> None:
    """The command does not wait to write the rest of its output."""
    ours, theirs = os.pipe()
    os.set_blocking(theirs, False)
    with open(theirs, "wb", buffering=0) as file:  # noqa: PTH123 - there is no Path of a descriptor
        while file.write(bytes(4096)):
            pass
        os.set_blocking(theirs, True)
        code, _ = run_command(
            python_with_signal(number, "output", ["print_line"]),
            command,
            READING_COMMANDS[command],
            theirs,
        )
    os.close(ours)
    assert code == -number


def test_program_with_a_closed_pipe_still_has_its_counts(run_command: CommandRunner) -> None:
    """The program handles its closed pipe; `rtit stat` prints the counts."""
    require_backend("qemu")
    ours, theirs = os.pipe()
    os.close(ours)
    words = ["--", "/bin/sh", "-c", "exec 2>/dev/null; echo x || exit 7"]
    try:
        code, _ = run_command(RTIT, "stat", words, theirs)
    finally:
        os.close(theirs)
    assert code in (7, 128 + signal.SIGPIPE)
