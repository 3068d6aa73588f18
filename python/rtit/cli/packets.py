"""`rtit packets FILE`: the packets of every stream, one a line."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable
from pathlib import Path

from rtit.cli.inputs import add_file, named, opened
from rtit.cli.selecting import add_streams, selection
from rtit.cli.watching import watched
from rtit.packets import BadBytes, Packet, describe, scan, to_json


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add_file(parser)
    add_streams(parser)
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    parser.add_argument("--raw", action="store_true", help="FILE holds bare PT bytes, no perf.data")


def run(arguments: argparse.Namespace) -> int:
    """Print the packets; 3 if some bytes are no packet."""
    gaps = False
    if arguments.raw:
        data = _bare(arguments)
        gaps = _show(None, len(data), scan(data), as_json=arguments.json)
        return 3 if gaps else 0
    with opened(arguments) as trace:
        streams = selection(arguments).streams(trace.streams)
        with watched("packets", streams, prints=True):
            for stream in streams:
                gaps |= _show(stream.title, stream.size, stream.packets(), as_json=arguments.json)
    return 3 if gaps else 0


def _bare(arguments: argparse.Namespace) -> bytes:
    source = named(arguments)
    return Path(source).read_bytes() if isinstance(source, str) else source.read()


def _show(
    title: str | None, size: int, packets: Iterable[Packet | BadBytes], *, as_json: bool
) -> bool:
    write = sys.stdout.write
    if title and not as_json:
        write(f"# {title}, {size:,} bytes\n")
    gaps = False
    for item in packets:
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
