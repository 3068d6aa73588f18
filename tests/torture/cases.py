"""The programs of tests/programs/torture, by mode, and the known behaviour of each."""

from __future__ import annotations

import functools
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

from programs.build import C_LIBRARY, COMMON, SOURCES, compiled

FOLDER = SOURCES / "torture"
PROGRAMS = (
    *("processes", "surroundings", "signals", "rewriting", "overwriting", "encodings"),
    *("libraries", "waits", "over_exec"),
)
RANDOM = "random_code"

HELPER_MODES = {"loses_its_file", "loses_its_file_to_another", "runs_itself"}
"""Modes that another mode starts."""


QEMU_DIFFERS = {
    "asks_to_trace": "ptrace fails with ENOSYS, so a debugger under QEMU cannot run a program",
    "breakpoint_of_ice": "INT1 is an illegal instruction",
    "by_a_child": "if another process changes shared code, QEMU keeps the old translation",
    "calls_of_32_bits": "INT 80H fails with ENOSYS",
    "clone_vfork": "a child created with CLONE_VFORK has its own copy of memory",
    "clone_vm": "a child created with CLONE_VM but without CLONE_THREAD has its own copy of memory",
    "cut_code": "if a file is truncated, its code in memory can still be executed",
    "fault_before_exec": "an exec loses pending SIGSEGV and SIGBUS signals that are blocked",
    "filtered_calls": "seccomp filters have no effect",
    "into_the_file": "if a write to a file changes mapped code, QEMU keeps the old translation",
    "killed_by_a_filter": "seccomp filters have no effect",
    "last_signals": "the last two real-time signals cannot be sent",
    "no_more_memory": "RLIMIT_AS has no effect",
    "own_namespaces": "unshare with CLONE_NEWPID fails",
    "proc_self_mem": "if a write to /proc/self/mem changes code, QEMU keeps the old translation",
    "process_vm_write": "process_vm_writev is not implemented",
    "real_time_by_default": (
        "if a real-time signal ends a program, the reported signal number is two too high"
    ),
    "second_mapping": "if a write to a second mapping changes code, QEMU keeps the old translation",
    "string_from_before": "if a REP instruction overwrites itself, QEMU executes the new bytes",
    "string_over_itself": "if a REP instruction overwrites itself, QEMU executes the new bytes",
    "thrown_away": "MADV_DONTNEED does not restore the bytes of the file",
    "told_by_a_filter": "seccomp filters have no effect",
}
"""What plain QEMU 7.2 does, by mode, where it differs from the kernel or the processor."""

SAME_ON_SOME_PROCESSORS = {"string_from_before", "string_over_itself"}
"""Modes where some processors do the same: they fetch a REP instruction again while it runs."""

BETTER_THAN_QEMU = {
    "faults_among_threads": "SIGILL and SIGFPE that somebody sends go to threads that block them",
    "faults_that_wait": "SIGILL and SIGFPE that somebody sends while they are blocked end QEMU",
    "ignored_over_execs": "SIGSEGV and SIGBUS are not ignored any more after an exec",
    "real_time_over_execs": "what runs after an exec has other real-time signals ignored",
}
"""Modes where plain QEMU 7.2 differs from the kernel, and the recorder corrects it."""

QUICK_MODES = {
    *(
        "family",
        "vfork_without_exec",
        "group_killed",
        "exec_among_threads",
        "killed_in_exec",
        "orphans",
    ),
    *("daemonised", "another_root", "another_user", "vsyscall", "reused"),
    *("closes_all", "over_all_files", "uses_all_numbers", "undumpable", "strange_names"),
    *("nested", "timers", "frame_changed", "frame_copied", "frame_into_the_kernel", "steps_over"),
    *("traps_of_the_process", "traps_ignored", "traps_that_kill"),
    *("breakpoints", "own_steps", "from_a_file", "traps_waited_for", "stack_overflow", "turning"),
    *("values", "next_instruction", "own_loop", "across_pages", "by_a_thread", "files_in_turn"),
    *("moved", "file_deleted", "file_replaced"),
    *("string_over_itself", "store_over_a_branch", "stack_in_code", "return_address_in_code"),
    *("ends_of_pages", "overlaps", "prefixed_branches", "returns", "call_at_a_page_end"),
    *("not_executable", "through_gs"),
    *("waits_and_a_blocked_trap", "waits_and_an_ignored_trap", "waits_and_an_ignored_signal"),
    *("jumps_out", "jumps_out_of_lost_pages"),
    *("queued_before_exec", "refused_actions", "foreign_program"),
    *("waits_and_a_signal", "waits_that_let_a_trap_in", "trap_beside_a_timer"),
}
"""Modes that the test suite records; tests/torture/run.py records all."""


@dataclass(frozen=True)
class Case:
    """A program and its arguments; `name` is for messages."""

    program: str
    words: tuple[str, ...]

    @property
    def name(self) -> str:
        return " ".join((self.program, *self.words))

    @property
    def mode(self) -> str:
        return self.words[0]

    @property
    def argv(self) -> list[str]:
        return [str(build_program(self.program)), *self.words]


@dataclass(frozen=True)
class ProgramBehaviour:
    """Exit status, as a shell gives it, and output of a program."""

    status: int
    output: bytes


DOES_NOT_END = ProgramBehaviour(-1, b"does not end")


@functools.cache
def build_program(program: str) -> Path:
    """Build one of `PROGRAMS`, or `RANDOM`. Raises CannotBuildError."""
    source = FOLDER / f"{program}.c"
    flags = [*COMMON, *(_library_flags() if program == "libraries" else C_LIBRARY)]
    flags += ["-Wno-infinite-recursion"]
    depends = [(FOLDER / "torture.h").read_bytes()]
    return compiled(f"torture-{program}", [str(source)], language="c", flags=flags, depends=depends)


def _library_flags() -> list[str]:
    """Return flags that define the paths of two libraries."""
    source = str(FOLDER / "library.c")
    found = [
        compiled(
            f"torture-library-{number}",
            [source],
            language="c",
            flags=[*COMMON, "-shared", "-fPIC", f"-DWHICH={number}"],
        )
        for number in (1, 2)
    ]
    return [f'-D{name}="{path}"' for name, path in zip(("FIRST", "SECOND"), found, strict=True)]


def listed_modes(program: str) -> list[str]:
    """Return the modes that a program lists."""
    ended = subprocess.run([build_program(program)], capture_output=True, text=True, check=True)
    return [mode for mode in ended.stdout.split() if mode not in HELPER_MODES]


def all_cases() -> list[Case]:
    """Return all cases except for random code."""
    return [Case(program, (mode,)) for program in PROGRAMS for mode in listed_modes(program)]


def random_case(seed: int, runs: int = 20, *, known: bool = False) -> Case:
    """Return a case of random machine code: `runs` pieces of it.

    `known` leaves out instructions that QEMU runs although processors refuse them.
    """
    return Case(RANDOM, (str(seed), str(runs), *(["known"] if known else [])))


def run_program(argv: list[str], folder: Path, seconds: float = 240) -> ProgramBehaviour:
    """Run a command alone, in a session of its own; kill it after `seconds`."""
    with subprocess.Popen(
        argv,
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    ) as process:
        try:
            output, _ = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, 9)
            process.communicate()
            return DOES_NOT_END
    code = process.returncode
    return ProgramBehaviour(code if code >= 0 else 128 - code, output)
