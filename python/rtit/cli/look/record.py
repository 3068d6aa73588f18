"""`rtit record [options] -- PROGRAM ARGS`: runs a program and records it.

Progress and a summary go to standard error; --json writes the summary as a JSON object.
"""

from __future__ import annotations

import argparse
import signal
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from rtit.capture.session import STOPPED_BY_FULL_DISK
from rtit.cli import options, output
from rtit.cli.parser import CommandParser
from rtit.cli.progress import StatusLine
from rtit.cli.signals import ending_signals, wait_for_program
from rtit.text_escaping import format_json

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType

    from rtit.capture.backends import BackendChoice
    from rtit.capture.request import SizeLimits
    from rtit.capture.session import Recording, RecordingSession
    from rtit.unit.time_model import TimeModel

_LARGE = 1 << 30
"""Bytes of PT from which a recording counts as large."""
_HINTS = {
    "ptrace": " (single-stepping is slow; QEMU is faster)",
    "qemu": "",
    "perf": "",
}


class RecordingProgress:
    """A line with the rate while a recording runs, and a summary at its end."""

    def __init__(self, stream: TextIO, choice: BackendChoice, *, quiet: bool = False) -> None:
        self._stream = stream
        self._choice = choice
        self._quiet = quiet
        self._line = StatusLine(stream)
        self._large = _LARGE
        self._warned_of_disk = False

    def __enter__(self) -> RecordingProgress:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._line.erase_text()

    def print_attached(self, pids: Sequence[int]) -> None:
        """Print which processes are recorded, and how to end the recording."""
        if self._quiet:
            return
        threads = sum(len(list(Path(f"/proc/{pid}/task").glob("*"))) for pid in pids)
        output.print_line(
            f"rtit record: attached to {', '.join(map(str, pids))} ({threads} "
            f"thread{'s' * (threads != 1)}); Ctrl-C ends the recording",
            to=self._stream,
        )

    def show_if_due(self, session: RecordingSession) -> None:
        """Show the state of the recording if it is time to."""
        self._warn_of_disk(session.stopped)
        if self._quiet or not self._line.is_due():
            return
        totals = session.totals
        if totals.pt_bytes >= self._large and session.stopped is None:
            self._warn_of_size(totals.pt_bytes)
        if self._choice.backend == "perf":
            self._line.show_text(f"recording: {totals.pt_bytes:,} bytes of perf.data")
            return
        rate = totals.clock / self._line.elapsed_seconds
        self._line.show_text(
            f"recording: {totals.clock:,} instructions, {totals.branches:,} branches, "
            f"{totals.pt_bytes:,} bytes of PT, {rate:,.0f} instructions/s"
            f"{_HINTS[self._choice.backend]}"
        )

    def _warn_of_disk(self, stopped: str | None) -> None:
        """Warn once, also with --quiet, that recording has stopped for lack of space."""
        if stopped == STOPPED_BY_FULL_DISK and not self._warned_of_disk:
            self._warned_of_disk = True
            self._line.erase_text()
            text = "rtit record: warning: the disk is nearly full, so recording has stopped"
            output.print_line(text, to=self._stream)

    def _warn_of_size(self, size: int) -> None:
        """Warn on a terminal each time that the size has doubled."""
        while self._large <= size:
            self._large *= 2
        if self._stream.isatty():
            rate = size / self._line.elapsed_seconds
            self._line.erase_text()
            output.print_line(
                f"rtit record: warning: {size / 1e9:.1f} GB so far, {rate / 1e6:.1f} MB more each "
                "second; --max-size and --snapshot limit the size",
                to=self._stream,
            )

    def print_summary(self, recording: Recording) -> None:
        """Print every warning, and one line about the recording."""
        self._line.erase_text()
        self._warn_of_disk(recording.stopped)
        for warning in recording.warnings:
            output.print_line(f"rtit record: warning: {warning}", to=self._stream)
        if self._quiet:
            return
        if recording.stopped is not None:
            text = f"[ rtit record: recording stopped {recording.stopped}; the program continued ]"
            output.print_line(text, to=self._stream)
        output.print_line(summary_line(recording, self._choice), to=self._stream)


