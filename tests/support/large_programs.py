"""Large real programs: each runs once on its own and once recorded under QEMU, for all tests."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from support.recordings import RTIT, require_backend

SECONDS = 900

SCRIPT = """
import hashlib, json, os, queue, signal, subprocess, sys, threading, time
found = {}
def hashes(n):
    value = b""
    for i in range(400):
        value = hashlib.sha256(value + b"%d %d" % (n, i)).digest()
    found[n] = value.hex()
threads = [threading.Thread(target=hashes, args=(n,)) for n in range(4)]
[each.start() for each in threads], [each.join() for each in threads]
lines = queue.Queue()
def produce():
    [lines.put(i) for i in [*range(100), None]]
thread = threading.Thread(target=produce)
thread.start()
print(sum(iter(lines.get, None)))
thread.join()
alarms = []
signal.signal(signal.SIGALRM, lambda *_: alarms.append(1))
signal.setitimer(signal.ITIMER_REAL, 0.002, 0.002)
while len(alarms) < 20:
    json.loads(json.dumps({str(i): i for i in range(20)}))
signal.setitimer(signal.ITIMER_REAL, 0)
child = subprocess.run(["/bin/sh", "-c", "echo of the child; exit 4"], capture_output=True)
print(child.stdout, child.returncode)
killed = subprocess.Popen(["/bin/sleep", "100"])
killed.kill()
print(killed.wait())
pid = os.fork()
if not pid:
    os._exit(sum(map(int, "123")))
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
try:
    1 / 0
except ZeroDivisionError as error:
    print(json.dumps(found, sort_keys=True), error)
