"""`rtit diff A B`: prints where two recordings diverge, and the counts that differ."""

from __future__ import annotations

import argparse
from contextlib import ExitStack
from typing import TYPE_CHECKING

from rtit.cli import options, output
from rtit.cli.incomplete import EXIT_CODE
from rtit.cli.parser import CommandParser
from rtit.cli.progress import show_progress
from rtit.diff.difference import DEFAULT_STEPS, DEFAULT_TOP
from rtit.errors import UsageError

if TYPE_CHECKING:
    from rtit.trace import Trace

_EPILOG = """If A and B are recordings of different builds of a program, rtit compares functions,
not instructions. The paths of two builds are equal if the same functions ran in the same order,
even if the instruction counts of these functions differ.

Exit codes: 0 if the paths are equal, 1 if the paths differ or rtit fails, 2 for an invalid command
line, 3 if a trace is incomplete but the decoded paths are equal.

Examples:
  rtit diff good.data bad.data
  rtit diff --context 30 --top 0 good.data bad.data
"""


def add_arguments(parser: CommandParser) -> None:
    """Declare the options."""
    parser.usage = "rtit diff [options] A B"
    parser.epilog = _EPILOG
    group = parser.add_argument_group()
    group.add_argument("first", metavar="A", help="A recording")
    group.add_argument("second", metavar="B", help="Another recording of the same program")
    group = parser.add_argument_group("Output")
    options.add_value_option(
        group,
        "--context",
        "N",
        f"Show N instructions before and after the point of divergence (default: {DEFAULT_STEPS})",
        default=DEFAULT_STEPS,
        type=int,
    )
    options.add_value_option(
        group,
        "--top",
        "N",
        f"Show at most N functions and N calls with different counts (default: {DEFAULT_TOP})",
        default=DEFAULT_TOP,
        type=options.parse_count,
    )
    options.add_json_option(group, "Print one JSON object")
    options.add_stream_options(parser)
    options.add_image_options(parser)
    options.add_max_edges_option(parser, calls=True)
    group = parser.add_rare_group("Raw PT (instead of recordings)")
    group.add_argument(
        "--raw",
        action="store_const",
        const=True,
        help="A and B are files with raw PT, each with the packets of one logical processor. "
        "--image and --elf describe the code of both",
    )
    options.add_cpu_model_option(group)
    options.add_raw_code_options(group)
    parser.add_general_options(jobs=options.MANY_JOBS, rare=options.RARE)


def run(arguments: argparse.Namespace) -> int:
    """Print the difference; return 1 if the paths diverge."""
    from rtit.diff.diff_traces import diff_traces
    from rtit.diff.difference import difference_json, format_difference

    if arguments.context < 1:
        raise UsageError(f"--context {arguments.context}: expected a number greater than 0")
    matched: set[str] = set()
    with ExitStack() as stack:
        left, right = (
            stack.enter_context(_open_trace(arguments, name, matched))
            for name in (arguments.first, arguments.second)
        )
        options.check_path_map(arguments, matched)
        chosen = options.parse_selection(arguments)
        streams = left.select(chosen, always_split=True), right.select(chosen, always_split=True)
        with show_progress("diff", [*streams[0], *streams[1]], prints=False):
            found = diff_traces(left, right, streams, steps=arguments.context)
        if arguments.json:
            output.write_json(difference_json(found), indent=2)
        else:
            for line in format_difference(found, arguments.top):
                output.print_line(line)
    if not found.has_equal_paths:
        return 1
    return EXIT_CODE if found.gaps else 0


def _open_trace(arguments: argparse.Namespace, name: str, matched: set[str]) -> Trace:
    raw = arguments.raw is not None
    arguments.raw = name if raw else None
    arguments.file, arguments.input = None if raw else name, None
    return options.open_trace(arguments, matched)