def summary_line(recording: Recording, choice: BackendChoice) -> str:
    """Return the summary; it says how the program ended unless its exit code is 0."""
    noun = "CPU" if choice.is_system else "thread"
    threads = f"{recording.threads} {noun}{'s' if recording.threads != 1 else ''}"
    counts = f"{recording.instructions:,} instructions, {recording.branches:,} branches"
    parts = [
        _describe_traced_part(recording)
        if not recording.counted
        else f"{counts} of {threads} executed, {_describe_traced_part(recording)}"
        if recording.partial
        else f"{counts} of {threads} as {_describe_traced_part(recording)}"
    ]
    if recording.ending is not None and recording.ending.status:
        parts.append(f"ended by {recording.ending}" if recording.ending.signal
                     else f"ended with {recording.ending}")  # fmt: skip
    parts.append(f"{choice.backend}: {choice.reason}")
    return f"[ rtit record: {'; '.join(parts)} ]"


def _describe_traced_part(recording: Recording) -> str:
    size = f"{recording.pt_bytes:,} bytes of PT"
    if not (recording.counted and recording.partial):
        return f"{size} in {recording.path}"
    instructions, branches = recording.traced_instructions, recording.traced_branches
    if instructions is None:
        return f"of which {size} are in {recording.path}"
    traced = f"of them {instructions:,} instructions, {branches:,} branches traced"
    return f"{traced} as {size} in {recording.path}"


def summary_json(recording: Recording, choice: BackendChoice, command: list[str]) -> dict[str, Any]:
    """Return the object of --json, which `rtit help json` describes."""
    ending = recording.ending
    fault = ending.fault if ending is not None else None
    return {
        "file": str(recording.path),
        "command": command,
        "backend": choice.backend,
        "why": choice.reason,
        "exit_code": recording.exit_code,
        "ended": None if ending is None else str(ending),
        "signal": None if ending is None else ending.signal,
        "fault": None
        if fault is None
        else {"ip": fault.ip, "address": fault.address, "si_code": fault.code},
        "executed_instructions": recording.instructions if recording.counted else None,
        "executed_branches": recording.branches if recording.counted else None,
        "traced_instructions": recording.traced_instructions,
        "traced_branches": recording.traced_branches,
        "partial": recording.partial,
        "threads": recording.threads if recording.counted else None,
        "pt_bytes": recording.pt_bytes,
        "stopped": recording.stopped,
        "warnings": list(recording.warnings),
    }


_DEFAULT_SNAPSHOT = "4M"  # as perf's for root
_EPILOG = """rtit record returns the exit code of the program. Only --backend perf records real
time. The other back ends model time: each instruction takes 1 ns, unless --cpi or --core-clock
changes this duration. With --backend ptrace all threads share one clock. With --backend qemu each
thread has its own clock, which system calls and atomic instructions raise to the time of the
other threads.

Examples:
  rtit record -- ls -l
  rtit record --snapshot=8M -- ./program          # what led to the crash
  rtit record --start-at main --stop-at +1000000 -- ./program
  rtit record -e intel_pt/cyc=1,mtc_period=3,psb_period=3,noretcomp/u -o ls.data -- ls
  rtit record --system --kernel bzImage --initrd initrd.cpio --append console=ttyS0
  rtit record --pid 1234                          # until the process ends, or Ctrl-C
"""


