"""`rtit diff A B`: where two recordings part, and what ran more often in one; 1 if they part."""

from __future__ import annotations

import argparse
from contextlib import ExitStack
from typing import TYPE_CHECKING

from rtit.cli import out
from rtit.cli.bare import add_bare_code
from rtit.cli.gaps import EXIT_CODE
from rtit.cli.inputs import add_images, add_places, add_threads, opened
from rtit.cli.selecting import add_streams, count, selection
from rtit.cli.watching import watched
from rtit.diff.amounts import STEPS, TOP
from rtit.errors import UsageError

if TYPE_CHECKING:
    from rtit.trace import Trace


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("first", metavar="A", help="a recording")
    parser.add_argument("second", metavar="B", help="another of the same program")
    parser.add_argument(
        "--steps",
        type=int,
        default=STEPS,
        metavar="N",
        help=f"so many instructions before and after the place (default {STEPS})",
    )
    parser.add_argument(
        "--top",
        type=count,
        default=TOP,
        metavar="N",
        help=f"so many functions and calls whose counts differ (default {TOP})",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.epilog = (
        "exit codes: 0 the same path, 1 they part or a failure, 2 usage, 3 the same as far as they "
        "could be decoded\n"
    )
    add_streams(parser)
    add_images(parser)
    add_threads(parser)
    add_places(parser, calls=True)
    group = parser.add_argument_group("bare PT, instead of recordings")
    group.add_argument(
        "--raw",
        action="store_const",
        const=True,
        help="A and B are the packets of one logical processor, and ran the same code",
    )
    add_bare_code(group)


def run(arguments: argparse.Namespace) -> int:
    """Print the difference."""
    from rtit.diff.text import as_json, text
    from rtit.diff.whole import diff

    if arguments.steps < 1:
        raise UsageError(f"--steps takes a number from 1 on, not {arguments.steps}")
    with ExitStack() as stack:
        left, right = (
            stack.enter_context(_opened(arguments, name))
            for name in (arguments.first, arguments.second)
        )
        chosen = selection(arguments)
        streams = left.select(chosen, apart=True), right.select(chosen, apart=True)
        with watched("diff", [*streams[0], *streams[1]], prints=False):
            found = diff(left, right, streams, steps=arguments.steps)
        if arguments.json:
            out.document(as_json(found), indent=2)
        else:
            for line in text(found, arguments.top):
                out.line(line)
    if not found.identical:
        return 1
    return EXIT_CODE if found.gaps else 0


def _opened(arguments: argparse.Namespace, name: str) -> Trace:
    bare = arguments.raw is not None
    arguments.raw = name if bare else None
    arguments.file, arguments.input = None if bare else name, None
    return opened(arguments)
