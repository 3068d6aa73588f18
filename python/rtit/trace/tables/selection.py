"""Which part of what ran is wanted: a plain value, the same for every command and view.

Streams are chosen first, by thread, process, CPU and name: one is taken if each kind that is given
names it. Of their instructions those count that are within `time` and, if `ranges` or `functions`
are given, in any of these. `head` or `tail` are then the first or the last ones of each stream; of
streams merged by time, of all of them together.

An instruction's time is that of its run (`Rows.time`): the TSC estimate at the run's start, a lower
bound.

Where the code is that a selection names.

How many instructions ran in each function.

Which rows of a table a selection takes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

from rtit.errors import UsageError
from rtit.image import FileSymbols, Images, Mapping
from rtit.perfdata import TimeConversion
from rtit.readable import name_to_text
from rtit.trace.tables.batch import Batch

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from rtit.image import Symbols
    from rtit.perfdata import TimeConversion
    from rtit.trace.stream import Stream


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


class Place(NamedTuple):
    """Addresses from `start` up to `end`, from time `since` up to `until` (TSC)."""

    start: int
    end: int
    since: int = 0
    until: int = LATEST


class Places:
    """The ranges and functions of a selection, process by process.

    A function is named as it is printed, or as its file spells it (C++ and Rust); `@FILE` behind
    the name takes that of one file only, a path or its last part. A file alone stands for what in
    it belongs to no function, as it does in a report.
    """

    def __init__(self, selection: Selection, images: Images) -> None:
        self._selection = selection
        self._images = images
        self._offsets: dict[tuple[str, str, bytes | None], list[tuple[int, int]]] = {}

    def of(self, *pids: int) -> list[Place] | None:
        """Those in any of some processes, sorted; they may overlap. None if the selection has
        neither ranges nor functions: then all places are wanted. A function that is not there adds
        nothing: see `check`.
        """
        if not self._selection.ranges and not self._selection.functions:
            return None
        found = {Place(start, end) for start, end in self._selection.ranges}
        for mapping in (each for pid in pids for each in self._images.mappings(pid)):
            for name in self._selection.functions:
                found.update(self._in_mapping(name, mapping))
        return sorted(found)

    def by_space(self, pids: Sequence[int]) -> tuple[list[Place], ...] | None:
        """As `of`, of each process by itself."""
        found = [each for pid in pids if (each := self.of(pid)) is not None]
        return tuple(found) if len(found) == len(pids) else None

    def check(self, pids: Iterable[int]) -> None:
        """Raises UsageError for a function that is nowhere in these processes; it lists names near
        it.
        """
        mappings = [mapping for pid in pids for mapping in self._images.mappings(pid)]
        for name in self._selection.functions:
            if any(True for mapping in mappings for _ in self._in_mapping(name, mapping)):
                continue
            files = {(each.path, each.build_id): each for each in mappings}
            known = {each for mapping in files.values() for each in self._names(mapping)}
            import difflib

            near = difflib.get_close_matches(name_to_text(name), known, n=5, cutoff=0.5)
            hint = f"; near it: {', '.join(near)}" if near else ""
            raise UsageError(f"--function {name}: nothing that was mapped has it{hint}")

    def _in_mapping(self, name: str, mapping: Mapping) -> Iterator[Place]:
        key = (name, mapping.path, mapping.build_id)
        if key not in self._offsets:
            self._offsets[key] = list(_offsets(name, mapping.path, self._symbols(mapping)))
        size = mapping.end - mapping.start
        for start, end in self._offsets[key]:
            low, high = max(start - mapping.offset, 0), min(end - mapping.offset, size)
            if low < high:
                base = mapping.start
                yield Place(base + low, base + high, mapping.since, mapping.until)

    def _symbols(self, mapping: Mapping) -> FileSymbols | None:
        return self._images.files.symbols(mapping.path, mapping.build_id)

    def _names(self, mapping: Mapping) -> Iterator[str]:
        symbols = self._symbols(mapping)
        if symbols is not None:
            yield from map(_readable, symbols.names)


def _offsets(name: str, path: str, symbols: FileSymbols | None) -> Iterator[tuple[int, int]]:
    """Ranges of a file's offsets that belong to a name."""
    bare, at, file = name.rpartition("@")
    names = set(map(name_to_text, (name, bare) if at and _is_file(file, path) else (name,)))
    behind = 0
    if symbols is not None:
        functions = symbols.functions
        # One that has several names is there once, under the best.
        wanted = {
            each.offset for each in functions if each.name in names or _readable(each.name) in names
        }
        for start, end, owner in zip(*symbols.owned_ranges, strict=True):
            if functions[owner].offset in wanted:
                yield start, end
            if _is_file(name, path) and behind < start:
                yield behind, start
            behind = max(behind, end)
    if _is_file(name, path):
        yield behind, LATEST


def _is_file(name: str, path: str) -> bool:
    return bool(name) and name in (path, PurePath(path).name)


def _readable(name: str) -> str:
    from rtit._core import demangle

    return demangle(name)


