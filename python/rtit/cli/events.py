"""`rtit events FILE`: what happened beside the instructions, a line each."""

from __future__ import annotations

import argparse

from rtit.cli import out
from rtit.cli.bare import add_bare_code, add_raw
from rtit.cli.gaps import Gaps
from rtit.cli.inputs import add_file, add_images, opened
from rtit.cli.selecting import add_streams, selection


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add_file(parser)
    add_streams(parser)
    add_images(parser)
    add_bare_code(add_raw(parser))
    parser.add_argument("--json", action="store_true", help="one JSON object a line")


def run(arguments: argparse.Namespace) -> int:
    """Print the events; 3 if something could not be decoded."""
    from rtit.trace.meaning import as_json, describe

    with opened(arguments) as trace:
        gaps = Gaps("events", trace)
        clock = trace.clock
        for stream in selection(arguments).streams(trace.threads):
            if not arguments.json:
                out.line(f"# {stream.title}, {stream.size:,} bytes")
            for happening in stream.events():
                time = happening.time
                when = clock.to_nanoseconds(time) if clock is not None else time
                if arguments.json:
                    line = {"stream": stream.title, "nanoseconds": when if clock else None}
                    out.document(line | as_json(happening))
                else:
                    out.line(f"{when:>15} {happening.offset:08x}  {describe(happening)}")
            gaps.ledgers([stream])
        return gaps.exit_code()
