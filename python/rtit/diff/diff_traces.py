"""Compares two recordings, thread by thread.

Threads are paired in the order in which they were started. For each pair: where the paths diverge
(`compare_paths`), with the instructions around it and what follows. If any path differs, or a file
is another build, the counts of functions, calls and calling contexts are compared too (`counts`).
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import ExitStack
from itertools import zip_longest
from typing import TYPE_CHECKING

from rtit.diff.compare_paths import DivergenceLog, DivergenceSide, ExecutionPath, compare_paths
from rtit.diff.counts import CallTree, count_functions, list_changes
from rtit.diff.difference import (
    DEFAULT_STEPS,
    ComparisonAfterDivergence,
    Difference,
    RepeatedDivergence,
    ThreadDifference,
    format_difference,
)
from rtit.diff.matched_builds import BuildMatching
from rtit.profile.builder import build_profile
from rtit.trace import Settings, Trace
from rtit.trace.tables.batch import ErrorClass
from rtit.trace.tables.unknown_loops import describe_loops, instructions_in_unknown_iterations

if TYPE_CHECKING:
    from rtit.trace import Stream

MIN_MATCH = 4
"""Equal steps at which paths have reconverged, if steps are runs of instructions."""
_MAX_DIVERGENCES = 10


def diff_traces(
    left: Trace,
    right: Trace,
    streams: tuple[Sequence[Stream], Sequence[Stream]] | None = None,
    *,
    steps: int = DEFAULT_STEPS,
) -> Difference:
    """Return the difference of two recordings, or of these streams.

    Positions are compared by file and offset, not by address; in files that are different builds,
    by the names of functions (see `matched_builds`). `steps` instructions are listed on each side
    of a divergence. Raises what decoding raises.
    """
    if streams is None:
        streams = left.select(always_split=True), right.select(always_split=True)
    builds = BuildMatching(left, right)
    difference = Difference(builds=[str(pair) for pair in builds.different_builds])
    losses: tuple[list[str], list[str]] = [], []
    for pair in zip_longest(*streams):
        difference.threads.append(_compare_threads(builds, *pair, steps))
        difference.gaps.extend(_describe_unknown_loops((left, right), pair))
        for lines, stream in zip(losses, pair, strict=True):
            lines.extend(_describe_lost_bytes(stream) if stream is not None else ())
        for stream in filter(None, pair):
            stream.discard_decoder()
    for side, trace, lines in zip(("first", "second"), (left, right), losses, strict=True):
        difference.gaps.extend(
            f"{side}: {line}" for line in (*_describe_image_problems(trace), *lines)
        )
    if not difference.has_equal_paths or builds.different_builds:
        _compare_counts(difference, builds, streams)
    return difference


def assert_same_path(
    left: Trace | str | os.PathLike[str], right: Trace | str | os.PathLike[str]
) -> None:
    """Check that two recordings, or the files of recordings, have the same path in each thread.

    Raises AssertionError with the first divergence, or with what could not be decoded.
    """
    with ExitStack() as stack:
        traces = [
            each if isinstance(each, Trace) else stack.enter_context(Trace(each))
            for each in (left, right)
        ]
        difference = diff_traces(traces[0], traces[1])
        if not difference.has_equal_paths or difference.gaps:
            raise AssertionError("\n".join(format_difference(difference)))


def _compare_threads(
    builds: BuildMatching, left: Stream | None, right: Stream | None, steps: int
) -> ThreadDifference:
    if left is None or right is None:
        titles = (left.title if left else None), (right.title if right else None)
        return ThreadDifference(*titles, 0, 0, identical=False)
    paths = (
        ExecutionPath(builds.left, left, builds, 0),
        ExecutionPath(builds.right, right, builds, 1),
    )
    if paths[0].has_same_positions(paths[1]) and left.has_equal_input(right):
        instructions = left.counts().instructions
        right.share_decoder(left)
        return ThreadDifference(left.title, right.title, instructions, instructions, identical=True)
    # one function is a reliable match; the same run of instructions recurs in a loop
    min_match = 1 if builds.different_builds else MIN_MATCH
    return describe_paths(paths, (left.title, right.title), steps, min_match)


def describe_paths(
    paths: tuple[ExecutionPath, ExecutionPath], titles: tuple[str, str], steps: int, min_match: int
) -> ThreadDifference:
    """Return the difference of two paths. Parameters are as for `compare_paths`."""
    equal, divergence, log = compare_paths(*paths, steps, min_match)
    if divergence is None or log is None:
        return ThreadDifference(*titles, *equal, identical=True)
    sides = DivergenceSide(paths[0]), DivergenceSide(paths[1])
    before, left_after = sides[0].instructions_around(divergence, 0, steps)
    _, right_after = sides[1].instructions_around(divergence, 1, steps)
    return ThreadDifference(
        *titles,
        *equal,
        identical=False,
        before=before,
        after=(left_after, right_after),
        later=_name_divergences(log, sides),
    )


def _name_divergences(
    log: DivergenceLog, sides: tuple[DivergenceSide, DivergenceSide]
) -> ComparisonAfterDivergence:
    """Return the log with names in place of addresses, for the most frequent points."""
    divergences = []
    for point in sorted(log.times_by_point, key=lambda each: -log.times_by_point[each])[
        :_MAX_DIVERGENCES
    ]:
        times, ips = log.times[point], (point.left, point.right)
        targets = []
        for number, (side, ip, time) in enumerate(zip(sides, ips, times, strict=True)):
            if ip is None:
                targets.append("")
                continue
            target = side.ip_after_instruction(ip, time) if number == point.sequential else ip
            targets.append(side.list_instruction_at(target, time).symbol)
        symbol = source = ""
        if point.last is not None:
            last = sides[0].list_instruction_at(point.last, times[0])
            symbol, source = last.symbol, last.source
        divergences.append(RepeatedDivergence(log.times_by_point[point], symbol, source, *targets))
    total = sum(log.times_by_point.values())
    return ComparisonAfterDivergence(
        log.instructions, log.unmatched, total, tuple(divergences), log.whole
    )


def _compare_counts(
    difference: Difference,
    builds: BuildMatching,
    streams: tuple[Sequence[Stream], Sequence[Stream]],
) -> None:
    left, right = build_profile(builds.left, streams[0]), build_profile(builds.right, streams[1])
    before = count_functions(left)
    after = count_functions(right).rename_files(builds.renamed_files)
    difference.functions = list_changes(before.instructions, after.instructions)
    difference.calls = list_changes(before.calls, after.calls)
    if any(map(_has_address_filter, (*streams[0], *streams[1]))):
        difference.too_deep.append(
            "rtit does not compare callers, because an address filter hid some callers"
        )
    else:
        tree = CallTree()
        difference.contexts = tree.list_changes(
            tree.count_instructions(builds.left, streams[0], left, {}),
            tree.count_instructions(builds.right, streams[1], right, builds.renamed_files),
        )
    for side, each in (("first", left), ("second", right)):
        difference.too_deep.extend(f"{side}: {line}" for line in each.losses.describe_call_losses())
        difference.gaps.extend(f"{side}: {line}" for line in each.losses.describe_counter_losses())


def _has_address_filter(stream: Stream) -> bool:
    return isinstance(stream.settings, Settings) and bool(stream.settings.ranges)


def _describe_unknown_loops(
    traces: tuple[Trace, Trace], pair: tuple[Stream | None, Stream | None]
) -> list[str]:
    """Return a sentence for each loop without packets, unless both sides iterated equally often."""
    lines, further = [], []
    for side, trace, stream in zip(("first", "second"), traces, pair, strict=True):
        if (
            stream is None
            or next(stream.errors_of_class(ErrorClass.UNKNOWN_REPETITIONS), None) is None
        ):
            continue
        lines += [f"{side}: {stream.title}: {text}" for text in describe_loops(stream)]
        further.append(
            instructions_in_unknown_iterations(trace, stream, stream.counts().instructions)
        )
    is_equal = len(further) == len(pair) and further[0] == further[1] is not None
    return [] if is_equal else lines


def _describe_image_problems(trace: Trace) -> list[str]:
    problems = list(map(str, trace.image_problems))
    return [*problems, f"incomplete: {trace.incomplete}"] if trace.incomplete else problems


def _describe_lost_bytes(stream: Stream) -> list[str]:
    first, size = None, 0
    for span in stream.spans():
        if span.is_gap:
            first = first or span
            size += span.end - span.start
    return [f"{stream.title}: {size:,} bytes not decoded exactly; {first}"] if first else []
