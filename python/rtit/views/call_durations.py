"""How long the calls of one function took, in instructions."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

from rtit.errors import UsageError
from rtit.text_escaping import similar_names_hint
from rtit.trace.tables.calls import CallEnd

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
class SlowCall:
    """One of the longest calls. It has the instructions `first` up to `stop` of thread `tid`."""

    tid: int
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
    those beyond have 10 binary digits. `ends`: calls by how they ended.
    """

    function: str
    counts: Counter[int] = field(default_factory=Counter)
    is_exact: bool = True
    ends: Counter[str] = field(default_factory=Counter)
    slowest: list[SlowCall] = field(default_factory=list)

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

    `slowest`: how many of the longest calls are kept. Raises UsageError if it was not called.
    """
    found = CallDurations(function)
    names: set[str] = set()
    for batch in trace.calls(where):
        names.update(batch.functions)
        calls = _calls_of(batch, function)
        if len(calls):
            _add_calls(found, calls, trace, slowest)
    if not found.counts:
        _add_calls_by_symbol(found, trace, where, slowest)
    if not found.counts:
        hint = similar_names_hint(function, names)
        raise UsageError(f"no call of a function {function!r}{hint}")
    return found


def _add_calls_by_symbol(
    found: CallDurations, trace: Trace, where: Selection | None, slowest: int
) -> None:
    """Add the calls of a function that is shown with another of its names."""
    from rtit.trace.tables.selection import Selection

    with suppress(UsageError):  # no file has such a function
        for batch in trace.calls(replace(where or Selection(), functions=(found.function,))):
            _add_calls(found, batch, trace, slowest)


def _calls_of(batch: Calls, function: str) -> Calls:
    import numpy as np

    wanted = [number for number, name in enumerate(batch.functions) if name == function]
    return batch.select_rows(np.isin(batch.function, np.asarray(wanted, np.uint32)))


def _add_calls(found: CallDurations, calls: Calls, trace: Trace, slowest: int) -> None:
    import numpy as np

    durations = calls.total_instructions
    if len(found.counts) >= _MAX_EXACT_DURATIONS:
        found.is_exact = False
        excess = np.maximum(np.int64(0), _bit_lengths(durations) - _ROUNDED_BITS).astype(np.uint64)
        durations = durations >> excess << excess
    values, counts = np.unique(durations, return_counts=True)
    found.counts.update(dict(zip(values.tolist(), counts.tolist(), strict=True)))
    ends, counts = np.unique(calls.end, return_counts=True)
    for end, count in zip(ends.tolist(), counts.tolist(), strict=True):
        found.ends[CallEnd(end).label] += count

    longest = np.argsort(calls.total_instructions, kind="stable")[::-1][:slowest]
    rows = calls.select_rows(longest)
    tids = rows.extra_columns["tid"].tolist()
    for tid, call in zip(tids, rows, strict=True):
        if len(found.slowest) == slowest:
            if call.total_instructions <= found.slowest[-1].instructions:
                break
            found.slowest.pop()
        call_site = ""
        if call.call_site:
            call_site = str(trace.symbols.lookup(tid, call.begin_time, call.call_site))
        found.slowest.append(
            SlowCall(
                tid,
                call.call,
                call.total_instructions,
                call.self_instructions,
                call.first,
                call.stop,
                call_site,
                call.end.label,
            )
        )
        found.slowest.sort(key=lambda each: -each.instructions)


def _bit_lengths(values: Any) -> Any:
    import numpy as np

    return np.frexp(values.astype(np.float64))[1].astype(np.int64)


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
    yield f"{found.calls:,} calls; instructions of each with its callees:"
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
        yield (
            f"{each.instructions:14,} {each.self_instructions:12,} {each.tid:8} {each.call:10} "
            f"{f'{each.first}-{each.stop}':>25}  {each.call_site}"
        )
