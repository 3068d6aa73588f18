"""`rtit instructions FILE`: one line for each executed instruction."""

from __future__ import annotations

import argparse

from rtit.cli import output
from rtit.cli.incomplete import IncompleteReport
from rtit.cli.input_options import add_file, add_reading, open_trace
from rtit.cli.parser import CommandParser
from rtit.cli.progress import show_progress
from rtit.cli.selection_options import add_code, add_ends, add_streams, selection
from rtit.errors import UsageError
from rtit.views.field_names import DETAILED_FIELDS, NATIVE_FIELDS

_DEFAULT = "tid,ip,sym,asm"
_ALL = (*NATIVE_FIELDS, *DETAILED_FIELDS)
_RAW = "ip,sym,asm"
"""The thread of raw PT is unknown."""
_EPILOG = """Examples:
  rtit instructions --function main | less
  rtit instructions --fields time,ip,asm --tail 100 crash.data
"""


def add_arguments(parser: CommandParser) -> None:
    """Declare the options."""
    parser.usage = "rtit instructions [options] [FILE]"
    parser.description = "List the executed instructions of a recording, one per line, in order."
    parser.epilog = _EPILOG
    add_file(parser)
    group = parser.add_argument_group("Output")
    group.add_argument(
        "--fields",
        metavar="LIST",
        help=f"Comma-separated columns (default: {_DEFAULT})\n"
        f"fast: {' '.join(NATIVE_FIELDS)}\nslow: {' '.join(DETAILED_FIELDS)}\n"
        "'rtit help fields' explains each",
    )
    group.add_argument(
        "--merge",
        action="store_true",
        help="Sort all threads by time (default: one thread after the other)",
    )
    add_ends(group)
    add_code(add_streams(parser))
    add_reading(parser)


def run(arguments: argparse.Namespace) -> int:
    """Print the instructions; return 3 if something could not be decoded."""
    from rtit.views.instructions import list_instructions

    fields = parse_fields(arguments.fields or (_DEFAULT if arguments.raw is None else _RAW))
    with open_trace(arguments) as trace:
        gaps = IncompleteReport("instructions", trace)
        wanted = selection(arguments)
        streams = trace.select(wanted)
        with show_progress("instructions", streams, prints=True):
            for text in list_instructions(
                trace, streams, fields, wanted, gaps.collect, merge=arguments.merge
            ):
                output.write_lines(text)
        output.flush()
        gaps.print_spans()
        gaps.print_images()
        return gaps.exit_code()


def parse_fields(text: str) -> list[str]:
    """Return the fields named. Raises UsageError for others."""
    fields = [name.strip() for name in text.split(",") if name.strip()]
    for name in fields:
        if name not in _ALL:
            raise UsageError(f"--fields: unknown field {name!r}", hint=f"fields: {' '.join(_ALL)}")
    if not fields:
        raise UsageError("--fields: no field given", hint=f"fields: {' '.join(_ALL)}")
    return fields
