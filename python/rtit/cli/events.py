"""`rtit events FILE`: what happened beside the instructions, a line each."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from rtit.cli import out
from rtit.cli.bare import add_bare_code, add_raw
from rtit.cli.gaps import Gaps
from rtit.cli.inputs import add_file, add_images, add_threads, opened
from rtit.cli.selecting import add_code, add_ends, add_streams, selection
from rtit.cli.watching import watched

if TYPE_CHECKING:
    from rtit.perfdata import TimeConversion
    from rtit.trace import Selection, Stream


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add_file(parser)
    group = add_streams(parser)
    add_code(group)
    add_ends(group, "events")
    add_images(parser)
    add_threads(parser)
    add_bare_code(add_raw(parser))
    parser.add_argument("--json", action="store_true", help="one JSON object a line")


def run(arguments: argparse.Namespace) -> int:
    """Print the events; 3 if something could not be decoded."""
    from rtit.trace.places import Places

    with opened(arguments) as trace:
        gaps = Gaps("events", trace)
        wanted = selection(arguments)
        streams = trace.select(wanted)
        Places(wanted, trace.images).check(pid for stream in streams for pid in stream.pids)
        with watched("events", streams, prints=True):
            for stream in streams:
                if not arguments.json:
                    out.line(f"# {stream.title}, {stream.size:,} bytes")
                _show(stream, wanted, trace.clock, as_json=arguments.json)
                gaps.see(stream)
        gaps.ledgers()
        gaps.images()
        return gaps.exit_code()


def _show(
    stream: Stream, wanted: Selection, clock: TimeConversion | None, *, as_json: bool
) -> None:
    from rtit.trace.meaning import as_json as told
    from rtit.trace.meaning import describe

    for happening in stream.events(wanted):
        time = happening.time
        when = clock.to_nanoseconds(time) if clock is not None else time
        if as_json:
            line = {"stream": stream.title, "nanoseconds": when if clock else None}
            out.document(line | told(happening))
        else:
            out.line(f"{when:>15} {happening.offset:08x}  {describe(happening)}")
