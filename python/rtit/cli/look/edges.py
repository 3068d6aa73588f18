"""`rtit edges FILE`: one line for each edge, with how often it was taken."""

from __future__ import annotations

import argparse
from functools import partial

from rtit.cli.input_options import MANY_JOBS, add_max_edges, add_reading
from rtit.cli.look.rows import add_output, add_selection, list_rows
from rtit.cli.parser import CommandParser
from rtit.cli.selection_options import count

_EPILOG = """Examples:
  rtit edges --top 20
  rtit edges --function main --json
"""


def add_arguments(parser: CommandParser) -> None:
    """Declare the options."""
    parser.usage = "rtit edges [options] [FILE]"
    parser.description = "Count how often each branch went where, one line for each edge."
    parser.epilog = _EPILOG
    add_output(parser, ordered=False).add_argument(
        "--top", type=count, metavar="N", help="Only the N most frequent of each thread or CPU"
    )
    add_selection(parser)
    add_max_edges(parser)
    add_reading(parser, jobs=MANY_JOBS)


def run(arguments: argparse.Namespace) -> int:
    """Print the edges; return 3 if something could not be decoded."""
    from rtit.views.row_formatting import format_edges

    uncounted: list[str] = []
    lines = partial(format_edges, top=arguments.top, warn=uncounted.append)
    return list_rows("edges", lines, arguments, uncounted)
