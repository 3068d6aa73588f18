"""The test programs: expected output and status of each, and how it is built.

A program is built once for each content of its sources and flags.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from signal import SIGILL, SIGSEGV

SOURCES = Path(__file__).resolve().parent
CACHE = SOURCES.parent.parent / "build" / "programs"

COMMON = ["-g", "-O1", "-Wall", "-Wextra", "-Wno-sign-compare", "-D_GNU_SOURCE"]
BARE = [
    *("-static", "-nostdlib", "-ffreestanding", "-fno-pie", "-no-pie", "-fcf-protection=none"),
    *("-fno-stack-protector", "-fno-asynchronous-unwind-tables"),
]


class CannotBuildError(Exception):
    """A program cannot be built here; the message gives the reason."""


@dataclass(frozen=True)
class Program:
    """A program and its expected behaviour.

    `status` is what `subprocess` returns: the exit status, or minus the signal number.
    `instructions` is the approximate number of user instructions, for choosing programs;
    programs with a C library execute more, and a varying number.
    """

    source: str
    stdout: str
    status: int = 0
    flags: tuple[str, ...] = tuple(BARE)
    arguments: tuple[str, ...] = ()
    instructions: int = 1000
    ends: bool = True
    may_exit: tuple[int, ...] = ()
    """Other statuses: this machine cannot show the situation."""


C_LIBRARY = ("-static", "-pthread")

PROGRAMS = {
    "altstack_longjmp": Program("altstack_longjmp.c", "landed 15\non_stack 5\n"),
    "branch_next": Program("branch_next.c", "done\n", instructions=100),
    "crash": Program("crash.c", "crashing\n", -SIGSEGV),
    "crash_late": Program("crash_late.c", "running\nvalue 65533\n", -SIGSEGV, instructions=20_000),
    "crash_thread": Program("crash_thread.c", "", -SIGSEGV, flags=C_LIBRARY, instructions=50_000),
    "crash_ud2": Program("crash_ud2.c", "crashing\n", -SIGILL),
    "endless": Program("endless.c", "running\n", ends=False),
    "endings": Program("endings.c", "ending\n", 3, instructions=50),
    "exceptions": Program(
        "exceptions.cpp",
        "numbers 7 texts 1 alive 0\n",
        flags=("-static-pie", "-fPIE"),
        instructions=200_000,
    ),
    "exec_chain": Program("exec_chain.c", "3\n2\n1\n0\n", 3),
    "exec_from_thread": Program(
        "exec_from_thread.c", "again\n", 4, flags=C_LIBRARY, instructions=60_000
    ),
    "far": Program("far.c", "sum 140\nreturn 11\ninterrupt 14\n"),
    "fork": Program("fork.c", "sum 60\n"),
    "int3_own": Program("int3_own.c", "traps 6\n"),
    "interrupted": Program("interrupted.c", "nanosleep -4\nread 1\nalarms 3\n"),
    "jit_compiler": Program("jit_compiler.c", "5064\n", flags=C_LIBRARY, instructions=20_000),
    "mov_ss": Program("mov_ss.c", "zero 11101\none 11112\n"),
    "narrow": Program("narrow.c", "sum 110\ntraps 10\n"),
    "pointers": Program("pointers.c", "table 1091\nfold 3633850\nchoose 940\n", instructions=3000),
    "recursion": Program(
        "recursion.c",
        "down 2016\ndown 2080\ndown 2145\ndown 125250\neven 301\n",
        instructions=10_000,
    ),
    "rep": Program("rep.c", "copied 1\nfound 201\nequal 241\nnothing 0\n"),
    "rep_fault": Program(
        "rep_fault.c", "left 0\nfaults 1\nas many bytes as fit before and after it\n"
    ),
    "returns": Program(
        "returns.c", "pushed 5050\nposition 0\nswapped 43\ncleans 42\n", instructions=2000
    ),
    "segv_caught": Program("segv_caught.c", "kept 7\nwritten 9\nfaults 5\n"),
    "self_modify": Program("self_modify.c", "sum 4211225\n"),
    "signal_async": Program("signal_async.c", "sent 10\nticks 3\n"),
    "signal_nested": Program("signal_nested.c", "deepest 3\nblocked 2\n"),
    "threads": Program("threads.c", "total 250 sum 10\n", flags=C_LIBRARY, instructions=50_000),
    "threads_ending": Program("threads_ending.c", "", 3, flags=C_LIBRARY, instructions=50_000),
    "timer_short": Program(
        "timer_short.c",
        "sum 500500 interrupted 1 called 1 foreign 0\n",
        flags=C_LIBRARY,
        instructions=50_000,
    ),
    "trap_blocked": Program(
        "trap_blocked.c", "blocked 111 inside 1 early 0 late 1 value 7\n", flags=C_LIBRARY
    ),
    "trap_flag": Program("trap_flag.c", "pushed 0\nsaved 0\nafter 0\n"),
    "vfork_exec": Program("vfork_exec.c", "child\nstatus 5\n"),
    # These run until they read a line of input.
    "calls_refused": Program("calls_refused.c", "running\n", flags=C_LIBRARY, ends=False),
    "slow_steps": Program("slow_steps.c", "running\n", flags=C_LIBRARY, ends=False),
    "trap_ignored": Program("trap_ignored.c", "running\n", flags=C_LIBRARY, ends=False),
    "waiting": Program("waiting.c", "running\n", flags=C_LIBRARY, ends=False),
    "workers": Program("workers.c", "running\n", flags=C_LIBRARY, ends=False),
    "vsyscall": Program("vsyscall.c", "time\ncpu\n", may_exit=(77,)),
}
UNLISTED = {
    "environment": Program("environment.c", "", instructions=1000),
    "forks_and_execs": Program(
        "forks_and_execs.c",
        "work\nwork\nwork\nchild\nsecond\n",
        flags=("-static",),
        instructions=50_000,
    ),
    "int80": Program("int80.c", "pids 3\n", instructions=200),
    "hangs_up": Program("hangs_up.c", "hung up\n", 3, instructions=100),
    "regions": Program("regions.c", "sum 936\n", instructions=3000),
}
"""Programs for single tests, which the tests of all programs leave out."""


def build(name: str, directory: Path = CACHE) -> Path:
    """Build the program `name` in `directory` unless it exists; return the executable.

    Raises KeyError for an unknown name, CannotBuildError without a compiler or if it fails.
    """
    program = PROGRAMS.get(name) or UNLISTED[name]
    source = SOURCES / program.source
    language = "c++" if source.suffix == ".cpp" else "c"
    header = b"" if language == "c++" else (SOURCES / "start.h").read_bytes()
    return compiled(
        name,
        [str(source)],
        language=language,
        flags=[*COMMON, *program.flags],
        directory=directory,
        depends=[header],
    )


def compiled(
    name: str,
    sources: list[str],
    *,
    language: str,
    flags: list[str],
    directory: Path = CACHE,
    depends: list[bytes] | None = None,
    libraries: list[str] | None = None,
) -> Path:
    """Compile `sources` into `directory`, once for each content; return the executable.

    `depends` is further content that the executable depends on. Raises CannotBuildError.
    """
    compiler = shutil.which("c++" if language == "c++" else "cc")
    if compiler is None:
        raise CannotBuildError(f"no {language} compiler")
    libraries = libraries or []
    contents = [Path(source).read_bytes() for source in sources] + (depends or [])
    key = hashlib.sha256(_version(compiler).encode())
    for part in [*(word.encode() for word in [*flags, *libraries]), *contents]:
        key.update(hashlib.sha256(part).digest())
    executable = directory / f"{name}-{key.hexdigest()[:16]}"
    if executable.exists():
        return executable
    directory.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(prefix=f"{name}-", dir=directory)
    os.close(handle)
    try:
        command = [compiler, *flags, "-o", temporary, *sources, *libraries]
        result = subprocess.run(command, capture_output=True, text=True, check=False)
        if result.returncode:
            raise CannotBuildError(f"{' '.join(command)}: {result.stderr.strip()}")
        # Another process may have built it, too, and recorded it: that file stays.
        with contextlib.suppress(FileExistsError):
            os.link(temporary, executable)
    finally:
        Path(temporary).unlink(missing_ok=True)
    return executable


ALIKE = (
    *("altstack_longjmp", "crash_late", "exec_chain", "pointers", "recursion", "rep", "rep_fault"),
    *("returns", "segv_caught", "self_modify", "signal_nested", "trap_flag"),
)
"""Deterministic programs: one thread, and no dependence on time or pid."""


@functools.cache
def _version(compiler: str) -> str:
    result = subprocess.run([compiler, "--version"], capture_output=True, text=True, check=False)
    return result.stdout
