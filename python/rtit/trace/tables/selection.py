"""Which rows of a trace a user wants: options, address ranges and row filters.

* `Selection` holds the options of a command: threads, times, address ranges, functions, head and
  tail. It is a plain value without reference to a recording.
* `SelectedRanges` translates ranges and function names to addresses, process by process.
* `RowFilter` is a selection for one stream. It selects the rows of any table.

A stream must match each given option of `tids`, `pids`, `cpus` and `comms`. Its instructions are
selected if they are within `time` and, if `ranges` or `functions` are given, inside of one of them.
`indexes` selects instructions by their position in the stream.
`head` and `tail` then limit the number of instructions of each stream, or of all streams together
if they are merged by time. An instruction's time is that of its run (`Rows.time`): the TSC estimate
at the run's start, a lower bound.
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
from rtit.text_escaping import name_to_text, similar_names_hint
from rtit.trace.tables.batch import Batch

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from rtit.perfdata import TimeConversion


class SelectableStream(Protocol):
    """The properties of a stream that a selection tests."""

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


S = TypeVar("S", bound=SelectableStream)

LATEST = (1 << 64) - 1
"""The last TSC value, and the last address."""

_DECIMAL = re.compile(r"[0-9]{1,20}")
_SECONDS = re.compile(r"([0-9]{1,20})\.([0-9]{1,9})")
_TIME_FORM = "expected FROM,TO (either may be empty)"
_TIME_HINT = "examples: --time 1000,2000   --time 1.5,   --time ,0.25"


@dataclass(frozen=True, slots=True)
class TimeRange:
    """A time range from `first` to `last`, both included, in nanoseconds of the perf clock.

    None is no bound. If a recording has no conversion between TSC and nanoseconds, the numbers are
    TSC ticks. `seconds`: they were given in seconds, and cannot be ticks.
    """

    first: int | None = None
    last: int | None = None
    seconds: bool = False

    def to_ticks(self, clock: TimeConversion | None) -> tuple[int, int]:
        """The first and the last TSC value in the range, 0 to 2**64-1; (1, 0) if it is empty.

        Raises UsageError for seconds without a clock.
        """
        if clock is None:
            if self.seconds:
                raise UsageError(
                    "the recording has no conversion from TSC ticks to seconds: give --time in "
                    "ticks"
                )
            first = 0 if self.first is None else self.first
            last = LATEST if self.last is None else self.last
        else:
            # `last` is included: the last tick is the one before the next nanosecond's.
            first = 0 if self.first is None else _first_tick(clock, self.first)
            last = LATEST if self.last is None else _first_tick(clock, self.last + 1) - 1
        first, last = max(first, 0), min(last, LATEST)
        return (first, last) if first <= last else (1, 0)


@dataclass(frozen=True, slots=True)
class Selection:
    """The selection options. An empty field excludes nothing.

    `ranges` are addresses, (start, end) without the end. `functions` are names as `report` prints
    them, or `NAME@FILE` (see `SelectedRanges`). `comms` are thread names. `indexes` are positions
    of instructions in their thread, from 0 on: (start, end) without the end. `head` and `tail`
    count instructions. Raises UsageError if both are given, for a negative count, and for a single
    name or number in place of a tuple.
    """

    tids: tuple[int, ...] = ()
    pids: tuple[int, ...] = ()
    cpus: tuple[int, ...] = ()
    comms: tuple[str, ...] = ()
    time: TimeRange | None = None
    ranges: tuple[tuple[int, int], ...] = ()
    functions: tuple[str, ...] = ()
    indexes: tuple[int, int] | None = None
    head: int | None = None
    tail: int | None = None

    def __post_init__(self) -> None:
        if self.head is not None and self.tail is not None:
            raise UsageError("--head and --tail cannot be combined")
        for name in ("head", "tail"):
            if (getattr(self, name) or 0) < 0:
                raise UsageError(f"`{name}` is negative: {getattr(self, name)}")
        for name in ("tids", "pids", "cpus", "comms", "ranges", "functions"):
            value = getattr(self, name)
            if isinstance(value, str | bytes) or not isinstance(value, Sequence):
                raise UsageError(f"`{name}` is not a tuple: {value!r}")
        if not isinstance(self.time, TimeRange | None):
            raise UsageError(f"`time` is not a `TimeRange`: {self.time!r}")

    def matches(self, stream: SelectableStream) -> bool:
        """Whether a stream has a selected thread, process, CPU and name."""
        return (
            (not self.tids or stream.tid in self.tids)
            and (not self.pids or stream.pid in self.pids)
            and (not self.cpus or stream.cpu in self.cpus)
            and (not self.comms or stream.name in self.comms)
        )

    def select_streams(self, streams: Iterable[S]) -> list[S]:
        """Return the matching streams, in their order.

        Raises UsageError if the selection names streams and none matches.
        """
        all_streams = list(streams)
        matching = [each for each in all_streams if self.matches(each)]
        if not matching and (self.tids or self.pids or self.cpus or self.comms):
            titles = ", ".join(each.title for each in all_streams) or "none"
            raise UsageError(f"no such stream; the recording has: {titles}")
        return matching


def parse_times(text: str) -> TimeRange:
    """Parse `A,B`. Whole numbers are nanoseconds, as rtit prints them; numbers with a point are
    seconds, as perf prints them. Raises UsageError.
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
        raise UsageError(f"--time {text}: times must fit in 64 bits")
    if first is not None and last is not None and first > last:
        raise UsageError(f"--time {text} ends before it begins")
    return TimeRange(first, last, seconds)


