"""Compares two calls of a function in one recording: where their paths diverge, and which callees
account for the difference in instructions.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from rtit.diff.compare_paths import ExecutionPath
from rtit.diff.counts import CallTree
from rtit.diff.diff_traces import MIN_MATCH, describe_paths
from rtit.diff.difference import ThreadDifference, format_context, format_thread
from rtit.diff.matched_builds import BuildMatching
from rtit.trace import Selection
from rtit.trace.tables.call_tree import CallKind

if TYPE_CHECKING:
    from rtit.diff.counts import Function
    from rtit.trace import Trace

_STEPS = 3
"""Instructions that are listed on each side of a divergence."""
_MAX_CALLEES = 1 << 20
"""Callees of a call, direct and indirect, up to which they are compared."""
_TOP = 10


class ComparedCall(Protocol):
    """A call, by its position in the recording."""

    tid: int
    end_tid: int
    cpu: int
    call: int
    instructions: int
    first: int
    stop: int


@dataclass(frozen=True, slots=True)
class CalleeChange:
    """The calls and instructions of a callee in two calls of a function.

    `context`: the functions from the compared function to the callee. A recursive call counts for
    the outermost call of its function. The instructions are those of the callee itself; if only one
    of the two calls has the callee, also those of its own callees.
    """

    context: tuple[Function, ...]
    calls: tuple[int, int]
    instructions: tuple[int, int]

    @property
    def difference(self) -> int:
        """How many more instructions the first call has."""
        return self.instructions[0] - self.instructions[1]


@dataclass(frozen=True, slots=True)
class CallComparison:
    """The difference of two calls.

    `path`: the first difference of the executed paths. `callees`: the largest differences first;
    they add up to the difference of the calls. None if a call has more than a million callees.
    """

    calls: tuple[ComparedCall, ComparedCall]
    titles: tuple[str, str]
    path: ThreadDifference
    callees: list[CalleeChange] | None


def compare_calls(
    trace: Trace,
    function: str,
    calls: tuple[ComparedCall, ComparedCall],
    titles: tuple[str, str],
    where: Selection | None = None,
) -> CallComparison | None:
    """Return the difference of two calls of a function. `titles` name them in the result.

    `where`: the selection of `Trace.calls` from which the calls are. None if a thread has several
    streams on one CPU, because `first` then has several meanings, and for a call that ended in
    another thread.
    """
    builds = BuildMatching(trace, trace)
    paths = []
    for side, call in enumerate(calls):
        thread = Selection(tids=(call.tid,), cpus=(call.cpu,) if call.cpu >= 0 else ())
        stream, *others = trace.by_thread(thread, always_split=True)
        if others or call.end_tid != call.tid:
            return None
        # A copy, because decoding a part of a stream discards the ledger of the whole.
        indexes = call.first, call.stop
        paths.append(ExecutionPath(trace, stream.copy_with(), builds, side, indexes))
    left, right = paths
    path = describe_paths((left, right), titles, _STEPS, MIN_MATCH)
    return CallComparison(calls, titles, path, _compare_callees(trace, function, calls, where))


def _compare_callees(
    trace: Trace,
    function: str,
    calls: tuple[ComparedCall, ComparedCall],
    where: Selection | None,
) -> list[CalleeChange] | None:
    tree = CallTree()
    known: dict[tuple[int, str], int] = {}
    call_counts: tuple[Counter[int], Counter[int]] = Counter(), Counter()
    instructions: tuple[Counter[int], Counter[int]] = Counter(), Counter()
    for call, counts, own_counts in zip(calls, call_counts, instructions, strict=True):
        rows = _callee_rows(trace, call, where)
        if rows is None:
            return None
        nodes = {call.call: tree.node_number(0, (function, ""))}
        for number, parent, name, kind, own in rows:
            if number not in nodes:
                above = nodes.get(parent)
                # Instructions of signal handlers do not count for the interrupted function.
                if above is None or kind == CallKind.SIGNAL:
                    continue
                if (above, name) not in known:
                    key = name, ""
                    caller = tree.find_caller(above, key)
                    known[above, name] = caller or tree.node_number(above, key)
                nodes[number] = known[above, name]
            counts[nodes[number]] += 1
            own_counts[nodes[number]] += own
    changes = [
        CalleeChange(tree.call_path(node), (call_counts[0][node], call_counts[1][node]), changed)
        for node, changed in tree.changed_nodes(*instructions)
    ]
    return sorted(changes, key=lambda each: (-abs(each.difference), each.context))


def _callee_rows(
    trace: Trace, call: ComparedCall, where: Selection | None
) -> Iterator[tuple[int, int, str, int, int]] | None:
    """Return number, caller, name, kind and instructions of a call and its callees.

    Callers come before callees. None if there are too many.
    """
    parts, names = [], list[str]()
    for batch in trace.calls(where):
        is_callee = (batch.first >= call.first) & (batch.stop <= call.stop)
        is_callee &= (batch.extra_columns["tid"] == call.tid) & (batch.end_tid == call.tid)
        is_callee &= (batch.call >= call.call) & (batch.extra_columns["cpu"] == call.cpu)
        if not is_callee.any():
            continue
        rows = batch.select_rows(is_callee)
        columns = (rows.call, rows.parent, rows.function + len(names), rows.kind)
        names += batch.functions
        parts.append((*columns, rows.self_instructions))
        if sum(len(part[0]) for part in parts) > _MAX_CALLEES:
            return None
    numbers, *others = (np.concatenate(column) for column in zip(*parts, strict=True))
    order = np.argsort(numbers, kind="stable")
    number, parent, function, kind, own = (each[order].tolist() for each in (numbers, *others))
    return zip(number, parent, (names[each] for each in function), kind, own, strict=True)


def call_comparison_json(found: CallComparison) -> dict[str, Any]:
    """Return the comparison as one JSON object."""
    left, right = found.titles

    def by_call(pair: tuple[int, int]) -> dict[str, int]:
        return {left: pair[0], right: pair[1]}

    callees = None
    if found.callees is not None:
        callees = [
            {
                "context": [name for name, _ in each.context],
                "calls": by_call(each.calls),
                "instructions": by_call(each.instructions),
                "difference": each.difference,
            }
            for each in found.callees
        ]
    path = asdict(found.path)
    del path["left"], path["right"]
    return {"path": path, "callees": callees}


def call_comparison_lines(found: CallComparison) -> Iterator[str]:
    """Iterate over the lines of a report."""
    width = max(map(len, found.titles))
    for title, call in zip(found.titles, found.calls, strict=True):
        yield (
            f"{title:{width}}  {call.instructions:14,} instructions, thread {call.tid}, "
            f"index {call.first}-{call.stop}"
        )
    yield from format_thread(found.path)
    yield ""
    if found.callees is None:
        yield f"callees are not compared: there are more than {_MAX_CALLEES:,}"
        return
    left, right = found.titles
    yield f"{'instructions':>29} {'':>14} {'calls':>19}"
    yield f"{left:>14} {right:>14} {'difference':>14} {left:>9} {right:>9}  function"
    for each in found.callees[:_TOP]:
        yield (
            f"{each.instructions[0]:14,} {each.instructions[1]:14,} {each.difference:+14,} "
            f"{each.calls[0]:9,} {each.calls[1]:9,}  {format_context(each.context)}"
        )
    if len(found.callees) > _TOP:
        rest = sum(each.difference for each in found.callees[_TOP:])
        yield f"{'':29} {rest:+14,} {'':19}  ... and {len(found.callees) - _TOP:,} more"
