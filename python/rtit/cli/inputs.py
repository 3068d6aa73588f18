"""Options that the reading verbs share."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import TYPE_CHECKING

from rtit.errors import UsageError

if TYPE_CHECKING:
    from rtit.trace import Stream, Trace


def add_file(parser: argparse.ArgumentParser) -> None:
    """The recording."""
    parser.add_argument(
        "file", nargs="?", default="perf.data", metavar="FILE", help="default: perf.data"
    )


def add_streams(parser: argparse.ArgumentParser) -> None:
    """Which threads (or CPUs) to look at."""
    parser.add_argument("--tid", type=int, metavar="TID", help="only this thread")
    parser.add_argument("--cpu", type=int, metavar="CPU", help="only this CPU")


def add_symfs(parser: argparse.ArgumentParser) -> None:
    """Where the recorded files are now."""
    parser.add_argument(
        "--symfs", metavar="DIR", help="look for the recorded files below this folder"
    )


def chosen(trace: Trace, arguments: argparse.Namespace) -> Iterator[Stream]:
    """The streams that --tid and --cpu name. Raises UsageError if there is none."""
    streams = [
        stream
        for stream in trace.streams
        if arguments.tid in (None, stream.tid) and arguments.cpu in (None, stream.cpu)
    ]
    if not streams and (arguments.tid is not None or arguments.cpu is not None):
        have = ", ".join(stream.title for stream in trace.streams) or "none"
        raise UsageError(f"no such stream in {trace.path}; it has: {have}")
    return iter(streams)
