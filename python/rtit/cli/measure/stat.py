"""`rtit stat FILE` and `rtit stat -- PROGRAM`: exact counts, and how they changed."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from rtit.cli import output
from rtit.cli.child_process import add_qemu_env
from rtit.cli.incomplete import EXIT_CODE
from rtit.cli.input_options import (
    MANY_JOBS,
    RARE,
    add_images,
    add_max_edges,
    open_trace,
)
from rtit.cli.measure import stat_text
from rtit.cli.output_file import write
from rtit.cli.parser import CommandParser
from rtit.cli.progress import show_progress
from rtit.cli.raw_options import add_raw, add_raw_code
from rtit.cli.selection_options import add_json, add_streams, selection
from rtit.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rtit.profile.stat import Baseline, Stat

_EPILOG = """A program is counted under QEMU without a trace, with its threads and all that it
starts; without QEMU it is recorded by single steps. The counts are those of a recording of the same
run. They go to standard error, or to the file of -o: standard output is the program's own.

Examples:
  rtit stat perf.data
  rtit stat ls -l
  rtit stat --json -o stat_text.json -- ./program
  rtit stat --runs 3 --per function --baseline stat_text.json --fail-above 0.5% -- ./program

Exit codes: rtit help exit-codes
"""


def add_arguments(parser: CommandParser) -> None:
    """Declare the options."""
    parser.usage = "rtit stat [options] [FILE]\n       rtit stat [options] [--] PROGRAM [ARGS...]"
    parser.description = (
        "Count the instructions, branches and calls of a recording or of a program."
    )
    parser.epilog = _EPILOG
    group = parser.add_argument_group()
    group.add_argument(
        "words",
        nargs=argparse.REMAINDER,
        metavar="FILE",
        help="Recording to read; - for standard input (default: perf.data). A word that is an "
        "executable begins a program",
    )
    group.add_argument(
        "-i", "--input", metavar="FILE", help="The same, as perf spells it", dest="input"
    )
    group = parser.add_argument_group("Output")
    group.add_argument(
        "--per", choices=("function", "dso", "thread"), help="Also count the instructions of each"
    )
    group.add_argument(
        "--top", type=int, default=15, metavar="N", help="Show N of them (default: 15)"
    )
    add_json(group, "Write one JSON object with everything")
    group.add_argument(
        "-o",
        "--output",
        metavar="FILE",
        help="File to write (default: standard output; for a program, standard error)",
    )
    group = parser.add_argument_group("Comparison")
    group.add_argument(
        "--baseline", metavar="FILE", help="Show the changes since this file of --json"
    )
    group.add_argument(
        "--fail-above",
        metavar="N%",
        type=_share,
        help="Return exit code 1 if the instructions exceed the baseline by more than N percent",
    )
    group = parser.add_argument_group("Running a program")
    group.add_argument(
        "--runs",
        type=_runs,
        default=1,
        metavar="N",
        help="Run it N times: count the run with the fewest instructions, and show what differs",
    )
    group.add_argument(
        "--backend",
        choices=("auto", "qemu", "ptrace"),
        default="auto",
        help="As for rtit record (default: auto)",
    )
    add_qemu_env(parser.add_rare_group("Running a program with QEMU"))
    add_max_edges(parser)
    others = {*parser._actions}
    add_streams(parser)
    add_images(parser)
    add_raw_code(add_raw(parser))
    recording_only = [each for each in parser._actions if each not in others]
    parser.add_general_options(jobs=MANY_JOBS, rare=f"options of QEMU, {RARE}")
    parser.set_defaults(recording_only=recording_only)


def run(arguments: argparse.Namespace) -> int:
    """Print the stat_text."""
    if arguments.fail_above is not None and arguments.baseline is None:
        raise UsageError("--fail-above needs --baseline")
    baseline = None
    if arguments.baseline is not None:
        baseline = stat_text.read_baseline(arguments.baseline)
    if arguments.program is not None:
        from rtit.cli.measure import stat_program

        return stat_program.run(arguments, baseline)
    if arguments.runs != 1 or arguments.backend != "auto" or arguments.qemu_env:
        raise UsageError(
            "--runs, --backend and --qemu-env need a program: rtit stat [options] -- PROGRAM"
        )
    from rtit.profile.stat import stat

    with open_trace(arguments) as trace:
        streams = trace.by_thread(selection(arguments))
        with show_progress("stat", streams, prints=False):
            found = stat(trace, streams)
    if arguments.output is None:
        if arguments.json:
            output.write_json(found.as_json(), indent=2)
        else:
            for line in _lines(found, arguments, baseline):
                output.print_line(line)
    else:
        value = stat_text.document(found.as_json()) if arguments.json else None
        write(arguments.output, stat_text.as_bytes(value or _lines(found, arguments, baseline)))
    for line in [*stat_text.unnamed(found, arguments.per), *found.missing]:
        output.print_error("stat", f"missing: {line}")
    limit = arguments.fail_above
    if limit is not None and baseline is not None and stat_text.share(found, baseline) > limit:
        return 1
    return EXIT_CODE if found.losses.has_gaps else 0


def _lines(found: Stat, arguments: argparse.Namespace, baseline: Baseline | None) -> Iterator[str]:
    yield from stat_text.lines(found, arguments.per, arguments.top)
    if baseline is not None:
        yield ""
        yield from stat_text.changes(found, baseline, arguments.fail_above, arguments.top)


def _runs(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and 0 < int(text) < 1 << 16):
        raise argparse.ArgumentTypeError(f"expected a number of runs, got {text!r}")
    return int(text)


def _share(text: str) -> float:
    number = text.removesuffix("%")
    try:
        share = float(number) / 100
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected a percentage, got {text!r}") from None
    if not 0 <= share < 1e9:
        raise argparse.ArgumentTypeError(f"expected a percentage from 0 on, got {text!r}")
    return share
