"""`rtit instructions FILE`: one line for each executed instruction."""

from __future__ import annotations

import argparse

from rtit.cli import options, output
from rtit.cli.incomplete import IncompleteReport
from rtit.cli.parser import CommandParser
from rtit.cli.progress import show_progress
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
    parser.description = "List the executed instructions of a recording, one per line, in order."
    parser.epilog = _EPILOG
    options.add_file_argument(parser)
    group = parser.add_argument_group("Output")
    options.add_value_option(
        group,
        "--fields",
        "LIST",
        f"Comma-separated list of columns (default: {_DEFAULT})\n"
        f"fast to print: {' '.join(NATIVE_FIELDS)}\nslow to print: {' '.join(DETAILED_FIELDS)}\n"
        "'rtit help fields' explains the columns",
    )
    options.add_flag_option(
        group,
        "--merge",
        "List the instructions of all threads together, in order of time (default: list one "
        "thread after the other)",
    )
    options.add_head_and_tail_options(group)
    selection = options.add_stream_options(parser)
    options.add_code_selection_options(selection)
    options.add_value_option(
        selection,
        "--index",
        "FIRST-END",
        "Only the instructions from number FIRST up to, but not including, END of each thread; the "
        "first instruction has number 0. 'rtit calls --durations' prints FIRST-END of each call",
    )
    options.add_common_reading_options(parser)


def run(arguments: argparse.Namespace) -> int:
    """Print the instructions; return 3 if something could not be decoded."""
    from rtit.views.instructions import list_instructions

    default = _DEFAULT if arguments.raw is None else _RAW
    fields = options.parse_fields(arguments.fields or default, _ALL)
    with options.open_trace(arguments) as trace:
        gaps = IncompleteReport("instructions", trace)
        wanted = options.parse_selection(arguments)
        streams = trace.select(wanted)
        with show_progress("instructions", streams, prints=True):
            for text in list_instructions(
                trace, streams, fields, wanted, gaps.collect_undecoded_spans, merge=arguments.merge
            ):
                output.write_lines(text)
        output.flush_output()
        gaps.print_undecoded_spans()
        gaps.print_image_problems()
        return gaps.exit_code()
