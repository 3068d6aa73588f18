"""`rtit instructions FILE`: one line an instruction that ran."""

from __future__ import annotations

import argparse

from rtit.cli import out
from rtit.cli.bare import add_bare_code, add_raw
from rtit.cli.gaps import Gaps
from rtit.cli.inputs import add_file, add_images, add_threads, opened
from rtit.cli.selecting import add_code, add_ends, add_streams, selection
from rtit.cli.watching import watched
from rtit.errors import UsageError
from rtit.views.fields import DETAILED, LISTED

_DEFAULT = "tid,ip,sym,asm"
_ALL = (*LISTED, *DETAILED)
_BARE = "ip,sym,asm"
"""Of bare PT nobody knows the thread."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add_file(parser)
    group = add_streams(parser)
    add_code(group)
    add_ends(group)
    add_images(parser)
    add_threads(parser)
    add_bare_code(add_raw(parser))
    parser.add_argument(
        "--fields",
        metavar="LIST",
        help=f"what to print, of {','.join(LISTED)} (default: {_DEFAULT}); "
        "time is the TSC estimate in nanoseconds at the start of the run, a lower bound; also, "
        f"printed more slowly: {','.join(DETAILED)}; earliest and latest are the bounds of "
        "time, cycles those counted so far, freq MHz, or cycles in a TSC tick without a clock",
    )
    parser.add_argument(
        "--merge",
        action="store_true",
        help="all threads in order of time, not one after the other",
    )


def run(arguments: argparse.Namespace) -> int:
    """Print the instructions; 3 if something could not be decoded."""
    from rtit.views.listing import listing

    fields = parse_fields(arguments.fields or (_DEFAULT if arguments.raw is None else _BARE))
    with opened(arguments) as trace:
        gaps = Gaps("instructions", trace)
        wanted = selection(arguments)
        streams = trace.select(wanted)
        with watched("instructions", streams, prints=True):
            for text in listing(trace, streams, fields, wanted, gaps.see, merge=arguments.merge):
                out.listed(text)
        out.flush()
        gaps.ledgers()
        gaps.images()
        return gaps.exit_code()


def parse_fields(text: str) -> list[str]:
    """The fields named. Raises UsageError for others."""
    fields = [name.strip() for name in text.split(",") if name.strip()]
    for name in fields:
        if name not in _ALL:
            raise UsageError(f"no field {name!r}; the fields are {', '.join(_ALL)}")
    if not fields:
        raise UsageError(f"no field given; the fields are {', '.join(_ALL)}")
    return fields
