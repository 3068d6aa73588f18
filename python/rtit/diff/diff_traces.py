"""Two recordings, thread by thread."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import ExitStack
from itertools import zip_longest
from typing import TYPE_CHECKING

from rtit.diff.builds import Builds
from rtit.diff.counts import Tree, changes, counts
from rtit.diff.difference import STEPS, Difference, Later, Place, Thread
from rtit.diff.paths import Later as Parted
from rtit.diff.paths import Path, Side, compare
from rtit.diff.text import text
from rtit.profile.builder import profile
from rtit.trace import Trace
from rtit.trace.tables.batch import ErrorClass
from rtit.trace.tables.counts import further_rounds, sentences

if TYPE_CHECKING:
    from rtit.trace import Stream


_ALIKE = 4
"""Runs that are the same where paths meet again."""
_NAMED = 10


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
    ours, theirs = (
        streams if streams is not None else (left.select(apart=True), right.select(apart=True))
    )
    builds = Builds(left, right)
    found = Difference(builds=[str(pair) for pair in builds.pairs])
    lost: tuple[list[str], list[str]] = [], []
    for pair in zip_longest(ours, theirs):
        found.threads.append(_compared(builds, *pair, steps))
        found.gaps.extend(_repeats((left, right), pair))
        for told, stream in zip(lost, pair, strict=True):
            told.extend(_lost(stream) if stream is not None else ())
        for stream in filter(None, pair):
            stream.forget()
    for side, trace, lines in (("first", left, lost[0]), ("second", right, lost[1])):
        found.gaps.extend(f"{side}: {line}" for line in (*_problems(trace), *lines))
    if not found.identical or builds.pairs:
        _count(found, builds, (ours, theirs))
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
    paths = Path(left, one, builds, 0), Path(right, other, builds, 1)
    # Where functions are compared, each is told from others; runs of instructions occur again.
    equal, parting, later = compare(*paths, steps, 1 if builds.pairs else _ALIKE)
    if parting is None or later is None:
        return Thread(one.title, other.title, equal, identical=True)
    before, after = Side(left, one).around(parting, 0, steps)
    _, instead = Side(right, other).around(parting, 1, steps)
    named = _later(later, builds, (one, other))
    return Thread(one.title, other.title, equal, False, before, (after, instead), named)


def _later(later: Parted, builds: Builds, streams: tuple[Stream, Stream]) -> Later:
    sides = [Side(*each) for each in zip((builds.left, builds.right), streams, strict=True)]
    most = sorted(later.places, key=lambda each: -later.places[each])[:_NAMED]
    places = []
    for place in most:
        times, ips = later.times[place], (place.left, place.right)
        where = sides[0].step(place.last, times[0]) if place.last is not None else None
        went = []
        for number, (side, ip, time) in enumerate(zip(sides, ips, times, strict=True)):
            if ip is None:
                went.append("")
                continue
            at = side.behind(ip, time) if number == place.behind else ip
            went.append(side.step(at, time).symbol)
        symbol, source = (where.symbol, where.source) if where is not None else ("", "")
        places.append(Place(later.places[place], symbol, source, *went))
    whole = sum(later.places.values())
    return Later(later.instructions, later.alone, whole, tuple(places), later.whole)


def _count(
    found: Difference, builds: Builds, streams: tuple[Sequence[Stream], Sequence[Stream]]
) -> None:
    profiles = [
        profile(trace, used)
        for trace, used in zip((builds.left, builds.right), streams, strict=True)
    ]
    before, after = counts(profiles[0]), counts(profiles[1]).renamed(builds.names)
    found.functions = changes(before.instructions, after.instructions)
    found.calls = changes(before.calls, after.calls)
    tree = Tree()
    one = tree.counts(builds.left, streams[0], profiles[0], {})
    other = tree.counts(builds.right, streams[1], profiles[1], builds.names)
    found.contexts = tree.changes(one, other)
    for side, each in zip(("first", "second"), profiles, strict=True):
        found.too_deep.extend(f"{side}: {line}" for line in each.losses.of_calls())
        found.gaps.extend(f"{side}: {line}" for line in each.losses.of_places())


def _repeats(traces: tuple[Trace, Trace], pair: tuple[Stream | None, Stream | None]) -> list[str]:
    """A sentence for each loop without packets, unless both went round equally often in all."""
    lines, further = [], []
    for side, trace, stream in zip(("first", "second"), traces, pair, strict=True):
        if stream is None or next(stream.places_of(ErrorClass.REPEATS_UNKNOWN), None) is None:
            continue
        lines += [f"{side}: {stream.title}: {text}" for text in sentences(stream)]
        further.append(further_rounds(trace, stream, stream.counts().instructions))
    is_known = len(further) == len(pair) and further[0] == further[1] is not None
    return [] if is_known else lines


def _problems(trace: Trace) -> list[str]:
    found = list(map(str, trace.image_problems))
    return [*found, f"incomplete: {trace.incomplete}"] if trace.incomplete else found


def _lost(stream: Stream) -> list[str]:
    first, size = None, 0
    for span in stream.spans():
        if span.is_gap:
            first = first or span
            size += span.end - span.start
    return [f"{stream.title}: {size:,} bytes not decoded exactly; {first}"] if first else []
