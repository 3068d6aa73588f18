"""`rtit branches FILE`: one line for each branch, with its source and target."""

from __future__ import annotations

import argparse
from functools import partial

from rtit.cli.input_options import add_reading
from rtit.cli.look.rows import add_output, add_selection, list_rows
from rtit.cli.parser import CommandParser
from rtit.errors import UsageError

_EPILOG = """Examples:
  rtit branches --function main | less
  rtit branches --fields time,source,target --head 100 --json
"""


def add_arguments(parser: CommandParser) -> None:
    """Declare the options."""
    from rtit.views.field_names import BRANCH_FIELDS

    parser.usage = "rtit branches [options] [FILE]"
    parser.description = "List every branch and other transfer, one per line."
    parser.epilog = _EPILOG
    add_output(parser, ordered=True).add_argument(
        "--fields",
        metavar="LIST",
        default="source,target,kind",
        help=f"Comma-separated columns of: {' '.join(BRANCH_FIELDS)} (default: %(default)s)",
    )
    add_selection(parser)
    add_reading(parser)


def run(arguments: argparse.Namespace) -> int:
    """Print the branches; return 3 if something could not be decoded."""
    from rtit.views.field_names import BRANCH_FIELDS
    from rtit.views.row_formatting import format_branches

    fields = [name.strip() for name in arguments.fields.split(",")]
    for name in fields:
        if name not in BRANCH_FIELDS:
            raise UsageError(
                f"--fields: unknown field {name!r}", hint=f"fields: {' '.join(BRANCH_FIELDS)}"
            )
    return list_rows("branches", partial(format_branches, fields=fields), arguments)
