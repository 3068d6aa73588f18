"""`rtit blocks FILE`: one line for each contiguous run of instructions."""

from __future__ import annotations

import argparse

from rtit.cli.input_options import add_reading
from rtit.cli.look.rows import add_output, add_selection, list_rows
from rtit.cli.parser import CommandParser

_EPILOG = """Examples:
  rtit blocks --function main | less
  rtit blocks --tail 20 --timing crash.data
"""


def add_arguments(parser: CommandParser) -> None:
    """Declare the options."""
    parser.usage = "rtit blocks [options] [FILE]"
    parser.description = "List every contiguous run of executed instructions, one per line."
    parser.epilog = _EPILOG
    add_output(parser, ordered=True)
    add_selection(parser)
    add_reading(parser)


def run(arguments: argparse.Namespace) -> int:
    """Print the runs; return 3 if something could not be decoded."""
    from rtit.views.row_formatting import format_blocks

    return list_rows("blocks", format_blocks, arguments)
