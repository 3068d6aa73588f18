"""Two recordings, thread by thread."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from itertools import zip_longest
from typing import TYPE_CHECKING

from rtit.diff.builds import Builds
from rtit.diff.compare import Path, compare
from rtit.diff.counts import changes, counts
from rtit.diff.difference import Difference, Thread
from rtit.diff.steps import Side
from rtit.diff.text import text
from rtit.trace import Trace

if TYPE_CHECKING:
    from rtit.trace import Stream

STEPS = 8
"""Instructions shown on each side of the place."""


def diff(
    left: Trace,
    right: Trace,
    streams: tuple[Sequence[Stream], Sequence[Stream]] | None = None,
    *,
    steps: int = STEPS,
) -> Difference:
    """Compare all streams, or these, in the order in which the threads were started. Addresses do
    not count, but where in which file; of files that were built anew functions, by their names (see
    `builds`). Raises what decoding raises.
    """
    ours, theirs = streams if streams is not None else (left.threads, right.threads)
    builds = Builds(left, right)
    found = Difference(builds=[str(pair) for pair in builds.pairs])
    for one, other in zip_longest(ours, theirs):
        found.threads.append(_compared(builds, one, other, steps))
    for side, trace, used in (("first", left, ours), ("second", right, theirs)):
        found.gaps.extend(_gaps(side, trace, used))
    if not found.identical or builds.pairs:
        before, after = counts(left, ours), counts(right, theirs).renamed(builds.names)
        found.functions = changes(before.instructions, after.instructions)
        found.calls = changes(before.calls, after.calls)
    for stream in (*ours, *theirs):
        stream.forget()
    return found


def assert_same_path(
    left: Trace | str | os.PathLike[str], right: Trace | str | os.PathLike[str]
) -> None:
    """That two recordings, or the files of such, have the same path, thread by thread. Raises
    AssertionError with the first place where they part, or with what could not be decoded.
    """
    with ExitStack() as stack:
        traces = [
            each if isinstance(each, Trace) else stack.enter_context(Trace(each))
            for each in (left, right)
        ]
        found = diff(traces[0], traces[1])
        if not found.identical or found.gaps:
            raise AssertionError("\n".join(text(found)))


def _compared(builds: Builds, one: Stream | None, other: Stream | None, steps: int) -> Thread:
    if one is None or other is None:
        titles = (one.title if one else None), (other.title if other else None)
        return Thread(*titles, 0, identical=False)
    left, right = builds.left, builds.right
    equal, parting = compare(Path(left, one, builds, 0), Path(right, other, builds, 1), steps)
    if parting is None:
        return Thread(one.title, other.title, equal, identical=True)
    before, after = Side(left, one).around(parting, 0, steps)
    _, instead = Side(right, other).around(parting, 1, steps)
    return Thread(one.title, other.title, equal, False, before, (after, instead))


def _gaps(side: str, trace: Trace, streams: Iterable[Stream]) -> list[str]:
    found = [f"{side}: {problem}" for problem in trace.image_problems]
    if trace.incomplete:
        found.append(f"{side}: incomplete: {trace.incomplete}")
    for stream in streams:
        lost = [span for span in stream.ledger() if span.is_gap]
        if lost:
            size = sum(span.end - span.start for span in lost)
            found.append(f"{side}: {stream.title}: {size:,} bytes not decoded exactly; {lost[0]}")
    return found