def add_arguments(parser: CommandParser) -> None:
    """Declare the options."""
    parser.usage = (
        "rtit record [options] [--] PROGRAM [ARGS...]\n       rtit record [options] --pid PID,..."
    )
    parser.description = (
        "Run a program, or attach to running processes, and record every branch as Intel PT."
    )
    parser.epilog = _EPILOG
    group = parser.add_argument_group()
    group.add_argument(
        "-o",
        "--output",
        default="perf.data",
        metavar="FILE",
        help="File to write (default: perf.data)",
    )
    group.add_argument(
        "-p",
        "--pid",
        metavar="PID,...",
        help="Attach to running processes, and record them until they end or you press Ctrl-C. "
        "After Ctrl-C the processes continue without rtit. With --pid, the exit code of rtit is 0",
    )
    group.add_argument("-q", "--quiet", action="store_true", help="Show no progress and no summary")
    options.add_value_option(
        group,
        "--json",
        "FILE",
        "Also write a summary of the recording to FILE, as one JSON object ('rtit help json' "
        "lists the fields). If FILE is -, rtit writes the object to standard output when the "
        "program has ended",
    )
    _add_limit_options(parser)
    _add_backend_options(parser)
    _add_rare_options(parser)
    parser.add_general_options(
        rare="the options for modelled time and CPUs (--cpi, --core-clock, --cpus), for perf and "
        "QEMU, and for 'rtit verify' (--truth, --events)"
    )
    parser.add_argument_group().add_argument(
        "program", nargs=argparse.REMAINDER, help=argparse.SUPPRESS
    )


def _add_limit_options(parser: CommandParser) -> None:
    group = parser.add_argument_group("What to record")
    options.add_list_option(
        group,
        "--filter",
        "FILTER",
        "Trace only the code in an address range ('filter main @ ./program'), or end the trace "
        "when execution enters an address range ('tracestop f @ ./program'); may be repeated",
    )
    options.add_value_option(
        group,
        "--start-at",
        "WHERE",
        "Start tracing when FUNCTION[@FILE] runs, or after N instructions",
    )
    options.add_value_option(
        group,
        "--stop-at",
        "WHERE",
        "Stop tracing when FUNCTION[@FILE] runs, after N instructions, or (+N) N instructions "
        "after the start of tracing",
    )
    group.add_argument(
        "--snapshot",
        nargs="?",
        const=_DEFAULT_SNAPSHOT,
        metavar="SIZE",
        help=f"Keep only the last SIZE bytes of each thread's trace, with --system of each CPU's "
        f"(default: {_DEFAULT_SNAPSHOT}). rtit writes these bytes to the file when the program "
        "ends or crashes, and each time rtit receives SIGUSR2",
    )
    options.add_value_option(
        group,
        "--max-size",
        "SIZE",
        "Stop recording when the file reaches this size (such as 512K, 64M or 1G); the program "
        "continues. With or without --max-size, recording also stops when free disk space falls "
        "below 1 GiB or 5%% of the disk, whichever is smaller (but not with --backend perf)",
    )


def _add_backend_options(parser: CommandParser) -> None:
    group = parser.add_argument_group("How to record")
    group.add_argument(
        "--backend",
        choices=("auto", "qemu", "ptrace", "perf"),
        default="auto",
        metavar="NAME",
        help="Method of recording. qemu: fast; ptrace: slow, but runs the program directly on the "
        "processor; perf: uses PT hardware; auto: qemu if it is installed, else ptrace (default: "
        "auto)",
    )
    group.add_argument(
        "-e",
        "--event",
        metavar="EVENT",
        help="Settings of PT, in the syntax of perf record -e, such as "
        "intel_pt/cyc,mtc_period=3,noretcomp/u (default: intel_pt//u, with --system intel_pt//)",
    )
    options.add_flag_option(
        group,
        "--no-aslr",
        "Load the program at fixed addresses, so that two runs have the same addresses",
    )


