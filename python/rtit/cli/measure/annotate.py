"""`rtit annotate FUNCTION [FILE]`: source and machine code of a function, with exact counts."""

from __future__ import annotations

import argparse
from contextlib import ExitStack
from typing import TYPE_CHECKING

from rtit.cli import options, output
from rtit.cli.incomplete import EXIT_CODE
from rtit.cli.parser import CommandParser
from rtit.cli.progress import show_progress
from rtit.errors import UsageError
from rtit.text_escaping import escape_control_characters, format_json

if TYPE_CHECKING:
    from rtit.annotation import AnnotatedFunction, OtherCounts

_EPILOG = """FUNCTION is NAME or NAME@FILE, or the address of one of its instructions (0x401136).
Without debug information (DWARF), rtit shows only machine code. An optimizing compiler moves and
merges instructions, so the machine code of a source line can be in several places.

The iterations of a loop are the executions of its first instruction. In code that is not optimized,
this instruction often belongs to the test of the condition, which runs once more than the body.

Examples:
  rtit annotate main
  rtit annotate parse good.data --diff bad.data
  rtit annotate parse@libparse.so --loops
  rtit annotate main --html -o main.html
"""


def add_arguments(parser: CommandParser) -> None:
    """Declare the options."""
    parser.usage = "rtit annotate [options] FUNCTION [FILE]"
    parser.description = (
        "Show the source and machine code of a function, with exact counts of lines and branches."
    )
    parser.epilog = _EPILOG
    parser.has_intermixed_arguments = True
    parser.add_argument_group().add_argument(
        "annotated_function",
        metavar="FUNCTION",
        help="Function to show: NAME, NAME@FILE or an address",
    )
    options.add_file_argument(parser)
    group = parser.add_argument_group("Output")
    options.add_value_option(
        group, "--diff", "OTHER", "Show the counts of the recording OTHER beside those of FILE"
    )
    options.add_flag_option(
        group,
        "--loops",
        "Also show the least and the most iterations of each loop. Without this option, rtit shows "
        "them only if they follow from the totals. rtit decodes the recording again, in order, "
        "which takes several times as long",
    )
    formats = group.add_mutually_exclusive_group()
    options.add_flag_option(
        formats, "--html", "Write one web page, with source and code in columns"
    )
    options.add_flag_option(formats, "--json", "Write one JSON object")
    options.add_output_option(group)
    options.add_stream_options(parser)
    options.add_max_edges_option(parser)
    options.add_common_reading_options(parser, jobs=options.MANY_JOBS)


def run(arguments: argparse.Namespace) -> int:
    """Write the function; return 3 if something could not be decoded."""
    from rtit.annotation import match_counts

    if arguments.diff is not None and options.is_raw_requested(arguments):
        raise UsageError("--diff compares recordings and cannot be combined with --raw")
    matched: set[str] = set()
    annotated = _annotate(arguments, matched)
    found, other = [annotated], None
    if arguments.diff is not None:
        arguments.file, arguments.input = arguments.diff, None
        found.append(_annotate(arguments, matched))
        other = match_counts(*found)
    options.check_path_map(arguments, matched)
    _write(arguments, annotated, other)
    for each in found:
        for line in each.losses:
            output.print_error("annotate", f"missing: {line}")
    return EXIT_CODE if any(each.has_gaps for each in found) else 0


def _annotate(arguments: argparse.Namespace, matched: set[str]) -> AnnotatedFunction:
    from rtit.annotation import annotate_streams

    with ExitStack() as stack:
        trace = stack.enter_context(options.open_trace(arguments, matched))
        streams = trace.by_thread(options.parse_selection(arguments), always_split=arguments.loops)
        stack.enter_context(show_progress("annotate", streams, prints=False))
        return annotate_streams(
            trace, streams, arguments.annotated_function, loop_bounds=arguments.loops
        )


def _write(
    arguments: argparse.Namespace, annotated: AnnotatedFunction, other: OtherCounts | None
) -> None:
    from rtit.annotation.formats.html import annotation_page
    from rtit.annotation.formats.json import annotation_json
    from rtit.annotation.formats.text import annotation_lines

    if arguments.html:
        lines = annotation_page(annotated, other)
    elif arguments.json:
        lines = iter(format_json(annotation_json(annotated, other), indent=2).split("\n"))
    elif arguments.output is None:
        for spans in annotation_lines(annotated, other):
            output.print_styled_line(spans)
        return
    else:
        texts = (
            "".join(each.text for each in spans) for spans in annotation_lines(annotated, other)
        )
        lines = map(escape_control_characters, texts)
    output.write_file_or_stdout(
        arguments.output, (f"{line}\n".encode(errors="replace") for line in lines)
    )