def functions(stream: Stream, symbols: Symbols) -> Iterator[tuple[str, str, int]]:
    """(name, path of the file, instructions) of a stream, decoded to its end; "" where nothing is
    known. One function may come more than once.
    """
    if not stream.is_taken_out:
        names, *others = map(symbols.names, (stream.tid, *stream.pids[1:]))
        yield from stream.native().functions(names, others)
        return
    import numpy as np

    for batch in stream.instructions():
        tids = batch.more["tid"]
        for tid in np.unique(tids).tolist():
            own = tids == tid
            numbers, _ = symbols.lookup_many(tid, batch.time[own], batch.ip[own])
            counted = np.bincount(numbers)
            for number in counted.nonzero()[0].tolist():
                yield *symbols.table[number], int(counted[number])


B = TypeVar("B", bound=Batch)


@dataclass(frozen=True, slots=True)
class Filter:
    """What a selection means for one stream: times (TSC, the first and the last), places (None:
    all), those of each address space by its number, if there are several, and how many rows at
    either end. Rows without a column `space` are chosen by the places of all.
    """

    times: tuple[int, int] = (0, LATEST)
    places: list[Place] | None = None
    by_space: tuple[list[Place], ...] | None = None
    head: int | None = None
    tail: int | None = None

    @classmethod
    def meant(
        cls,
        selection: Selection,
        pids: Sequence[int],
        images: Images | None,
        clock: TimeConversion | None,
    ) -> Filter:
        """By a selection, of a stream with the code of these processes, an address space each.
        Raises UsageError for times in seconds without a clock.
        """
        places = Places(selection, Images() if images is None else images)
        return cls(
            selection.time.ticks(clock) if selection.time is not None else (0, LATEST),
            places.of(*pids),
            places.by_space(pids) if len(pids) > 1 else None,
            selection.head,
            selection.tail,
        )

    @property
    def is_timed(self) -> bool:
        """Whether rows are chosen by their time."""
        return self.times != (0, LATEST)

    @property
    def is_ordered(self) -> bool:
        """Whether it takes rows by when they came."""
        return self.is_timed or self.head is not None or self.tail is not None

    def of(self, batch: B) -> B:
        """What it takes of a batch, whatever comes before or after."""
        keep = self.mask(batch)
        return batch if keep is None or keep.all() else batch.take(keep)

    def check(self, kind: type[Batch]) -> None:
        """Raises UsageError for what rows of this kind cannot be chosen by."""
        if kind.WHERE is None and self.places is not None:
            raise UsageError(f"rows of {kind.__name__} have no address to be chosen by")
        if kind.WHEN is None and self.is_timed:
            raise UsageError(f"rows of {kind.__name__} have no time to be chosen by")

    def apply(self, batches: Iterator[B]) -> Iterator[B]:
        """What it takes of the batches of a stream, without batches that are empty then."""
        found = (each for each in map(self.of, self.until_last(batches)) if len(each))
        if self.head is not None:
            return _first(found, self.head)
        if self.tail is not None:
            return _last(found, self.tail)
        return found

    def until_last(self, batches: Iterator[B]) -> Iterator[B]:
        """Without those behind a whole batch that is too late: nothing that is wanted is there."""
        last = self.times[1]
        for batch in batches:
            yield batch
            if last < LATEST and batch.WHEN is not None and len(batch):
                times = getattr(batch, batch.WHEN)
                if int(times[-1]) > last and int(times.min()) > last:
                    return

    def mask(self, batch: Batch) -> NDArray[np.bool_] | None:
        """Which rows are within the times and at the places; None: all."""
        import numpy as np

        keep: NDArray[np.bool_] | None = None
        # packets have times only if they are chosen by them
        times = getattr(batch, batch.WHEN, None) if batch.WHEN is not None else None
        if self.is_timed and times is not None:
            first, last = map(np.uint64, self.times)
            keep = (times >= first) & (times <= last)
        if self.places is None or batch.WHERE is None:
            return keep
        low, high = (getattr(batch, name) for name in batch.WHERE)
        spaces = batch.more.get("space")
        if self.by_space is None or spaces is None:
            inside = _inside(self.places, low, high, times)
        else:
            inside = np.zeros(len(batch), np.bool_)
            for number in np.unique(spaces).tolist():
                own = spaces == number
                when = times[own] if times is not None else None
                inside[own] = _inside(self.by_space[number], low[own], high[own], when)
        return inside if keep is None else keep & inside


def _inside(
    places: Sequence[Place],
    low: NDArray[Any],
    high: NDArray[Any],
    times: NDArray[Any] | None,
) -> NDArray[np.bool_]:
    """Which rows, by their lowest and their highest address, have something at any of the places;
    without times all of these count.
    """
    import numpy as np

    inside = np.zeros(len(low), np.bool_)
    for start, end, since, until in places:
        here = (low < np.uint64(min(end, LATEST))) & (high >= np.uint64(start))
        if times is not None and (since > 0 or until < LATEST):
            here &= (times >= np.uint64(since)) & (times < np.uint64(until))
        inside |= here
    return inside


def _first(batches: Iterator[B], left: int) -> Iterator[B]:
    while left > 0 and (batch := next(batches, None)) is not None:
        yield batch if len(batch) <= left else batch.take(slice(0, left))
        left -= len(batch)


def _last(batches: Iterator[B], most: int) -> Iterator[B]:
    kept: list[B] = []
    have = 0
    for batch in batches:
        kept.append(batch)
        have += len(batch)
        while kept and have - len(kept[0]) >= most:
            have -= len(kept.pop(0))
    if kept and have > most:
        kept[0] = kept[0].take(slice(have - most, None))
    yield from kept
