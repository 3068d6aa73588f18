"""`rtit stat FILE` and `rtit stat -- program`: exact counts, and how they changed."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from rtit.cli import counts, out
from rtit.cli.bare import add_bare_code, add_raw
from rtit.cli.gaps import EXIT_CODE
from rtit.cli.inputs import add_file, add_images, add_places, add_threads, opened
from rtit.cli.record import add_qemu_env
from rtit.cli.selecting import add_streams, selection
from rtit.cli.usage import Parser
from rtit.cli.watching import watched
from rtit.cli.written import write
from rtit.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rtit.profile.counts import Baseline, Stat

_EPILOG = """examples:
  rtit stat perf.data
  rtit stat -- ls -l
  rtit stat --json -o counts.json -- ./program
  rtit stat --runs 3 --per function --baseline counts.json --fail-above 0.5% -- ./program

A program is run under QEMU, with its threads and all that it starts, and counted without a trace;
the counts are those that a recording of the same run has. They go to standard error, or to the file
of -o: standard output is the program's own. Where no QEMU fits, single steps record it.

exit codes: of a program its own (128+N if signal N ended it; 125: rtit failed, 126: not executable,
127: not found), or 1 if that is 0 and there are more instructions than --fail-above allows, or that
is not known, as a process has no counts; of a recording 0 clean, 1 failure (more instructions than
that), 2 usage, 3 decoded with gaps
"""


def add_arguments(parser: Parser) -> None:
    """Declare the options."""
    parser.epilog = _EPILOG
    parser.usage = "rtit stat [options] ([FILE] | -- program [argument ...])"
    parser.takes_program = True
    add_file(parser)
    parser.add_argument(
        "--per", choices=("function", "dso", "thread"), help="instructions of each, as well"
    )
    parser.add_argument(
        "--top", type=int, default=15, metavar="N", help="so many of them (default 15)"
    )
    parser.add_argument("--json", action="store_true", help="write one JSON object with all of it")
    parser.add_argument(
        "-o",
        "--output",
        metavar="OUT",
        help="where to write it (default: standard output; of a program, standard error)",
    )
    parser.add_argument(
        "--baseline", metavar="JSON", help="what --json wrote before: show what has changed"
    )
    parser.add_argument(
        "--fail-above",
        metavar="N%",
        type=_share,
        help="exit code 1 if there are more instructions than the baseline has, by more than this",
    )
    program = parser.add_argument_group("of a program")
    program.add_argument(
        "--runs",
        type=_runs,
        default=1,
        metavar="N",
        help="run it so often: the counts of the run with the fewest instructions, what differs in "
        "the others and why that may be",
    )
    program.add_argument(
        "--backend",
        choices=("auto", "qemu", "ptrace"),
        default="auto",
        help="as for rtit record (default: auto)",
    )
    add_qemu_env(program)
    add_places(parser)
    known = {*parser._actions}
    add_streams(parser)
    add_images(parser)
    add_threads(parser)
    add_bare_code(add_raw(parser))
    parser.set_defaults(of_recordings=[each for each in parser._actions if each not in known])


def run(arguments: argparse.Namespace) -> int:
    """Print the counts."""
    if arguments.fail_above is not None and arguments.baseline is None:
        raise UsageError("--fail-above needs --baseline")
    baseline = None
    if arguments.baseline is not None:
        baseline = counts.read_baseline(arguments.baseline)
    if arguments.program is not None:
        from rtit.cli import counted

        return counted.run(arguments, baseline)
    if arguments.runs != 1 or arguments.backend != "auto" or arguments.qemu_env:
        raise UsageError(
            "--runs, --backend and --qemu-env are for a program: rtit stat [options] -- program"
        )
    from rtit.profile.stat import stat

    with opened(arguments) as trace:
        streams = trace.by_thread(selection(arguments))
        with watched("stat", streams, prints=False):
            found = stat(trace, streams)
    if arguments.output is None:
        if arguments.json:
            out.document(found.as_json(), indent=2)
        else:
            for line in _lines(found, arguments, baseline):
                out.line(line)
    else:
        value = counts.document(found.as_json()) if arguments.json else None
        write(arguments.output, counts.as_bytes(value or _lines(found, arguments, baseline)))
    for line in [*counts.unnamed(found, arguments.per), *found.missing]:
        out.complain("stat", f"missing: {line}")
    limit = arguments.fail_above
    if limit is not None and baseline is not None and counts.share(found, baseline) > limit:
        return 1
    return EXIT_CODE if found.losses.has_gaps else 0


def _lines(found: Stat, arguments: argparse.Namespace, baseline: Baseline | None) -> Iterator[str]:
    yield from counts.lines(found, arguments.per, arguments.top)
    if baseline is not None:
        yield ""
        yield from counts.changes(found, baseline, arguments.fail_above, arguments.top)


def _runs(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and 0 < int(text) < 1 << 16):
        raise argparse.ArgumentTypeError(f"{text!r} is no number of runs")
    return int(text)


def _share(text: str) -> float:
    number = text.removesuffix("%")
    try:
        share = float(number) / 100
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no percentage") from None
    if not 0 <= share < 1e9:
        raise argparse.ArgumentTypeError(f"{text!r} is no percentage from 0 on")
    return share
