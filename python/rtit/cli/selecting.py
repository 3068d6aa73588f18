"""The options that say which part of a recording is wanted; see `rtit.trace.selection`."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from rtit.errors import UsageError

if TYPE_CHECKING:
    from rtit.trace import Selection


def add_streams(parser: argparse.ArgumentParser) -> argparse._ArgumentGroup:
    """Which threads or CPUs to look at; returns the group of the options."""
    group = parser.add_argument_group("which part")
    for option, metavar, text in (
        ("--tid", "TID[,TID...]", "only these threads"),
        ("--pid", "PID[,PID...]", "only these processes"),
        (
            "--cpu",
            "CPU[,CPU...]|F/M/S",
            "only these CPUs; with slashes: the family, model and stepping of the processor that "
            "was traced, whose errata are reckoned with",
        ),
        ("--comm", "NAME[,NAME...]", "only threads of these names (the last that each had)"),
    ):
        group.add_argument(option, action="append", default=[], metavar=metavar, help=text)
    return group


def add_code(group: argparse._ArgumentGroup) -> None:
    """When, and where in the code."""
    group.add_argument(
        "--time",
        metavar="A,B",
        help="from A to B, both included: nanoseconds as --fields time prints them, or seconds "
        "with a point in them; either may be left out; TSC ticks where the recording has no clock",
    )
    group.add_argument(
        "--function",
        action="append",
        default=[],
        metavar="NAME[@FILE]",
        help="only instructions of this function; may be repeated",
    )
    group.add_argument(
        "--range",
        action="append",
        default=[],
        metavar="A-B",
        help="only instructions at these hexadecimal addresses, up to and without B; may be "
        "repeated, and adds to --function",
    )


def add_ends(group: argparse._ArgumentGroup, what: str = "instructions") -> None:
    """How many."""
    group.add_argument(
        "--head", type=count, metavar="N", help=f"only the first N {what} of each thread or CPU"
    )
    group.add_argument("--tail", type=count, metavar="N", help="only the last N of each")


def selection(arguments: argparse.Namespace) -> Selection:
    """What the options select, those that the verb has. Raises UsageError."""
    from rtit.trace import Selection
    from rtit.trace.selection import parse_numbers, parse_range, parse_times

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
        cpus=tuple(
            n for text in given("cpu") if "/" not in text for n in parse_numbers("--cpu", text)
        ),
        comms=comms,
        time=parse_times(time) if time is not None else None,
        ranges=tuple(parse_range(text) for text in given("range")),
        functions=tuple(given("function")),
        head=getattr(arguments, "head", None),
        tail=getattr(arguments, "tail", None),
    )


def processor(arguments: argparse.Namespace) -> str | None:
    """The processor that --cpu names, if it does. Raises UsageError if it names two."""
    models = [text for text in getattr(arguments, "cpu", []) if "/" in text]
    if len(models) > 1:
        raise UsageError(f"--cpu names two processors: {' and '.join(models)}")
    return models[0] if models else None


def count(text: str) -> int:
    """A number of things, as an argument's type."""
    if not (text.isascii() and text.isdecimal() and len(text) < 19):
        raise argparse.ArgumentTypeError(f"{text!r} is no number of instructions, rows or places")
    return int(text)
