"""The recording that a reading verb opens, and where the files are that it ran."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, BinaryIO

from rtit.cli.bare import is_bare, opened_bare
from rtit.cli.selecting import processor
from rtit.errors import UsageError

if TYPE_CHECKING:
    from rtit.trace import Trace

_DEFAULT = "perf.data"


def add_file(parser: argparse.ArgumentParser) -> None:
    """The recording."""
    parser.add_argument(
        "file", nargs="?", metavar="FILE", help=f"default: {_DEFAULT}; - reads a pipe"
    )
    parser.add_argument(
        "-i", "--input", metavar="FILE", help="the same, as perf has it", dest="input"
    )


def add_images(parser: argparse.ArgumentParser) -> None:
    """Where the recorded files are now."""
    parser.add_argument(
        "--symfs", metavar="DIR", help="look for the recorded files below this folder"
    )
    parser.add_argument(
        "--map",
        action="append",
        default=[],
        metavar="RECORDED=FILE",
        help="look for this recorded file, or what is in this recorded folder, there; may be "
        "repeated, and goes before --symfs",
    )


def named(arguments: argparse.Namespace) -> str | BinaryIO:
    """The file that the options name, or standard input. Raises UsageError if they name two."""
    if arguments.file is not None and arguments.input is not None:
        raise UsageError(f"two files given: {arguments.file} and -i {arguments.input}")
    given = arguments.file if arguments.file is not None else arguments.input
    name: str = _DEFAULT if given is None else given
    if name != "-":
        return name
    if sys.stdin is None:
        raise UsageError("standard input is closed")
    return sys.stdin.buffer


def opened(arguments: argparse.Namespace) -> Trace:
    """The trace that the options name. Raises UsageError and what `Trace` or `decode` does."""
    from rtit.trace import Trace
    from rtit.trace.settings import cpu_named

    model = processor(arguments)
    if is_bare(arguments):
        return opened_bare(arguments, model)
    path_map = dict(_place(text) for text in getattr(arguments, "map", []))
    return Trace(
        named(arguments),
        symfs=getattr(arguments, "symfs", None),
        path_map=path_map,
        cpu=cpu_named(model) if model is not None else None,
    )


def _place(text: str) -> tuple[str, str]:
    recorded, _, file = text.partition("=")
    if not recorded or not file:
        raise UsageError(f"--map takes RECORDED=FILE, not {text!r}")
    return recorded, file