def _add_rare_options(parser: CommandParser) -> None:
    group = parser.add_argument_group("Whole systems (QEMU 7.2 or later; see docs/howto/boot.md)")
    options.add_flag_option(
        group,
        "--system",
        "Record a machine with its kernel and programs: PROGRAM is qemu-system-x86_64, or the "
        "option --kernel names a kernel",
    )
    options.add_value_option(
        group,
        "--kernel",
        "FILE",
        "Boot the Linux kernel FILE (a bzImage) in a machine with one CPU (see --cpus), 256 MB of "
        "memory and a serial console on standard output",
    )
    options.add_value_option(group, "--initrd", "FILE", "Initial file system of the --kernel")
    options.add_value_option(group, "--append", "TEXT", "Command line of the --kernel")
    options.add_value_option(
        group, "--cr3", "VALUE", "Trace only while CR3 has this value (bits 63:12)"
    )
    group = parser.add_rare_group("Modelled time and CPUs")
    options.add_value_option(
        group, "--cpi", "N", "Core cycles that one instruction takes (default: 1)", default="1"
    )
    options.add_value_option(
        group,
        "--core-clock",
        "FREQUENCY",
        "Core frequency that CBR packets report, a multiple of 100 MHz (default: 1GHz). The TSC "
        "always runs at 1 GHz",
        default="1GHz",
    )
    options.add_value_option(
        group,
        "--cpus",
        "N",
        "Run all threads on N modelled CPUs. The recording then has one buffer for each CPU, as "
        "with perf record -a (only with --backend ptrace; default: one buffer for each thread). "
        "With --kernel: the number of CPUs of the machine",
        default=0,
        type=int,
    )
    group = parser.add_rare_group("Files for rtit verify")
    options.add_value_option(
        group,
        "--truth",
        "FILE",
        "Also write the executed path to FILE, so that rtit verify can check the recording",
    )
    group.add_argument(
        "--truth-format",
        dest="truth_form",
        choices=("hashes", "runs"),
        help="Format of the --truth file. hashes: one hash for every 2^20 instructions (default "
        "with --backend qemu); runs: the complete path, so that rtit verify can show where a "
        "decoded path diverges",
    )
    options.add_value_option(
        group,
        "--events",
        "FILE",
        "Also write the observed events (branches, system calls, ...) to FILE. The model of the "
        "trace unit can generate the packets again from this file",
    )
    group = parser.add_rare_group(
        "With --backend perf (needs PT hardware; not yet tested on it; see rtit doctor)"
    )
    group.add_argument(
        "-a", "--all-cpus", action="store_true", help="Record all CPUs while the program runs"
    )
    group.add_argument(
        "-m",
        "--mmap-pages",
        metavar="PAGES[,AUXPAGES]",
        help="Sizes of the kernel's buffers, in the syntax of perf record -m, such as -m ,64M",
    )
    options.add_list_option(
        group,
        "--perf-option",
        "OPTION",
        "Pass OPTION to perf record. Write an option and its value as one word, such as "
        "--perf-option=-C0-3 or --perf-option=--switch-output=1G; may be repeated",
    )
    options.add_qemu_env_option(parser.add_rare_group("With --backend qemu"))


