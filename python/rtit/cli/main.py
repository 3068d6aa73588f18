"""The `rtit` command: finds the verb, runs it, turns errors into one sentence and an exit code."""

from __future__ import annotations

import argparse
import atexit
import gc
import importlib
import os
import signal
import sys
from collections.abc import Sequence
from contextlib import nullcontext

from rtit.cli import ending, out, usage
from rtit.errors import RtitError

VERBS = {
    "record": "run a program and record its exact control flow as Intel PT",
    "info": "what a recording is: machine, settings, buffers, losses, files that are missing",
    "report": "what ran: threads, instructions, branches, hot functions, losses",
    "packets": "one line a packet: offset, name, fields",
    "instructions": "one line an instruction that ran",
    "blocks": "one line a run of instructions that follow each other in memory",
    "branches": "one line a branch: from where to where",
    "edges": "one line a transfer, with how often it was taken",
    "profile": "exact counts as BOLT, AutoFDO, LLVM, pprof, callgrind and perf read them",
    "stat": "exact counts of a program or a recording: instructions, branches, calls; what changed",
    "verify": "compare the decoded path with what the tracer saw",
    "coverage": "lines, branches and blocks that ran, for people, genhtml, debuggers and fuzzers",
    "diff": "where two recordings part, and what ran more often in one",
    "pack": "a recording with all files that it needs, in one file for another machine",
    "gdb": "gdb over a recording: backwards, breakpoints, backtraces, calls as they were",
    "convert": "a recording into bare PT and maps, or these into a recording",
    "events": "interrupts, transactions, PTWRITEs, C-states and so on, a line each",
    "lint": "where a stream of packets breaks the rules of the chapter",
    "scenario": "events on a processor and the packets they give, against what is expected",
    "msr": "explain the value of a PT register, and whether writing it is legal",
    "cpuid": "the CPUID leaves of PT, of a processor profile or as given",
    "doctor": "what this machine offers: PT hardware, back ends, oracles, symbols",
}

_OBJECTS = 100_000
"""So many new ones before garbage is looked for."""

_EXIT_CODES = """exit codes:
  what runs a program (record, stat -- program) gives the program's own status (125: rtit failed,
  126: not executable, 127: not found, 2: usage); all else: 0 clean, 1 failure (verify, diff: they
  differ; lint: there are findings; stat: more than allowed), 2 usage,
  3 with gaps: something could not be decoded, code is not known, or the recording was cut
"""


def parser(argv: Sequence[str]) -> argparse.ArgumentParser:
    """The command line; of the verbs only the one that `argv` names is loaded, with its options.
    If it begins with it, there is no other.
    """
    wanted = next((word for word in argv if not word.startswith("-")), None)
    top = usage.Parser(
        prog="rtit",
        description="Intel Processor Trace in software: record any program, decode what ran.",
        epilog=_EXIT_CODES,
        formatter_class=usage.Help,
    )
    top.add_argument("--version", action="store_true", help="print the version and exit")
    if wanted is not None and wanted not in VERBS:
        usage.unknown_verb(top, wanted, VERBS)
    # The text before a verb in its usage; argparse would make it of ours.
    verbs = top.add_subparsers(dest="verb", metavar="VERB", prog=top.prog)
    for verb, text in VERBS.items():
        if wanted not in (verb, None) and wanted == argv[0]:
            continue
        sub = verbs.add_parser(
            verb,
            help=text,
            description=text[0].upper() + text[1:] + ".",
            formatter_class=usage.Help,
        )
        if verb == wanted:
            module = importlib.import_module(f"rtit.cli.{verb}")
            module.add_arguments(sub)
            sub.set_defaults(run=module.run, parser=sub)
    return top


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code."""
    # A reader that goes away (`rtit packets | head`) ends us quietly, as it does any Unix tool.
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    words = sys.argv[1:] if argv is None else argv
    if argv is None:
        # Modules, nearly all of what is there, are no garbage, neither now nor at the end.
        gc.set_threshold(_OBJECTS)
        atexit.register(gc.freeze)
    try:
        return _main(words, whole_process=argv is None)
    except KeyboardInterrupt:
        number = signal.SIGINT
    except ending.Ended as ended:
        number = signal.Signals(ended.number)
    except BrokenPipeError:
        number = signal.SIGPIPE
    except OSError as error:
        # a verb's are told by its name: this is help, or the version
        out.give_up()
        out.line(f"rtit: {error.strerror or error}", to=sys.stderr)
        return 1
    return ending.die(number)


def _main(words: Sequence[str], *, whole_process: bool) -> int:
    """Raises what `main` ends by. `whole_process`: it is ours, nobody else runs in it."""
    _hold_standard_files()
    top = parser(words)
    arguments, unknown = top.parse_known_args(words)
    if unknown:
        usage.unknown_words(getattr(arguments, "parser", top), unknown)
    if arguments.version:
        from rtit import __version__

        out.line(f"rtit {__version__}")
        out.flush()
        return 0
    if arguments.verb is None:
        top.print_help()
        return 2
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    runs = arguments.verb == "record" or getattr(arguments, "program", None) is not None
    failure = 125 if runs else 1  # 1 may be the program's own
    try:
        if whole_process:
            _set_up_process(runs_a_program=runs)
        # What runs a program takes signals itself.
        with nullcontext() if runs else ending.heeded():
            code = int(arguments.run(arguments))
            out.flush()
        return code
    except RtitError as error:
        out.complain(arguments.verb, str(error))
        return failure if error.exit_code == 1 else error.exit_code
    except OSError as error:
        if isinstance(error, BrokenPipeError) and not runs:
            raise
        out.give_up()
        where = f"{error.filename}: " if error.filename else ""
        out.complain(arguments.verb, f"{where}{error.strerror or error}")
        return failure
    finally:
        # The caller gets back the signals that `record` takes, but not those that came for it.
        ours = signal.pthread_sigmask(signal.SIG_BLOCK, ()) - mask
        while ours and signal.sigtimedwait(ours, 0) is not None:
            pass
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _set_up_process(*, runs_a_program: bool) -> None:
    """A mapped file that is truncated while it is read is an error of whoever reads it, and freed
    memory goes back to the system.
    """
    from rtit import _core

    _core.read_truncated_maps_as_zeros()
    if not runs_a_program:
        _core.return_freed_memory()


def _hold_standard_files() -> None:
    """Of files that we open none may become standard input, output or error because those are
    closed. A program that we start finds them closed all the same.
    """
    while (file := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(file)
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_WRONLY), "w"))


if __name__ == "__main__":
    sys.exit(main())
