"""`rtit record [options] -- program arguments`."""

from __future__ import annotations

import argparse
import signal
import sys
from contextlib import ExitStack
from pathlib import Path

from rtit.cli import amount, out, outcome
from rtit.cli.following import ending_signals, follow
from rtit.cli.progress import Progress
from rtit.readable import json_text

_EPILOG = """examples:
  rtit record -- ls -l
  rtit record -e intel_pt/cyc=1,mtc_period=3,psb_period=3,noretcomp/u -o ls.data -- ls
  rtit record --filter 'filter main @ ./program' -- ./program
  rtit record --pid 1234          until it ends, or Ctrl-C: then it goes on untraced
  rtit record --snapshot=8M -- ./program     (the last 8 MB of each thread: what led to the end)
  rtit record --start-at main --stop-at +1000000 -- ./program

The time in a recording is modelled: one nanosecond a retired instruction, unless --cpi and
--core-clock say something else. Single steps have one clock for all threads; QEMU has a clock a
thread, raised to the latest of the others at each system call.

--backend perf has the processor trace: the event may include the kernel (intel_pt// or /k), time
is real, a Ctrl-C ends perf and with it the program. It needs an Intel processor with PT, Linux and
perf; `rtit doctor` says what is missing. What has no option here has --perf-option: CPUs (-C0-3),
compression (-z), several files (--switch-output=1G), samples of an event with the trace before
each (--perf-option=--aux-sample=8192 --perf-option=-ebranch-misses:u). It was tried with a stand-in
for perf alone, not yet on hardware.

--json gives one line with one object: file, command, backend, why (it was chosen), exit_code,
ended (in words), signal (number or null), fault (ip, address, si_code, or null),
executed_instructions and executed_branches (all that ran), traced_instructions and
traced_branches (what of it decoding gives back; null of a snapshot or a full file), partial (true:
by --filter, a window, a size or a snapshot not all of them are traced), threads, pt_bytes (those in
the file), stopped, warnings. With --backend perf nobody counts: instructions, branches and threads
are null.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.epilog = _EPILOG
    parser.usage = "rtit record [options] (--pid PID[,PID...] | -- program [argument ...])"
    parser.add_argument(
        "-e",
        "--event",
        default="intel_pt//u",
        metavar="EVENT",
        help="what the trace unit writes, as perf spells it: intel_pt/TERM[=VALUE],.../u",
    )
    parser.add_argument(
        "--filter",
        action="append",
        default=[],
        metavar="FILTER",
        help="trace an address range alone ('filter main @ ./program') "
        "or up to one ('tracestop f @ ./program')",
    )
    parser.add_argument(
        "-p",
        "--pid",
        metavar="PID[,PID...]",
        help="record processes that run already, with all their threads, until they end or "
        "until Ctrl-C, SIGTERM or SIGHUP; they then go on, and the exit code is 0",
    )
    parser.add_argument(
        "--start-at",
        metavar="WHERE",
        help="trace nothing before: FUNCTION[@FILE], when it is first called, "
        "or N, when so many instructions have been executed",
    )
    parser.add_argument(
        "--stop-at",
        metavar="WHERE",
        help="trace nothing after: FUNCTION[@FILE], N, or +N instructions after the start",
    )
    parser.add_argument(
        "--backend",
        choices=("auto", "qemu", "ptrace", "perf"),
        default="auto",
        help="what runs the program: QEMU (fast) or single steps (exact everywhere, slow); "
        "auto takes QEMU where a fitting one is installed and starts; perf: PT hardware "
        "(see below)",
    )
    add_qemu_env(parser)
    parser.add_argument(
        "--cpus",
        type=int,
        default=0,
        metavar="N",
        help="have the threads share N CPUs by turns, each with a buffer, as perf records machines "
        "(single steps; default: a buffer a thread)",
    )
    parser.add_argument(
        "-a",
        "--all-cpus",
        action="store_true",
        help="with --backend perf: everything that runs as long as the program does",
    )
    parser.add_argument(
        "-m",
        "--mmap-pages",
        metavar="PAGES[,AUXPAGES]",
        help="with --backend perf: the kernel's buffers, as perf spells them: ,64M",
    )
    parser.add_argument(
        "--perf-option",
        action="append",
        default=[],
        metavar="OPTION",
        help="with --backend perf: one more option for perf record, in one word with its value, "
        "such as --perf-option=-C0-3; may be repeated",
    )
    parser.add_argument(
        "-o", "--output", default="perf.data", metavar="FILE", help="default: perf.data"
    )
    parser.add_argument(
        "--truth", metavar="FILE", help="also write what the tracer itself saw, for `rtit verify`"
    )
    parser.add_argument(
        "--truth-form",
        choices=("hashes", "runs"),
        help="hashes: one for a million instructions or less, some kilobytes for 10^9 "
        "(default with QEMU); runs: everything, to see where a decoded path parts from it",
    )
    parser.add_argument(
        "--events",
        metavar="FILE",
        help="also keep the tracer's events, to run the trace unit over them again",
    )
    parser.add_argument(
        "--no-aslr",
        action="store_true",
        help="load the program at fixed addresses: "
        "two runs of a deterministic program give the same trace (under QEMU they do anyway)",
    )
    amount.add_arguments(parser)
    parser.add_argument(
        "--json",
        metavar="FILE",
        help="also write what was recorded, and how the program ended, as JSON (see below); "
        "-: to standard output, behind what the program wrote",
    )
    parser.add_argument(
        "-q", "--quiet", action="store_true", help="no progress and no summary on stderr"
    )
    parser.add_argument("program", nargs=argparse.REMAINDER, help="the program and its arguments")


def add_qemu_env(parser: argparse._ActionsContainer) -> None:
    """Declare --qemu-env."""
    parser.add_argument(
        "--qemu-env",
        action="append",
        default=[],
        metavar="QEMU_NAME[=VALUE]",
        help="a variable that QEMU itself reads, such as QEMU_CPU=Haswell (without a value: as it "
        "is set here); may be repeated. QEMU reads no other QEMU_* variable; the program sees "
        "those that are set here",
    )


def run(arguments: argparse.Namespace) -> int:
    """Record; the exit code is the program's own, 128+N if signal N ended it; 0 with --pid."""
    from rtit.capture.backends import choose, start_chosen
    from rtit.capture.private import Reserved
    from rtit.capture.request import Request, check_distinct
    from rtit.errors import UsageError

    argv = list(arguments.program)
    if argv[:1] == ["--"]:
        del argv[0]
    pids = _pids(arguments.pid) if arguments.pid is not None else []
    if not pids and not argv:
        raise UsageError("no program given: rtit record [options] -- program [argument ...]")
    wanted = ending_signals()
    extent = amount.extent(arguments)
    if extent.snapshot is not None:
        wanted.add(signal.SIGUSR2)
    request = Request(
        argv,
        pids=pids,
        backend=arguments.backend,
        output=Path(arguments.output),
        event=arguments.event,
        filters=arguments.filter,
        start_at=arguments.start_at,
        stop_at=arguments.stop_at,
        extent=extent,
        time=amount.time(arguments),
        truth=Path(arguments.truth) if arguments.truth else None,
        truth_form=arguments.truth_form,
        aslr=not arguments.no_aslr,
        blocked=signal.pthread_sigmask(signal.SIG_BLOCK, wanted),
        all_cpus=arguments.all_cpus,
        mmap_pages=arguments.mmap_pages,
        # argparse makes a list of two dashes
        perf_options=[word or "--" for word in arguments.perf_option],
        cpus=arguments.cpus,
        qemu_env=arguments.qemu_env,
    )
    written = {
        "the recording": arguments.output,
        "--truth": arguments.truth,
        "--events": arguments.events,
        "--json": None if arguments.json == "-" else arguments.json,
    }
    check_distinct(written)
    log = None
    if arguments.events:
        from rtit.capture.events import EventLog

        log = EventLog()
    choice = choose(request, log=log is not None)
    with ExitStack() as files:
        # A path that cannot be written is an error before the program runs.
        events, told = (
            files.enter_context(Reserved(path)) if path else None
            for path in (written["--events"], written["--json"])
        )
        session, choice = start_chosen(request, choice, log=log)
        with session, Progress(sys.stderr, choice, quiet=arguments.quiet) as progress:
            follow(session, wanted, patient=not pids, update=progress.update)
            recording = session.finish()
            if log is not None and events is not None:
                with events.writing() as file:
                    log.write(file)
            progress.summary(recording)
        if arguments.json is not None:
            found = outcome.as_json(recording, choice, ["--pid", arguments.pid] if pids else argv)
            if told is None:
                out.document(found)
            else:
                with told.writing() as file:
                    file.write(json_text(found).encode() + b"\n")
    return recording.exit_code


def _pids(text: str) -> list[int]:
    from rtit.errors import UsageError

    words = text.split(",")
    for word in words:
        if not (word.isascii() and word.isdecimal() and 0 < int(word) < 1 << 31):
            raise UsageError(f"--pid needs process numbers, joined by commas, not {word!r}")
    return [int(word) for word in words]
