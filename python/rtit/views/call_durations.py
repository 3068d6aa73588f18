"""How long the calls of one function took, in instructions."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

from rtit.errors import UsageError
from rtit.text_escaping import similar_names_hint
from rtit.trace.tables.calls import CallEnd
from rtit.views.call_tree import check_in_one_file, is_function, modules_of_rows

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rtit.trace import Trace
    from rtit.trace.tables.calls import Calls
    from rtit.trace.tables.selection import Selection

_MAX_EXACT_DURATIONS = 1 << 20
"""Distinct durations that are counted exactly."""
_ROUNDED_BITS = 10
"""Binary digits of durations beyond that number."""


@dataclass
class MeasuredCall:
    """One call. It has the instructions `first` up to `stop` of thread `tid`.

    If another thread resumed the stack, `stop` is an instruction of that thread, `end_tid`. `cpu`:
    where the thread ran, -1 if the recording has whole threads.
    """

    tid: int
    end_tid: int
    cpu: int
    call: int
    instructions: int
    self_instructions: int
    first: int
    stop: int
    call_site: str
    end: str


@dataclass
class CallDurations:
    """The durations of all calls of a function: instructions with callees.

    `counts`: calls by duration. `is_exact` is false if there were too many different durations;
    those beyond have 10 binary digits. `ends`: calls by how they ended. `entries`: the addresses at
    which the calls begin.
    """

    function: str
    counts: Counter[int] = field(default_factory=Counter)
    is_exact: bool = True
    ends: Counter[str] = field(default_factory=Counter)
    entries: set[int] = field(default_factory=set)
    slowest: list[MeasuredCall] = field(default_factory=list)

    @property
    def calls(self) -> int:
        """The number of calls."""
        return self.counts.total()

    def percentiles(self, *percents: float) -> list[int]:
        """Return, for each percentage, the least duration that as many of the calls do not exceed.

        0 is the least duration of all.
        """
        found: list[int] = []
        pending = iter(sorted(percents))
        wanted = next(pending, None)
        calls, seen = self.calls, 0
        for duration in sorted(self.counts):
            seen += self.counts[duration]
            while wanted is not None and seen * 100 >= wanted * calls:
                found.append(duration)
                wanted = next(pending, None)
        return found

    def histogram(self) -> list[tuple[int, int, int]]:
        """Return (from, to, calls) for each power of two in the range of durations."""
        by_size: Counter[int] = Counter()
        for duration, calls in self.counts.items():
            by_size[duration.bit_length()] += calls
        return [
            (1 << size >> 1, max((1 << size) - 1, 0), by_size[size])
            for size in range(min(by_size), max(by_size) + 1)
        ]


def measure_calls(
    trace: Trace, function: str, where: Selection | None = None, *, slowest: int = 10
) -> CallDurations:
    """Return the durations of the calls of a function in the selected threads.

    `slowest`: how many of the longest calls are kept. Raises UsageError if it was not called,
    or if several files have a function of this name.
    """
    found = CallDurations(function)
    for calls in _iterate_calls(trace, function, where):
        _add_calls(found, calls, trace, slowest)
    return found


def find_median_call(
    found: CallDurations, trace: Trace, where: Selection | None = None
) -> MeasuredCall | None:
    """Return the first call of median duration; None if the slowest call has this duration too."""
    import numpy as np

    [median] = found.percentiles(50)
    if median == found.percentiles(100)[0]:
        return None
    for calls in _iterate_calls(trace, found.function, where):
        durations, wanted = calls.total_instructions, np.uint64(median)
        if not found.is_exact:
            durations, wanted = map(_round_durations, (durations, wanted))
        rows = np.flatnonzero(durations == wanted)
        if len(rows):
            [call] = _describe_calls(calls.select_rows(rows[:1]), trace)
            return call
    return None


def _iterate_calls(trace: Trace, function: str, where: Selection | None) -> Iterator[Calls]:
    """Iterate over the calls of a function. Raises UsageError at the end if there are none, or if
    several files have a function of this name.
    """
    from rtit.trace.tables.selection import Selection

    names: set[str] = set()
    modules: set[str] = set()
    was_called = False
    for batch in trace.calls(where):
        names.update(batch.functions)
        rows = is_function(batch, function)
        modules |= modules_of_rows(batch, rows)
        if rows.any():
            was_called = True
            yield batch.select_rows(rows)
    check_in_one_file(function, modules)
    if was_called:
        return
    # The function is shown with another of its names.
    with suppress(UsageError):  # no file has such a function
        for batch in trace.calls(replace(where or Selection(), functions=(function,))):
            was_called = True
            yield batch
    if not was_called:
        hint = similar_names_hint(function, names)
        raise UsageError(f"no call of a function {function!r}{hint}")


def _add_calls(found: CallDurations, calls: Calls, trace: Trace, slowest: int) -> None:
    import numpy as np

    durations = calls.total_instructions
    if len(found.counts) >= _MAX_EXACT_DURATIONS:
        found.is_exact = False
        durations = _round_durations(durations)
    values, counts = np.unique(durations, return_counts=True)
    found.counts.update(dict(zip(values.tolist(), counts.tolist(), strict=True)))
    found.entries.update(np.unique(calls.entry).tolist())
    ends, counts = np.unique(calls.end, return_counts=True)
    for end, count in zip(ends.tolist(), counts.tolist(), strict=True):
        found.ends[CallEnd(end).label] += count

    longest = np.argsort(calls.total_instructions, kind="stable")[::-1][:slowest]
    if len(found.slowest) == slowest:
        longest = longest[calls.total_instructions[longest] > found.slowest[-1].instructions]
    found.slowest += _describe_calls(calls.select_rows(longest), trace)
    found.slowest.sort(key=lambda each: -each.instructions)
    del found.slowest[slowest:]


def _describe_calls(calls: Calls, trace: Trace) -> Iterator[MeasuredCall]:
    tids, cpus = (calls.extra_columns[name].tolist() for name in ("tid", "cpu"))
    for tid, cpu, call in zip(tids, cpus, calls, strict=True):
        call_site = ""
        if call.call_site:
            call_site = str(trace.symbols.lookup(tid, call.begin_time, call.call_site))
        yield MeasuredCall(
            tid,
            call.end_tid,
            cpu,
            call.call,
            call.total_instructions,
            call.self_instructions,
            call.first,
            call.stop,
            call_site,
            call.end.label,
        )


def _round_durations(durations: Any) -> Any:
    """Return numbers with their highest binary digits only."""
    import numpy as np

    binary_digits = np.frexp(durations.astype(np.float64))[1]
    excess = np.maximum(0, binary_digits - _ROUNDED_BITS).astype(np.uint64)
    return durations >> excess << excess


_PERCENTS = {"least": 0, "median": 50, "p90": 90, "p99": 99, "most": 100}


def durations_json(found: CallDurations) -> dict[str, Any]:
    """Return the durations as one JSON object."""
    return {
        "function": found.function,
        "calls": found.calls,
        "instructions": dict(zip(_PERCENTS, found.percentiles(*_PERCENTS.values()), strict=True)),
        "exact": found.is_exact,
        "ends": dict(found.ends),
        "histogram": [
            {"from": low, "to": high, "calls": calls} for low, high, calls in found.histogram()
        ],
        "slowest": [asdict(each) for each in found.slowest],
    }


def duration_lines(found: CallDurations, width: int = 40) -> Iterator[str]:
    """Iterate over the lines of the report. `width`: characters of the longest bar."""
    values = found.percentiles(*_PERCENTS.values())
    summary = "   ".join(f"{name} {value:,}" for name, value in zip(_PERCENTS, values, strict=True))
    number = f"{found.calls:,} call{'s' * (found.calls != 1)}"
    yield f"{number}; instructions of each with its callees:"
    yield f"  {summary}"
    if not found.is_exact:
        yield "  (durations are rounded to 10 binary digits: there are too many different ones)"
    others = {end: calls for end, calls in found.ends.items() if end != CallEnd.RETURNED.label}
    if others:
        listed = ", ".join(f"{calls:,} {end}" for end, calls in others.items())
        yield f"  did not return: {listed}"
    yield ""
    histogram = found.histogram()
    digits = max(len(f"{high:,}") for _, high, _ in histogram)
    most = max(calls for _, _, calls in histogram)
    yield f"{'instructions':>{2 * digits + 4}} {'calls':>12}"
    for low, high, calls in histogram:
        bar = "#" * -(-calls * width // most)
        yield f"{low:{digits},} .. {high:{digits},} {calls:12,} {bar}".rstrip()
    yield ""
    yield "Longest calls:"
    yield (f"{'instructions':>14} {'self':>12} {'tid':>8} {'call':>10} {'index':>25}  call site")
    for each in found.slowest:
        note = "" if each.end_tid == each.tid else f" (ended in thread {each.end_tid})"
        yield (
            f"{each.instructions:14,} {each.self_instructions:12,} {each.tid:8} {each.call:10} "
            f"{f'{each.first}-{each.stop}':>25}  {each.call_site}{note}"
        )