sys.exit(5)
"""

SHELL = """
for i in 1 2 3; do seq 1 2000 | sort -rn | grep 7 | tr 7 x | wc; done
inner() { return 9; }
(inner; echo $?) | cat
listed=$(ls /etc | head -5)
echo "$listed"
trap 'echo trapped' USR1; kill -USR1 $$
sh -c 'kill -SEGV $$'; echo $?
sh -c 'kill -9 $$'; echo $?
exit 11
"""

NODE = """
const fib = n => n < 2 ? n : fib(n - 1) + fib(n - 2);
const squares = new Map();
for (let i = 0; i < 2000; i++) squares.set(i, i * i);
console.log(fib(20), [...squares.values()].reduce((a, b) => a + b));
try { null.x } catch (error) { console.log(error.message) }
process.exit(6);
"""

CRASH = """
import ctypes, json
print(len(json.dumps([str(i) * 3 for i in range(5000)])), flush=True)
ctypes.string_at(8)
"""


def write_text_lines(folder: Path, lines: int) -> Path:
    """Write a file of lines of about 28 bytes, unsorted and all different."""
    path = folder / f"text-{lines}"
    if not path.exists():
        numbers = ((i * 7919 % 1_000_003, i, i * i) for i in range(lines))
        path.write_text("".join(f"{a} line {b} of a file {c:x}\n" for a, b, c in numbers))
    return path


def write_tree(folder: Path) -> Path:
    """Write 60 folders of 60 files each."""
    root = folder / "tree"
    if not root.exists():
        for i in range(60):
            inner = root / f"folder {i}"
            inner.mkdir(parents=True)
            for j in range(60):
                (inner / f"{i * j % 17}-{j}.txt").write_bytes(bytes(i * j))
    return root


def copy_c_source(folder: Path) -> Path:
    """Copy a C file, so that its path does not depend on where the suite is."""
    path = folder / "source.c"
    shutil.copyfile(Path(__file__).parents[1] / "programs" / "sorting.c", path)
    return path


def python_command(script: str) -> Callable[[Path], list[str]]:
    return lambda _: [os.path.realpath(sys.executable), "-S", "-c", script]


def cc1_command(folder: Path) -> list[str]:
    """Return a command that runs cc1 alone: a single process."""
    whole = folder / "source.i"
    subprocess.run(["gcc", "-E", "-P", str(copy_c_source(folder)), "-o", str(whole)], check=True)
    found = subprocess.run(
        ["gcc", "-print-prog-name=cc1"], capture_output=True, text=True, check=True
    )
    path = found.stdout.strip()
    return [path, "-fpreprocessed", "-quiet", "-O2", str(whole), "-o", "out.s"]


@dataclass(frozen=True)
class Program:
    """A program to record.

    `argv` returns the command, given a folder for its inputs; `instructions` is the least number
    that the program executes, `tool` must be installed, `code` is the exit code that a shell gives.
    """

    argv: Callable[[Path], list[str]]
    instructions: int
    tool: str = "sh"
    code: int = 0


LARGE_PROGRAMS = {
    "ls": Program(lambda at: ["ls", "-lR", str(write_tree(at))], 20_000_000, "ls"),
    "gzip": Program(
        lambda at: ["gzip", "-c", str(write_text_lines(at, 40_000))], 150_000_000, "gzip"
    ),
    "xz": Program(
        lambda at: ["xz", "-T2", "-c", "--block-size=524288", str(write_text_lines(at, 40_000))],
        1_000_000_000,
        "xz",
    ),
    "python": Program(python_command(SCRIPT), 40_000_000, code=5),
    "gcc": Program(
        lambda at: ["gcc", "-O2", "-o", "program", str(copy_c_source(at)), "-lm"], 80_000_000, "gcc"
    ),
    "sort": Program(
        lambda at: ["sort", "--parallel=2", "-n", str(write_text_lines(at, 150_000))],
        150_000_000,
        "sort",
    ),
    "node": Program(lambda _: ["node", "-e", NODE], 50_000_000, "node", 6),
    "bash": Program(lambda _: ["bash", "-c", SHELL], 10_000_000, "bash", 11),
    "crash": Program(python_command(CRASH), 20_000_000, code=128 + signal.SIGSEGV),
    "killed": Program(
        lambda _: ["bash", "-c", "seq 1 3000 | sort -n | tail -1; kill -9 $$"],
        2_000_000,
        "bash",
        128 + signal.SIGKILL,
    ),
    "cc1": Program(cc1_command, 50_000_000, "gcc"),
}


@dataclass(frozen=True)
class ProgramOutcome:
    """Exit code as a shell gives it, standard output, and the files that a program left."""

    code: int
    stdout: bytes
    files: dict[str, bytes]


@dataclass(frozen=True)
class LargeRecording:
    """A recording, with the outcomes of the program alone and recorded."""

    data: Path
    truth: Path
    native: ProgramOutcome
    recorded: ProgramOutcome
    stderr: str


LargeRecorder = Callable[..., LargeRecording]


@pytest.fixture(scope="session")
def large(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LargeRecorder]:
    """Record one of `LARGE_PROGRAMS` through the command line, once for the same options.

    The recordings are deleted at the end: they take hundreds of megabytes.
    """
    require_backend("qemu")
    folder = tmp_path_factory.mktemp("large")
    inputs = folder / "inputs"
    inputs.mkdir()
    natives: dict[str, ProgramOutcome] = {}
    made: dict[tuple[str, ...], LargeRecording] = {}

    def recorded(name: str, *options: str) -> LargeRecording:
        key = (name, *options)
        if key in made:
            return made[key]
        program = LARGE_PROGRAMS[name]
        if shutil.which(program.tool) is None:
            pytest.skip(f"{program.tool} is not installed")
        argv = program.argv(inputs)
        if name not in natives:
            natives[name] = run(argv, folder / name)[0]
        output = folder / "-".join([name, str(len(made))])
        data, truth = output.with_suffix(".data"), output.with_suffix(".truth")
        command = [*RTIT, "record", "-q", "--backend", "qemu", "-o", str(data)]
        ended, stderr = run([*command, "--truth", str(truth), *options, "--", *argv], output)
        made[key] = LargeRecording(data, truth, natives[name], ended, stderr)
        return made[key]

    yield recorded
    shutil.rmtree(folder)


def run(argv: list[str], folder: Path) -> tuple[ProgramOutcome, str]:
    """Run a command in a new folder; return its outcome and standard error."""
    folder.mkdir()
    done = subprocess.run(
        argv,
        cwd=folder,
        capture_output=True,
        timeout=SECONDS,
        check=False,
        stdin=subprocess.DEVNULL,
    )
    files = {each.name: each.read_bytes() for each in folder.iterdir()}
    code = done.returncode if done.returncode >= 0 else 128 - done.returncode
    return ProgramOutcome(code, done.stdout, files), done.stderr.decode(errors="replace")
