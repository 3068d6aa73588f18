"""The options of `rtit record` for how much is kept, and for the model of time."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rtit.capture.store.extent import Extent
    from rtit.unit.time_model import TimeModel

_DEFAULT = "4M"  # as perf's for root


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument(
        "--snapshot",
        nargs="?",
        const=_DEFAULT,
        metavar="SIZE",
        help=f"keep the last SIZE bytes of PT of each thread alone (default {_DEFAULT}); they are "
        "written when the recording ends, however the program does, and whenever the recorder "
        "gets SIGUSR2",
    )
    parser.add_argument(
        "--max-size",
        metavar="SIZE",
        help="stop recording when the file is as large (512K, 64M, 1G); the program runs on "
        "(default: no size; but of our own back ends, before less than 1 GiB of the disk is free, "
        "or a twentieth of it if that is less)",
    )
    parser.add_argument(
        "--cpi",
        default="1",
        metavar="N",
        help="model of time: core cycles an instruction takes (default 1)",
    )
    parser.add_argument(
        "--core-clock",
        default="1GHz",
        metavar="FREQUENCY",
        help="model of time: the core's clock, which CBR tells, in steps of 100 MHz "
        "(default 1GHz); the TSC runs at 1 GHz",
    )


def extent(arguments: argparse.Namespace) -> Extent:
    """What of the trace is kept. Raises UsageError."""
    from rtit.capture.store.extent import Extent
    from rtit.capture.store.sizes import parse_size

    snapshot, max_size = arguments.snapshot, arguments.max_size
    return Extent(
        snapshot=None if snapshot is None else parse_size(snapshot, "--snapshot"),
        max_size=None if max_size is None else parse_size(max_size, "--max-size"),
    )


def time(arguments: argparse.Namespace) -> TimeModel:
    """The clocks. Raises UsageError."""
    from rtit.capture.clocks import parse_cpi, parse_frequency, time_model

    return time_model(cpi=parse_cpi(arguments.cpi), core_hz=parse_frequency(arguments.core_clock))