def run(arguments: argparse.Namespace) -> int:
    """Record; return the program's exit code, 128+N if signal N ended it; 0 with --pid."""
    from rtit.capture.backends import choose_backend, start_chosen_backend
    from rtit.capture.output_files import ReservedOutput
    from rtit.capture.request import RecordRequest, check_distinct_files
    from rtit.errors import UsageError

    argv = list(arguments.program)
    if argv[:1] == ["--"]:
        del argv[0]
    pids = _parse_pids(arguments.pid) if arguments.pid is not None else []
    if arguments.kernel is not None or arguments.initrd or arguments.append:
        argv = _boot_command(arguments, argv)
    if not pids and not argv:
        raise UsageError("no program given", hint="example:  rtit record -- ls -l")
    wanted = ending_signals()
    extent = _parse_size_limits(arguments)
    if extent.snapshot is not None:
        wanted.add(signal.SIGUSR2)
    request = RecordRequest(
        argv,
        pids=pids,
        backend=arguments.backend,
        output=Path(arguments.output),
        event=arguments.event or ("intel_pt//" if arguments.system else "intel_pt//u"),
        filters=arguments.filter,
        start_at=arguments.start_at,
        stop_at=arguments.stop_at,
        size_limits=extent,
        time=_parse_time_model(arguments),
        truth=Path(arguments.truth) if arguments.truth else None,
        truth_form=arguments.truth_form,
        aslr=not arguments.no_aslr,
        blocked=signal.pthread_sigmask(signal.SIG_BLOCK, wanted),
        all_cpus=arguments.all_cpus,
        mmap_pages=arguments.mmap_pages,
        # argparse turns two dashes into a list
        perf_options=[word or "--" for word in arguments.perf_option],
        cpus=0 if arguments.kernel is not None else arguments.cpus,
        qemu_env=arguments.qemu_env,
        system=arguments.system,
        cr3=_parse_cr3(arguments.cr3),
    )
    written = {
        "the recording": arguments.output,
        "--truth": arguments.truth,
        "--events": arguments.events,
        "--json": None if arguments.json == "-" else arguments.json,
    }
    check_distinct_files(written)
    log = None
    if arguments.events:
        from rtit.capture.events import EventLog

        log = EventLog()
    choice = choose_backend(request, log=log is not None)
    with ExitStack() as files:
        # A path that cannot be written is an error before the program runs.
        events, summary = (
            files.enter_context(ReservedOutput(path)) if path else None
            for path in (written["--events"], written["--json"])
        )
        session, choice = start_chosen_backend(request, choice, log=log)
        with session, RecordingProgress(sys.stderr, choice, quiet=arguments.quiet) as progress:
            if pids:
                progress.print_attached(pids)
            wait_for_program(session, wanted, forward_first=not pids, update=progress.show_if_due)
            recording = session.finish()
            if log is not None and events is not None:
                with events.open_for_writing() as file:
                    log.write(file)
            progress.print_summary(recording)
        if arguments.json is not None:
            found = summary_json(recording, choice, ["--pid", arguments.pid] if pids else argv)
            if summary is None:
                output.write_json(found)
            else:
                with summary.open_for_writing() as file:
                    file.write(format_json(found).encode() + b"\n")
    return recording.exit_code


def _boot_command(arguments: argparse.Namespace, argv: list[str]) -> list[str]:
    """Return the command of QEMU for --kernel; `argv` are further arguments. Raises UsageError."""
    from rtit.capture.qemu.system import KernelBoot
    from rtit.errors import UsageError

    if not arguments.system or arguments.kernel is None:
        raise UsageError("--kernel needs --system, and --initrd and --append need --kernel")
    if arguments.cpus < 0:
        raise UsageError(f"--cpus {arguments.cpus}: expected a positive number")
    boot = KernelBoot(
        arguments.kernel, arguments.initrd, arguments.append or "", arguments.cpus or 1
    )
    return [*boot.command(), *argv]


def _parse_cr3(text: str | None) -> int | None:
    from rtit.errors import UsageError

    try:
        return None if text is None else int(text, 0)
    except ValueError:
        raise UsageError(f"--cr3 needs a number, not {text!r}") from None


def _parse_pids(text: str) -> list[int]:
    from rtit.errors import UsageError

    words = text.split(",")
    for word in words:
        if not (word.isascii() and word.isdecimal() and 0 < int(word) < 1 << 31):
            raise UsageError(f"--pid {text}: expected process ids, separated by commas")
    return [int(word) for word in words]


def _parse_size_limits(arguments: argparse.Namespace) -> SizeLimits:
    """Return how much of the trace is kept. Raises UsageError."""
    from rtit.capture.request import SizeLimits, parse_size

    snapshot, max_size = arguments.snapshot, arguments.max_size
    return SizeLimits(
        snapshot=None if snapshot is None else parse_size(snapshot, "--snapshot"),
        max_size=None if max_size is None else parse_size(max_size, "--max-size"),
    )


def _parse_time_model(arguments: argparse.Namespace) -> TimeModel:
    """Return the model of time. Raises UsageError."""
    from rtit.capture.options import make_time_model, parse_cpi, parse_frequency

    return make_time_model(
        cpi=parse_cpi(arguments.cpi), core_hz=parse_frequency(arguments.core_clock)
    )
