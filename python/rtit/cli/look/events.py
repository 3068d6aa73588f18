"""`rtit events FILE`: one line for each interrupt, transaction, PTWRITE or power event."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from rtit.cli import output
from rtit.cli.incomplete import IncompleteReport
from rtit.cli.input_options import add_file, add_reading, open_trace
from rtit.cli.parser import CommandParser
from rtit.cli.progress import show_progress
from rtit.cli.selection_options import add_code, add_ends, add_json, add_streams, selection

if TYPE_CHECKING:
    from rtit.perfdata import TimeConversion
    from rtit.trace import Selection, Stream


_EPILOG = """Examples:
  rtit events
  rtit events --function main --json
"""


def add_arguments(parser: CommandParser) -> None:
    """Declare the options."""
    parser.usage = "rtit events [options] [FILE]"
    parser.description = "List interrupts, transactions, PTWRITEs, power events, one per line."
    parser.epilog = _EPILOG
    add_file(parser)
    group = parser.add_argument_group("Output")
    add_ends(group, "events")
    add_json(group)
    add_code(add_streams(parser))
    add_reading(parser)


def run(arguments: argparse.Namespace) -> int:
    """Print the events; return 3 if something could not be decoded."""
    from rtit.trace.tables.selection import SelectedRanges

    with open_trace(arguments) as trace:
        gaps = IncompleteReport("events", trace)
        wanted = selection(arguments)
        streams = trace.select(wanted)
        SelectedRanges(wanted, trace.images).check(
            pid for stream in streams for pid in stream.space_pids
        )
        with show_progress("events", streams, prints=True):
            for stream in streams:
                if not arguments.json:
                    output.print_line(f"# {stream.title}, {stream.size:,} bytes")
                _show(stream, wanted, trace.clock, as_json=arguments.json)
                gaps.collect(stream)
        gaps.print_spans()
        gaps.print_images()
        return gaps.exit_code()


def _show(
    stream: Stream, wanted: Selection, clock: TimeConversion | None, *, as_json: bool
) -> None:
    from rtit.trace.events import describe_event, event_to_dict

    for event in stream.events(wanted):
        time = event.time
        when = clock.to_nanoseconds(time) if clock is not None else time
        if as_json:
            line = {"stream": stream.title, "nanoseconds": when if clock else None}
            output.write_json(line | event_to_dict(event))
        else:
            output.print_line(f"{when:>15} {event.offset:08x}  {describe_event(event)}")
