"""The part that `branches`, `blocks` and `edges` share: their options, and the listing itself."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence

from rtit.cli import output
from rtit.cli.incomplete import IncompleteReport
from rtit.cli.input_options import add_file, open_trace
from rtit.cli.parser import CommandParser
from rtit.cli.progress import show_progress
from rtit.cli.selection_options import (
    add_code,
    add_ends,
    add_json,
    add_streams,
    add_timing,
    selection,
)


def add_output(parser: CommandParser, *, ordered: bool) -> argparse._ArgumentGroup:
    """Declare FILE and the output options, those of rows in order too; return their group."""
    add_file(parser)
    group = parser.add_argument_group("Output")
    if ordered:
        add_ends(group, "rows")
        add_timing(group)
    add_json(group)
    return group


def add_selection(parser: CommandParser) -> None:
    """Declare the options that select rows."""
    add_code(add_streams(parser))


def list_rows(
    command: str,
    lines: Callable[..., Iterator[bytes]],
    arguments: argparse.Namespace,
    missing: Sequence[str] = (),
) -> int:
    """Print `lines` of each stream, then the sentences in `missing`; return the exit code."""
    from rtit.trace.tables.selection import SelectedRanges

    options = {"timing": True} if getattr(arguments, "timing", False) else {}
    with open_trace(arguments) as trace:
        gaps = IncompleteReport(command, trace)
        wanted = selection(arguments)
        streams = trace.select(wanted)
        SelectedRanges(wanted, trace.images).check(
            pid for stream in streams for pid in stream.space_pids
        )
        with show_progress(command, streams, prints=True):
            for stream in streams:
                for part in lines(trace, stream, wanted, as_json=arguments.json, **options):
                    output.write_lines(part)
                gaps.collect(stream)
        output.flush()
        gaps.print_spans()
        gaps.print_images()
        for text in missing:
            gaps.report(text)
        return gaps.exit_code()
