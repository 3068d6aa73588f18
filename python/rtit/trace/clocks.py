"""The clocks of a recording, in words: what its times are, and how they belong together."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from rtit.perfdata.attr import AttrFlag

if TYPE_CHECKING:
    from rtit.perfdata import PerfData, TimeConversion

_NAMES = {
    0: "CLOCK_REALTIME",
    1: "CLOCK_MONOTONIC",
    4: "CLOCK_MONOTONIC_RAW",
    7: "CLOCK_BOOTTIME",
    11: "CLOCK_TAI",
}
"""include/uapi/linux/time.h; those that perf takes."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_SECOND = 10**9


def clocks_in_words(data: PerfData) -> list[str]:
    """Each clock of a recording, and how to get from one to another. Raises PerfDataError."""
    return list(_clocks(data))


def _clocks(data: PerfData) -> Iterator[str]:
    clock = data.time_conversion
    if clock is not None:
        yield f"perf's, in ns = {_formula(clock)}"
    named = {each.attr.clockid for each in data.events if each.attr.flags & AttrFlag.USE_CLOCKID}
    for number in sorted(named):
        yield f"records have times of {_name(number)}: not perf's, so that packets have others"
    wall = data.wall_clock
    if wall is not None:
        yield f"{_name(wall.clockid)} {seconds(wall.then)} was {_date(wall.wall)}"


def _formula(clock: TimeConversion) -> str:
    tsc = "TSC"
    if clock.mask != (1 << 64) - 1:
        tsc = f"({clock.cycles:#x} + (TSC - {clock.cycles:#x} & {clock.mask:#x}))"
    return f"{clock.zero:#x} + ({tsc} * {clock.mult} >> {clock.shift})"


def _name(number: int) -> str:
    return _NAMES.get(number, f"clock {number}")


def seconds(nanoseconds: int) -> str:
    """As perf prints it with --ns."""
    return f"{nanoseconds // _SECOND}.{nanoseconds % _SECOND:09}"


def _date(nanoseconds: int) -> str:
    whole, rest = divmod(nanoseconds, _SECOND)
    try:
        when = _EPOCH + timedelta(seconds=whole)
    except OverflowError:
        return f"{nanoseconds} ns after 1970"
    return f"{when:%Y-%m-%d %H:%M:%S}.{rest:09} UTC"
