"""`rtit packets FILE`: the packets of every stream, one a line."""

from __future__ import annotations

import argparse
import json
import sys
from typing import TYPE_CHECKING

from rtit.cli.bare import add_raw
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
    """Print the packets; 3 if some bytes are no packet."""
    gaps = False
    with opened(arguments) as trace:
        streams = selection(arguments).streams(trace.streams)
        with watched("packets", streams, prints=True):
            for stream in streams:
                # bare PT is one stream, which has no name and perhaps no size
                title = stream.title if arguments.raw is None else None
                gaps |= _show(title, stream, as_json=arguments.json)
    return 3 if gaps else 0


def _show(title: str | None, stream: Stream, *, as_json: bool) -> bool:
    write = sys.stdout.write
    if title and not as_json:
        write(f"# {title}, {stream.size:,} bytes\n")
    gaps = False
    for item in stream.scan():
        if isinstance(item, BadBytes):
            gaps |= not item.truncated
            if as_json:
                bad = {"offset": item.offset, "size": item.length, "error": item.reason}
                write(json.dumps({"stream": title, **bad}) + "\n")
            else:
                write(f"{item.offset:08x}  ({item.length} bytes) {item.reason}\n")
        elif as_json:
            write(json.dumps({"stream": title, **to_json(item)}) + "\n")
        else:
            write(f"{item.offset:08x}  {describe(item)}\n")
    return gaps
