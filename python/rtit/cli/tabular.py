"""What verbs share that print the rows of a table."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence

from rtit.cli import out
from rtit.cli.bare import add_bare_code, add_raw
from rtit.cli.gaps import Gaps
from rtit.cli.inputs import add_file, add_images, add_threads, opened
from rtit.cli.selecting import add_code, add_ends, add_streams, selection
from rtit.cli.watching import watched


def add_table(parser: argparse.ArgumentParser, *, ordered: bool) -> None:
    """Declare the options; for rows in their order those of their ends and times, too."""
    add_file(parser)
    group = add_streams(parser)
    add_code(group)
    if ordered:
        add_ends(group, "rows")
    add_images(parser)
    add_threads(parser)
    add_bare_code(add_raw(parser))
    if ordered:
        add_timing(parser)
    parser.add_argument("--json", action="store_true", help="one JSON object a line")


def add_timing(parser: argparse.ArgumentParser) -> None:
    """More of time."""
    parser.add_argument(
        "--timing",
        action="store_true",
        help="also the bounds of each one's time, in nanoseconds (TSC ticks in JSON, which has "
        "cycles and frequency as well, of blocks the instructions a cycle)",
    )


def show(
    verb: str,
    lines: Callable[..., Iterator[bytes]],
    arguments: argparse.Namespace,
    missing: Sequence[str] = (),
) -> int:
    """Print `lines` of each stream, in parts, then what `missing` has by then; 3 if something could
    not be decoded.
    """
    from rtit.trace.places import Places

    options = {"timing": True} if getattr(arguments, "timing", False) else {}
    with opened(arguments) as trace:
        gaps = Gaps(verb, trace)
        wanted = selection(arguments)
        streams = trace.select(wanted)
        Places(wanted, trace.images).check(pid for stream in streams for pid in stream.pids)
        with watched(verb, streams, prints=True):
            for stream in streams:
                for part in lines(trace, stream, wanted, as_json=arguments.json, **options):
                    out.listed(part)
                gaps.see(stream)
        out.flush()
        gaps.ledgers()
        gaps.images()
        for text in missing:
            gaps.tell(text)
        return gaps.exit_code()
