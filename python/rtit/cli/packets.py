"""`rtit packets FILE`: the packets of every stream, one a line."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from rtit.cli import out
from rtit.cli.bare import add_raw
from rtit.cli.gaps import Gaps
from rtit.cli.inputs import add_file, opened
from rtit.cli.selecting import add_streams, selection
from rtit.cli.watching import watched
from rtit.packets import BadBytes, describe, to_json

if TYPE_CHECKING:
    from rtit.trace import Stream


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add_file(parser)
    add_streams(parser)
    add_raw(parser)
    parser.add_argument("--json", action="store_true", help="one JSON object a line")


def run(arguments: argparse.Namespace) -> int:
    """Print the packets; 3 if some bytes are no packet, or the file was cut."""
    with opened(arguments) as trace:
        gaps = Gaps("packets", trace)
        streams = selection(arguments).streams(trace.streams)
        with watched("packets", streams, prints=True):
            for stream in streams:
                # bare PT is one stream, which has no name and perhaps no size
                title = stream.title if arguments.raw is None else None
                if _show(title, stream, as_json=arguments.json):
                    gaps.noted()
        return gaps.exit_code()


def _show(title: str | None, stream: Stream, *, as_json: bool) -> bool:
    if title and not as_json:
        out.line(f"# {title}, {stream.size:,} bytes")
    gaps = False
    for item in stream.scan():
        if isinstance(item, BadBytes):
            gaps = True
            if as_json:
                bad = {"offset": item.offset, "size": item.length, "error": item.reason}
                out.document({"stream": title, **bad})
            else:
                out.line(f"{item.offset:08x}  ({item.length} bytes) {item.reason}")
        elif as_json:
            out.document({"stream": title, **to_json(item)})
        else:
            out.line(f"{item.offset:08x}  {describe(item)}")
    return gaps
