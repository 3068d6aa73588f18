"""The options that select a part of a recording; see `rtit.trace.tables.selection`."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from rtit.errors import UsageError

if TYPE_CHECKING:
    from rtit.trace import Selection


def add_streams(parser: argparse.ArgumentParser) -> argparse._ArgumentGroup:
    """Declare the options that select threads and CPUs; return their group."""
    group = parser.add_argument_group("Selection")
    for option, metavar, text in (
        ("--tid", "TID,...", "Only these threads"),
        ("--pid", "PID,...", "Only these processes"),
        ("--comm", "NAME,...", "Only threads with these names (the last name counts)"),
        ("--cpu", "N,...", "Only these CPUs"),
    ):
        group.add_argument(option, action="append", default=[], metavar=metavar, help=text)
    return group


def add_code(group: argparse._ArgumentGroup) -> None:
    """Declare the options that select functions, addresses and a time span."""
    group.add_argument(
        "--function",
        action="append",
        default=[],
        metavar="NAME[@FILE]",
        help="Only this function; may be repeated",
    )
    group.add_argument(
        "--range",
        action="append",
        default=[],
        metavar="START-END",
        help="Only addresses from START up to END (hexadecimal, END excluded); may be repeated, "
        "and adds to --function",
    )
    group.add_argument(
        "--time",
        metavar="FROM,TO",
        help="Only this time span: nanoseconds, or seconds with a decimal point (TSC ticks if the "
        "recording has no clock)",
    )


def add_ends(group: argparse._ArgumentGroup, rows: str = "instructions") -> None:
    """Declare --head and --tail."""
    group.add_argument(
        "--head", type=count, metavar="N", help=f"Only the first N {rows} of each thread or CPU"
    )
    group.add_argument(
        "--tail", type=count, metavar="N", help=f"Only the last N {rows} of each thread or CPU"
    )


def add_timing(group: argparse._ArgumentGroup) -> None:
    """Declare --timing."""
    group.add_argument(
        "--timing",
        action="store_true",
        help="Also show the bounds of each time, in nanoseconds (in JSON: in TSC ticks, with "
        "cycles, frequency, and for blocks instructions per cycle)",
    )


def add_json(group: argparse._ArgumentGroup, text: str = "Print one JSON object a line") -> None:
    """Declare --json."""
    group.add_argument("--json", action="store_true", help=text)


def selection(arguments: argparse.Namespace) -> Selection:
    """Return what the options select. Raises UsageError."""
    from rtit.trace import Selection
    from rtit.trace.tables.selection import parse_numbers, parse_range, parse_times

    def given(name: str) -> list[str]:
        texts: list[str] = getattr(arguments, name, [])
        return texts

    def numbers(name: str) -> tuple[int, ...]:
        return tuple(n for text in given(name) for n in parse_numbers(f"--{name}", text))

    comms = tuple(name for text in given("comm") for name in text.split(","))
    time = getattr(arguments, "time", None)
    for option, values in (("--comm", comms), ("--function", given("function"))):
        if "" in values:
            raise UsageError(f"{option} needs a name")
    return Selection(
        tids=numbers("tid"),
        pids=numbers("pid"),
        cpus=numbers("cpu"),
        comms=comms,
        time=parse_times(time) if time is not None else None,
        ranges=tuple(parse_range(text) for text in given("range")),
        functions=tuple(given("function")),
        head=getattr(arguments, "head", None),
        tail=getattr(arguments, "tail", None),
    )


def count(text: str) -> int:
    """Return a number of things, as an argument's type."""
    if not (text.isascii() and text.isdecimal() and len(text) < 19):
        raise argparse.ArgumentTypeError(f"expected a number from 0 on, got {text!r}")
    return int(text)
