"""The sum of the reports of many recordings."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Any

from rtit.trace import FunctionTotals
from rtit.views.report import calls_json
from rtit.views.statistics import compute_statistics
from rtit.views.trace_tail import find_crashes

if TYPE_CHECKING:
    from rtit.trace import Selection, Trace

_MAX_GAPS = 10
"""Gaps of a recording that are kept."""
Function = tuple[str, str]
"""Name of the function, and path of its file."""


@dataclass(slots=True)
class RecordingReport:
    """The part of the report that comes from one recording."""

    path: str
    command: list[str]
    instructions: int
    branches: int
    pt_bytes: int
    exact_bytes: int
    unattributed: int | None
    """Instructions that no function has; None if the number is unknown."""
    threads: Counter[str]
    """Instructions by the name of the thread; "" if it is unknown."""
    functions: Counter[Function]
    calls: dict[Function, FunctionTotals] | None
    crashes: list[str]
    """How and where each process crashed."""
    gaps: list[str]
    has_gaps: bool


def report_of_recording(
    trace: Trace, where: Selection, *, calls: bool, inlines: bool
) -> RecordingReport:
    """Decode a recording and return its part of the report. `calls`: with calls and totals of
    functions, in which `inlines` are functions of their own.
    """
    streams = trace.select(where)
    found = compute_statistics(trace, streams, _MAX_GAPS)
    threads: Counter[str] = Counter()
    gaps = [*map(str, islice(trace.image_problems, _MAX_GAPS))]
    if trace.incomplete:
        gaps.append(f"the recording is incomplete: {trace.incomplete}")
    for each in found.streams:
        threads.update(each.instructions_by_name)
        gaps += [f"{each.title}: {text}" for text in (*each.losses, *each.unknown_loops)]
    return RecordingReport(
        path=trace.path,
        command=trace.command_line,
        instructions=found.instructions,
        branches=sum(each.branches for each in found.streams),
        pt_bytes=sum(each.pt_bytes for each in found.streams),
        exact_bytes=sum(each.exact_bytes for each in found.streams),
        unattributed=found.instructions_in_no_function,
        threads=threads,
        functions=found.functions,
        calls=trace.call_tree(where, inlines=inlines).by_function() if calls else None,
        crashes=[
            f"{each.ending} in {each.symbol_with_offset}" for each in find_crashes(trace, streams)
        ],
        gaps=gaps[:_MAX_GAPS],
        has_gaps=bool(gaps),
    )


@dataclass(slots=True)
class ReportOfMany:
    """The sum of the reports of many recordings."""

    recordings: list[dict[str, Any]] = field(default_factory=list)
    """For each recording: file, command, instructions, branches, pt_bytes, exact_bytes, gaps."""
    threads: Counter[str] = field(default_factory=Counter)
    recordings_with_thread: Counter[str] = field(default_factory=Counter)
    functions: Counter[Function] = field(default_factory=Counter)
    calls: dict[Function, FunctionTotals] = field(default_factory=dict)
    crashes: dict[str, list[str]] = field(default_factory=dict)
    """The recordings of each crash, in order."""
    unattributed: int | None = 0
    has_gaps: bool = False

    def add(self, found: RecordingReport) -> None:
        """Add the report of a recording."""
        names = ("command", "instructions", "branches", "pt_bytes", "exact_bytes", "gaps")
        self.recordings.append(
            {"file": found.path} | {name: getattr(found, name) for name in names}
        )
        self.threads.update(found.threads)
        self.recordings_with_thread.update([*found.threads])
        self.functions.update(found.functions)
        for function, totals in (found.calls or {}).items():
            known = self.calls.get(function, FunctionTotals(0, 0, 0))
            self.calls[function] = FunctionTotals(*map(sum, zip(known, totals, strict=True)))
        for crash in found.crashes:
            self.crashes.setdefault(crash, []).append(found.path)
        known_count = self.unattributed is not None and found.unattributed is not None
        self.unattributed = (
            (self.unattributed or 0) + (found.unattributed or 0) if known_count else None
        )
        self.has_gaps |= found.has_gaps

    def total(self, column: str) -> int:
        """Return the sum of a column of `recordings`."""
        return sum(each[column] for each in self.recordings)

    def as_json(self, sort: str | None, unreadable: Mapping[str, str]) -> dict[str, Any]:
        """Return the report as one JSON object. `sort`: with calls in this order; `unreadable` has
        the reasons by file.
        """
        found = {
            "recordings": self.recordings,
            "unreadable": dict(unreadable),
            "instructions": self.total("instructions"),
            "missing": self.unattributed,
            "threads": dict(self.threads.most_common()),
            "functions": [
                {"function": name, "module": module, "instructions": count}
                for (name, module), count in self.functions.most_common()
            ],
            "faults": [
                {"fault": crash, "recordings": paths} for crash, paths in self.crashes.items()
            ],
        }
        return found if sort is None else found | {"calls": calls_json(self.calls, sort)}
