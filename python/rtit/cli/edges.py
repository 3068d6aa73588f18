"""`rtit edges FILE`: one line a transfer, with how often it was taken."""

from __future__ import annotations

import argparse
from functools import partial

from rtit.cli.inputs import add_places
from rtit.cli.selecting import count
from rtit.cli.tabular import add_table, show


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add_table(parser, ordered=False)
    add_places(parser)
    parser.add_argument(
        "--top", type=count, metavar="N", help="only the N most frequent of each thread or CPU"
    )


def run(arguments: argparse.Namespace) -> int:
    """Print them; 3 if something could not be decoded."""
    from rtit.views import rows

    beyond: list[str] = []
    lines = partial(rows.edges, top=arguments.top, tell=beyond.append)
    return show("edges", lines, arguments, beyond)
