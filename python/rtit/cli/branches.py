"""`rtit branches FILE`: one line a branch: from where to where."""

from __future__ import annotations

import argparse
from functools import partial

from rtit.cli.tabular import add_table, show
from rtit.errors import UsageError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    from rtit.views.branch_fields import BRANCH_FIELDS

    add_table(parser, ordered=True)
    parser.add_argument(
        "--fields",
        metavar="LIST",
        default="source,target,kind",
        help=f"what a line has, of {', '.join(BRANCH_FIELDS)}, with commas between (%(default)s); "
        "perf_time is the time that perf prints",
    )


def run(arguments: argparse.Namespace) -> int:
    """Print them; 3 if something could not be decoded."""
    from rtit.views import rows
    from rtit.views.branch_fields import BRANCH_FIELDS

    fields = [name.strip() for name in arguments.fields.split(",")]
    for name in fields:
        if name not in BRANCH_FIELDS:
            raise UsageError(f"no field {name!r}; the fields are {', '.join(BRANCH_FIELDS)}")
    return show("branches", partial(rows.branches, fields=fields), arguments)
