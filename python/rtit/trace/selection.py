"""Which part of what ran is wanted: a plain value, the same for every command and view.

Streams are chosen first, by thread, process, CPU and name: one is taken if each kind that is given
names it. Of their instructions those count that are within `time` and, if `ranges` or `functions`
are given, in any of these. `head` or `tail` are then the first or the last ones of each stream; of
streams merged by time, of all of them together.

An instruction's time is that of its run (`Rows.time`): the TSC estimate at the run's start, a lower
bound.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeVar

from rtit.errors import UsageError

if TYPE_CHECKING:
    from rtit.perfdata import TimeConversion


class Chosen(Protocol):
    """A stream, as far as it is chosen by it."""

    @property
    def tid(self) -> int: ...  # noqa: D102 - see `Stream`
    @property
    def pid(self) -> int: ...  # noqa: D102
    @property
    def cpu(self) -> int: ...  # noqa: D102
    @property
    def name(self) -> str | None: ...  # noqa: D102
    @property
    def title(self) -> str: ...  # noqa: D102


S = TypeVar("S", bound=Chosen)

LATEST = (1 << 64) - 1
"""The last TSC value, and the last address."""

_DECIMAL = re.compile(r"[0-9]{1,20}")
_SECONDS = re.compile(r"([0-9]{1,20})\.([0-9]{1,9})")
_TIME_FORM = "expected FROM,TO (either may be empty)"
_TIME_HINT = "examples: --time 1000,2000   --time 1.5,   --time ,0.25"


@dataclass(frozen=True, slots=True)
class Times:
    """From `first` to `last`, both included, in nanoseconds of the perf clock; None has no bound.

    Where a recording does not say how TSC ticks become nanoseconds, the numbers are TSC ticks;
    `seconds` tells that they were given in seconds, which ticks cannot be.
    """

    first: int | None = None
    last: int | None = None
    seconds: bool = False

    def ticks(self, clock: TimeConversion | None) -> tuple[int, int]:
        """The first and the last TSC value within, 0..2**64-1; (1, 0) if there is none.

        Raises UsageError for seconds without a clock.
        """
        if clock is None:
            if self.seconds:
                raise UsageError(
                    "the recording does not say how TSC ticks become seconds: --time in ticks"
                )
            first = 0 if self.first is None else self.first
            last = LATEST if self.last is None else self.last
        else:
            # The tick of the first nanosecond, and the tick before that of the one after the last.
            first = 0 if self.first is None else _tick(clock, self.first)
            last = LATEST if self.last is None else _tick(clock, self.last + 1) - 1
        first, last = max(first, 0), min(last, LATEST)
        return (first, last) if first <= last else (1, 0)


@dataclass(frozen=True, slots=True)
class Selection:
    """What is wanted; an empty field leaves nothing out.

    `ranges` are addresses, (start, end) with the end left out; `functions` are names as `report`
    prints them, `NAME@FILE` for those of one file (see `Places`); `comms` are names of threads.
    `head` and `tail` count instructions, 0 or more; at most one of them is given. Raises UsageError
    if both are.
    """

    tids: tuple[int, ...] = ()
    pids: tuple[int, ...] = ()
    cpus: tuple[int, ...] = ()
    comms: tuple[str, ...] = ()
    time: Times | None = None
    ranges: tuple[tuple[int, int], ...] = ()
    functions: tuple[str, ...] = ()
    head: int | None = None
    tail: int | None = None

    def __post_init__(self) -> None:
        if self.head is not None and self.tail is not None:
            raise UsageError("--head and --tail are the first or the last instructions, not both")

    @property
    def is_whole(self) -> bool:
        """Whether it takes every instruction of the streams that it takes."""
        partial = (self.ranges, self.functions, self.time, self.head is not None)
        return not any(partial) and self.tail is None

    def takes(self, stream: Chosen) -> bool:
        """Whether a stream is among those chosen."""
        return (
            (not self.tids or stream.tid in self.tids)
            and (not self.pids or stream.pid in self.pids)
            and (not self.cpus or stream.cpu in self.cpus)
            and (not self.comms or stream.name in self.comms)
        )

    def streams(self, streams: Iterable[S]) -> list[S]:
        """Those that are chosen, in their order. Raises UsageError if some are asked for and there
        are none.
        """
        have = list(streams)
        found = [each for each in have if self.takes(each)]
        if not found and (self.tids or self.pids or self.cpus or self.comms):
            there = ", ".join(each.title for each in have) or "none"
            raise UsageError(f"no such stream; the recording has: {there}")
        return found


def parse_times(text: str) -> Times:
    """`FROM,TO` as `Times`: whole numbers are nanoseconds, as rtit prints them, numbers with a
    point seconds, as perf prints them. Raises UsageError.
    """
    words = text.split(",")
    if len(words) != 2:
        raise UsageError(f"--time {text}: {_TIME_FORM}", hint=_TIME_HINT)
    bounds: list[int | None] = []
    seconds = False
    for word in map(str.strip, words):
        if match := _SECONDS.fullmatch(word):
            seconds = True
            bounds.append(int(match[1]) * 1_000_000_000 + int(match[2].ljust(9, "0")))
        elif not word:
            bounds.append(None)
        elif _DECIMAL.fullmatch(word):
            bounds.append(int(word))
        else:
            raise UsageError(
                f"--time {text}: {word!r} is not a time; {_TIME_FORM}", hint=_TIME_HINT
            )
    first, last = bounds
    if any(bound is not None and bound > LATEST for bound in bounds):
        raise UsageError(f"--time {text}: times have 64 bits")
    if first is not None and last is not None and first > last:
        raise UsageError(f"--time {text} ends before it begins")
    return Times(first, last, seconds)


def parse_range(text: str) -> tuple[int, int]:
    """`START-END` as addresses, hexadecimal with or without 0x, END excluded. Raises UsageError."""
    words = [word.strip().lower().removeprefix("0x") for word in text.split("-")]
    if len(words) != 2 or not all(re.fullmatch("[0-9a-f]{1,16}", word) for word in words):
        raise UsageError(
            f"--range {text}: expected START-END in hexadecimal, END excluded",
            hint="example: --range 401000-401080",
        )
    start, end = (int(word, 16) for word in words)
    if start >= end:
        raise UsageError(f"--range {text} has no address: it ends at or before its start")
    return start, end


def parse_numbers(option: str, text: str) -> tuple[int, ...]:
    """Numbers joined by commas. Raises UsageError."""
    words = text.split(",")
    for word in words:
        if not _DECIMAL.fullmatch(word) or int(word) >> 31:
            raise UsageError(
                f"{option} {text}: expected numbers, separated by commas; got {word!r}"
            )
    return tuple(map(int, words))


def _tick(clock: TimeConversion, nanoseconds: int) -> int:
    """The first TSC value at `nanoseconds` or later; may be negative, or beyond 64 bits."""
    zero = clock.zero - (1 << 64) if clock.zero >> 63 else clock.zero
    return -(-((nanoseconds - zero) << clock.shift) // clock.mult)