def parse_range(text: str) -> tuple[int, int]:
    """Parse `START-END`: hexadecimal addresses, with or without 0x, END excluded.

    Raises UsageError.
    """
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


def parse_indexes(text: str) -> tuple[int, int]:
    """Parse `FIRST-END`: positions of instructions, END excluded. Raises UsageError."""
    words = text.split("-")
    if len(words) != 2 or not all(_DECIMAL.fullmatch(word) for word in words):
        raise UsageError(
            f"--index {text}: expected FIRST-END, END excluded", hint="example: --index 1000-2000"
        )
    first, end = map(int, words)
    if not first < end <= LATEST:
        raise UsageError(f"--index {text} selects no instruction")
    return first, end


def parse_numbers(option: str, text: str) -> tuple[int, ...]:
    """Parse numbers separated by commas. Raises UsageError."""
    words = text.split(",")
    for word in words:
        if not _DECIMAL.fullmatch(word) or int(word) >> 31:
            raise UsageError(
                f"{option} {text}: expected numbers, separated by commas; got {word!r}"
            )
    return tuple(map(int, words))


def _first_tick(clock: TimeConversion, nanoseconds: int) -> int:
    """Return the first TSC value at `nanoseconds` or later. May be negative or exceed 64 bits."""
    zero = clock.zero - (1 << 64) if clock.zero >> 63 else clock.zero
    return -(-((nanoseconds - zero) << clock.shift) // clock.mult)


class SelectedRange(NamedTuple):
    """Addresses from `start` up to `end`, from time `since` up to `until` (TSC)."""

    start: int
    end: int
    since: int = 0
    until: int = LATEST


class FunctionInFile(NamedTuple):
    """A function: path of the file, offset in it, and symbol as in the file."""

    path: str
    offset: int
    symbol: str


class SelectedRanges:
    """The address ranges of a selection's `ranges` and `functions`, process by process.

    A function has the name that rtit prints, or the one in its file (C++ and Rust). `NAME@FILE`
    selects the function of one file, given by its path or the last part of it. A file alone stands
    for all code in it that belongs to no function, as in a report.
    """

    def __init__(self, selection: Selection, images: Images) -> None:
        self._selection = selection
        self._images = images
        self._offsets: dict[tuple[str, str, bytes | None], list[tuple[int, int]]] = {}

    def in_processes(self, *pids: int) -> list[SelectedRange] | None:
        """Return the ranges in any of the processes, sorted; they may overlap.

        None if the selection has neither ranges nor functions. Unknown functions add nothing: see
        `check`.
        """
        if not self._selection.ranges and not self._selection.functions:
            return None
        found = {SelectedRange(start, end) for start, end in self._selection.ranges}
        for mapping in (each for pid in pids for each in self._images.mappings(pid)):
            for name in self._selection.functions:
                found.update(self._in_mapping(name, mapping))
        return sorted(found)

    def by_process(self, pids: Sequence[int]) -> tuple[list[SelectedRange], ...] | None:
        """As `in_processes`, for each process separately."""
        found = [each for pid in pids if (each := self.in_processes(pid)) is not None]
        return tuple(found) if len(found) == len(pids) else None

    def entries(self, name: str, pids: Iterable[int]) -> dict[FunctionInFile, list[SelectedRange]]:
        """Return the first byte of each function with a name, in each mapping of its file."""
        found: dict[FunctionInFile, list[SelectedRange]] = {}
        mappings = {mapping for pid in pids for mapping in self._images.mappings(pid)}
        for mapping in sorted(mappings, key=lambda each: (each.path, each.start)):
            symbols = self._symbols_of_mapping(mapping)
            for offset, symbol in _functions_of_name(name, mapping.path, symbols).items():
                start = mapping.start + offset - mapping.offset
                if mapping.start <= start < mapping.end:
                    function = FunctionInFile(mapping.path, offset, symbol)
                    found.setdefault(function, []).append(
                        SelectedRange(start, start + 1, mapping.since, mapping.until)
                    )
        return found

    def check_functions_exist(self, pids: Iterable[int], option: str = "--function") -> None:
        """Raise UsageError for a function that no process has.

        The error lists similar names, or says which file could not be read.
        """
        mappings = [mapping for pid in pids for mapping in self._images.mappings(pid)]
        for name in self._selection.functions:
            if any(True for mapping in mappings for _ in self._in_mapping(name, mapping)):
                continue
            files = {(each.path, each.build_id): each for each in mappings}
            names = {
                each
                for mapping in files.values()
                for each in self._function_names_of_mapping(mapping)
            }
            hint = similar_names_hint(name_to_text(name), names)
            if self._images.problems:
                hint = f"; {self._images.problems[0].message}"
            raise UsageError(f"{option} {name}: no mapped file has this function{hint}")

    def _in_mapping(self, name: str, mapping: Mapping) -> Iterator[SelectedRange]:
        key = (name, mapping.path, mapping.build_id)
        if key not in self._offsets:
            self._offsets[key] = list(
                _function_offsets(name, mapping.path, self._symbols_of_mapping(mapping))
            )
        size = mapping.end - mapping.start
        for start, end in self._offsets[key]:
            low, high = max(start - mapping.offset, 0), min(end - mapping.offset, size)
            if low < high:
                base = mapping.start
                yield SelectedRange(base + low, base + high, mapping.since, mapping.until)

    def _symbols_of_mapping(self, mapping: Mapping) -> FileSymbols | None:
        return self._images.files.symbols(mapping.path, mapping.build_id)

    def _function_names_of_mapping(self, mapping: Mapping) -> Iterator[str]:
        symbols = self._symbols_of_mapping(mapping)
        if symbols is not None:
            yield from map(_demangle_name, symbols.names)


def _function_offsets(
    name: str, path: str, symbols: FileSymbols | None
) -> Iterator[tuple[int, int]]:
    """Yield the ranges of file offsets that belong to a function name."""
    end_of_last = 0
    if symbols is not None:
        functions = symbols.functions
        matching = _functions_of_name(name, path, symbols)
        for start, end, owner in zip(*symbols.native.owned_ranges(), strict=True):
            if functions[owner].offset in matching:
                yield start, end
            if _is_file(name, path) and end_of_last < start:
                yield end_of_last, start
            end_of_last = max(end_of_last, end)
    if _is_file(name, path):
        yield end_of_last, LATEST


def _functions_of_name(name: str, path: str, symbols: FileSymbols | None) -> dict[int, str]:
    """Return the symbols of the functions with a name, by their offset in the file."""
    if symbols is None:
        return {}
    bare, at, file = name.rpartition("@")
    names = set(map(name_to_text, (name, bare) if at and _is_file(file, path) else (name,)))
    # A function with several names is listed once, under the best one.
    return {
        each.offset: each.name
        for each in symbols.functions
        if each.name in names or _demangle_name(each.name) in names
    }


def _is_file(name: str, path: str) -> bool:
    return bool(name) and name in (path, PurePath(path).name)


def _demangle_name(name: str) -> str:
    from rtit._core import demangle

    return demangle(name)


B = TypeVar("B", bound=Batch)


@dataclass(frozen=True, slots=True)
class RowFilter:
    """A selection for one stream. Selects rows of any table.

    `times`: first and last TSC value. `ranges`: None selects all addresses. `ranges_by_space`: the
    ranges of each address space by its number, if there are several; rows without a column `space`
    use `ranges`. `indexes`: position of instructions in the stream. `head`, `tail`: number of rows.
    """

    times: tuple[int, int] = (0, LATEST)
    ranges: list[SelectedRange] | None = None
    ranges_by_space: tuple[list[SelectedRange], ...] | None = None
    indexes: tuple[int, int] | None = None
    head: int | None = None
    tail: int | None = None

    @classmethod
    def from_selection(
        cls,
        selection: Selection,
        pids: Sequence[int],
        images: Images | None,
        clock: TimeConversion | None,
    ) -> RowFilter:
        """The filter of a selection for a stream with these processes, one for each address space.

        Raises UsageError for times in seconds without a clock.
        """
        ranges = SelectedRanges(selection, Images() if images is None else images)
        return cls(
            selection.time.to_ticks(clock) if selection.time is not None else (0, LATEST),
            ranges.in_processes(*pids),
            ranges.by_process(pids) if len(pids) > 1 else None,
            selection.indexes,
            selection.head,
            selection.tail,
        )

    @property
    def selects_by_time(self) -> bool:
        """Whether the filter excludes any time."""
        return self.times != (0, LATEST)

    @property
    def depends_on_order(self) -> bool:
        """Whether the filter needs the order or the times of rows."""
        limits = self.indexes, self.head, self.tail
        return self.selects_by_time or any(each is not None for each in limits)

    def check_batch_type(self, batch_type: type[Batch]) -> None:
        """Raise UsageError if rows of this type lack the time or address that the filter needs."""
        if batch_type.ADDRESS_COLUMNS is None and self.ranges is not None:
            raise UsageError(f"rows of {batch_type.__name__} have no address to be selected by")
        if batch_type.TIME_COLUMN is None and self.selects_by_time:
            raise UsageError(f"rows of {batch_type.__name__} have no time to be selected by")
        if not batch_type.IS_INSTRUCTION and self.indexes is not None:
            raise UsageError(f"rows of {batch_type.__name__} are no instructions to be counted")

    def filter_batches(self, batches: Iterator[B]) -> Iterator[B]:
        """Return the selected rows of a stream, without empty batches."""
        if self.indexes is not None:
            batches = _rows_from_to(batches, *self.indexes)
        selected = (self.select_rows(each) for each in self.stop_after_match(batches))
        found = (each for each in selected if len(each))
        if self.head is not None:
            return _first_rows(found, self.head)
        if self.tail is not None:
            return _last_rows(found, self.tail)
        return found

    def select_rows(self, batch: B) -> B:
        """The rows of one batch with selected time and address; ignores `head` and `tail`."""
        mask = self.selected_row_mask(batch)
        return batch if mask is None or mask.all() else batch.select_rows(mask)

    def stop_after_match(self, batches: Iterator[B]) -> Iterator[B]:
        """Yield the batches up to the first that is later than the selected time as a whole."""
        last = self.times[1]
        for batch in batches:
            yield batch
            if last < LATEST and batch.TIME_COLUMN is not None and len(batch):
                times = getattr(batch, batch.TIME_COLUMN)
                if int(times[-1]) > last and int(times.min()) > last:
                    return

    def selected_row_mask(self, batch: Batch) -> NDArray[np.bool_] | None:
        """Return the mask of rows with a selected time and address; None for all rows."""
        import numpy as np

        mask: NDArray[np.bool_] | None = None
        # Packets have times only if they are selected by time.
        times = getattr(batch, batch.TIME_COLUMN, None) if batch.TIME_COLUMN is not None else None
        if self.selects_by_time and times is not None:
            first, last = map(np.uint64, self.times)
            mask = (times >= first) & (times <= last)
        if self.ranges is None or batch.ADDRESS_COLUMNS is None:
            return mask
        low, high = (getattr(batch, name) for name in batch.ADDRESS_COLUMNS)
        spaces = batch.extra_columns.get("space")
        if self.ranges_by_space is None or spaces is None:
            inside = rows_overlapping_ranges(self.ranges, low, high, times)
        else:
            inside = np.zeros(len(batch), np.bool_)
            for number in np.unique(spaces).tolist():
                in_space = spaces == number
                inside[in_space] = rows_overlapping_ranges(
                    self.ranges_by_space[number],
                    low[in_space],
                    high[in_space],
                    times[in_space] if times is not None else None,
                )
        return inside if mask is None else mask & inside


def rows_overlapping_ranges(
    ranges: Sequence[SelectedRange],
    low: NDArray[Any],
    high: NDArray[Any],
    times: NDArray[Any] | None,
) -> NDArray[np.bool_]:
    """Return the mask of rows that overlap a range, at any time if `times` is None."""
    import numpy as np

    inside = np.zeros(len(low), np.bool_)
    for start, end, since, until in ranges:
        overlaps = (low < np.uint64(min(end, LATEST))) & (high >= np.uint64(start))
        if times is not None and (since > 0 or until < LATEST):
            overlaps &= (times >= np.uint64(since)) & (times < np.uint64(until))
        inside |= overlaps
    return inside


def _rows_from_to(batches: Iterator[B], first: int, end: int) -> Iterator[B]:
    at = 0
    for batch in batches:
        rows = slice(max(first - at, 0), max(end - at, 0))
        yield batch if rows == slice(0, len(batch)) else batch.select_rows(rows)
        at += len(batch)
        if at >= end:
            return


def _first_rows(batches: Iterator[B], count: int) -> Iterator[B]:
    while count > 0 and (batch := next(batches, None)) is not None:
        yield batch if len(batch) <= count else batch.select_rows(slice(0, count))
        count -= len(batch)


def _last_rows(batches: Iterator[B], count: int) -> Iterator[B]:
    kept: list[B] = []
    rows = 0
    for batch in batches:
        kept.append(batch)
        rows += len(batch)
        while kept and rows - len(kept[0]) >= count:
            rows -= len(kept.pop(0))
    if kept and rows > count:
        kept[0] = kept[0].select_rows(slice(rows - count, None))
    yield from kept
