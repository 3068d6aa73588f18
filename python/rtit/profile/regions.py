"""Counts of a part of a run: of the calls of a function, or between two places of the code.

`stat_region` decodes a recording twice. The first pass finds the executions of the region in each
thread, as ranges of instruction indexes: from the call stacks (`table_of_calls`), or from the
executions of the two places. The second pass adds up the blocks in these ranges.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import PurePath
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from rtit.errors import UnsupportedError, UsageError
from rtit.profile.builder import MappingPeriodSums, ProfileBuilder, add_lost_bytes
from rtit.profile.losses import ProfileLosses
from rtit.profile.stat import Region, Stat, stat, summarize_profile
from rtit.profile.tables import NO_BINARY, Profile, iterate_rows
from rtit.trace import Branches, End
from rtit.trace.process_calls import table_of_calls
from rtit.trace.tables.call_tree import CallKind
from rtit.trace.tables.selection import (
    FunctionInFile,
    SelectedRange,
    SelectedRanges,
    Selection,
    rows_overlapping_ranges,
)
from rtit.x86 import MAX_LENGTH, InstructionClass, decode

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from rtit.image import Images
    from rtit.trace import Rows, Stream, Trace

    U64 = NDArray[np.uint64]


class _Executions(NamedTuple):
    """The executions of a region in one thread.

    `bounds` are instruction indexes, sorted: the region has the instructions from the first to
    before the second, from the third to before the fourth, and so on. `sizes` are the instructions
    of each execution. `recursive` counts calls within calls, which are part of the outermost.
    `unfinished` is 1 if the thread ended in a region, which is not counted. `is_mixed`: other
    stacks ran during a call, so that `bounds` has instructions that do not belong to the call.
    """

    bounds: U64
    sizes: U64
    recursive: int = 0
    unfinished: int = 0
    is_mixed: bool = False


def count_recording(trace: Trace, region: Region | None) -> Stat:
    """Return the counts of a recording, or of a region of it. Raises what `stat_region` raises."""
    if region is None:
        return stat(trace, trace.streams)
    check_region(trace, region)
    return stat_region(trace, trace.by_thread(always_split=True), region)


def check_region(trace: Trace, region: Region) -> None:
    """Raise UnsupportedError if calls are to be counted and the trace has kernel code."""
    if region.function and any(stream.has_kernel_code for stream in trace.streams):
        raise UnsupportedError(
            f"{trace.path}: the kernel was traced, and rtit stat counts calls only in user code",
            hint="rtit calls --function NAME --durations measures the calls of each task",
        )


def stat_region(trace: Trace, streams: Sequence[Stream], region: Region) -> Stat:
    """Return the counts of a region in the streams, each of which has one thread.

    `counts` also has the number of executions, and the least, median and most instructions of one.
    The first instruction of `stop` is not part of the region. Raises UsageError for an unknown or
    ambiguous name, UnsupportedError for CPUs whose kernel was traced; what decoding raises.
    """
    find_executions = _executions_finder(trace, streams, region)
    builder = ProfileBuilder(trace.images.files, trace.max_counters)
    losses = ProfileLosses(incomplete=trace.incomplete)
    found: list[_Executions] = []
    threads: list[tuple[str, int]] = []
    ids: set[tuple[int, int]] = set()
    for stream in streams:
        executions = find_executions(stream)
        add_lost_bytes(stream, losses)
        stream.discard_decoder()
        found.append(executions)
        if len(executions.sizes):
            ids.update(stream.thread_ids)
            threads.append((stream.title, int(executions.sizes.sum())))
            if not executions.is_mixed:
                _add_executions(builder, trace, stream, executions)
    losses.problems = [str(problem) for problem in trace.image_problems]
    profile = _profile_of_executions(builder, losses, threads)
    summary = summarize_profile(profile, len({tid for _, tid in ids}), len({pid for pid, _ in ids}))
    counts, notes = summary.counts, []
    if any(each.is_mixed for each in found):
        counts = {"instructions": profile.instructions}
        summary.functions.clear()
        summary.files.clear()
        notes.append(
            f"other call stacks ran during calls of {region}, so only instructions are counted"
        )
    elif losses.instructions_in_no_file:
        notes.append(
            "conditional branches in code without a file are counted only if they were taken"
        )
    counts |= _counts_of_executions(region, found)
    return replace(summary, counts=counts, notes=tuple(notes), region=str(region))


def _add_executions(
    builder: ProfileBuilder, trace: Trace, stream: Stream, executions: _Executions
) -> None:
    sums = MappingPeriodSums(stream, trace.images)
    for rows in _rows_within(stream, executions.bounds):
        sums.add_rows(rows)
        sums.add_branches(_ends_of_rows(rows))
    stream.discard_decoder()
    for period in sums.periods():
        builder.add_mapping_period(period)


def _profile_of_executions(
    builder: ProfileBuilder, losses: ProfileLosses, threads: list[tuple[str, int]]
) -> Profile:
    binaries, edges = builder.build_binaries(losses)
    transfers = {
        kind: int(edges.count[edges.kind == kind].sum()) + builder.uncounted_transfers[kind]
        for kind in End
    }
    # Rows do not end at a branch that is not taken, so there are no edges for it.
    executed = sum(
        int(each.count[each.kind == InstructionClass.CONDITIONAL].sum()) for each in binaries
    )
    is_taken = (edges.kind == End.CONDITIONAL) & (edges.source_binary != NO_BINARY)
    transfers[End.CUT] = max(executed - int(edges.count[is_taken].sum()), 0)
    return Profile(
        [each for each in binaries if each.executed_instructions],
        None,
        sum(count for _, count in threads),
        losses,
        threads,
        transfers,
    )


def _counts_of_executions(region: Region, found: Sequence[_Executions]) -> dict[str, int]:
    sizes = np.sort(np.concatenate([each.sizes for each in found] or [np.empty(0, np.uint64)]))
    counts, one = {"regions": len(sizes)}, "region"
    if region.start != region.stop:
        counts["unfinished regions"] = sum(each.unfinished for each in found)
    if region.function:
        counts, one = {"calls of the function": len(sizes)}, "call"
        counts["recursive calls of the function"] = sum(each.recursive for each in found)
    if len(sizes):
        counts[f"least instructions of a {one}"] = int(sizes[0])
        counts[f"median instructions of a {one}"] = int(sizes[(len(sizes) - 1) // 2])
        counts[f"most instructions of a {one}"] = int(sizes[-1])
    return counts


# Names and addresses

_ADDRESS = re.compile(r"0x[0-9a-fA-F]{1,16}")


def _executions_finder(
    trace: Trace, streams: Sequence[Stream], region: Region
) -> Callable[[Stream], _Executions]:
    """Return a function that returns the `_Executions` of a stream."""
    pids = [pid for stream in streams for pid in stream.space_pids]
    if region.function:
        function = _place_finder(trace, region.function, pids, "--function", is_entry=False)
        return lambda stream: _calls_of_function(trace, stream, function(stream))
    starts = _place_finder(trace, region.start, pids, "--from")
    stops = _place_finder(trace, region.stop, pids, "--to")
    return lambda stream: _executions_between(stream, starts(stream), stops(stream))


def _place_finder(
    trace: Trace, text: str, pids: Sequence[int], option: str, *, is_entry: bool = True
) -> Callable[[Stream], list[SelectedRange]]:
    """Return a function that returns the ranges of a place in the code of a stream: the first byte
    of a function, or without `is_entry` all of it.
    """
    if _ADDRESS.fullmatch(text):
        address = int(text, 16)
        return lambda stream: [SelectedRange(address, address + 1)]
    ranges = SelectedRanges(Selection(functions=(text,)), trace.images)
    find_function(trace.images, text, pids, option)

    def ranges_of_stream(stream: Stream) -> list[SelectedRange]:
        if not is_entry:
            return ranges.in_processes(*stream.space_pids) or []
        places = ranges.entries(text, stream.space_pids).values()
        return [each for mapped in places for each in mapped]

    return ranges_of_stream


def find_function(
    images: Images, text: str, pids: Iterable[int], option: str = "--function"
) -> FunctionInFile:
    """Return the function NAME or NAME@FILE of some processes.

    Raises UsageError for an unknown name, with similar names, and for a name that several functions
    have, with what distinguishes them. The errors begin with `option`.
    """
    pids = list(pids)
    ranges = SelectedRanges(Selection(functions=(text,)), images)
    found = ranges.entries(text, pids)
    if not found:
        ranges.check_functions_exist(pids, option)
        raise UsageError(f"{option} {text}: a file is no function")
    if len(found) > 1:
        choices = _distinct_names(text, found)
        raise UsageError(
            f"{option} {text}: {len(found)} functions have this name",
            hint=f"give one of:  {'  '.join(choices[:8])}{'  ...' * (len(choices) > 8)}",
        )
    return next(iter(found))


def _distinct_names(
    text: str, found: Mapping[FunctionInFile, Sequence[SelectedRange]]
) -> list[str]:
    """Return what a user can write for each of the functions with the name `text`."""
    files = [PurePath(each.path).name for each in found]
    names = [[f"{text}@{file}" for file in files], [each.symbol for each in found]]
    for choices in names:
        if len({*choices}) == len(found):
            return choices
    return [
        f"{places[0].start:#x} ({file})" for places, file in zip(found.values(), files, strict=True)
    ]


# Calls of a function


class _CallRow(NamedTuple):
    """A call of the function, or of a signal handler. `first` and `stop` are instruction indexes;
    `stack` is the number of the stack.
    """

    first: int
    stop: int
    depth: int
    total: int
    stack: int
    is_function: bool
    is_handler: bool


def _calls_of_function(
    trace: Trace, stream: Stream, function: Sequence[SelectedRange]
) -> _Executions:
    """Return the outermost calls of a function.

    Signal handlers are no part of the calls that they interrupt. A call within a handler is an
    outermost call.
    """
    sizes: list[int] = []
    recursive = 0
    bounds_by_stack: dict[int, list[int]] = {}
    # By stack, the calls that contain the current one: (end, whether the function is running).
    callers_by_stack: dict[int, list[tuple[int, bool]]] = {}
    for call in _calls_and_handlers(trace, stream, function):
        callers = callers_by_stack.setdefault(call.stack, [])
        while callers and callers[-1][0] <= call.first:
            callers.pop()
        is_inside = bool(callers) and callers[-1][1]
        is_recursive = is_inside and not call.is_handler
        if call.is_function and is_recursive:
            recursive += 1
        elif call.is_function:
            sizes.append(call.total)
        if call.is_function != is_inside:
            # The call switches counting on, or the handler switches it off.
            bounds_by_stack.setdefault(call.stack, []).extend((call.first, call.stop))
        callers.append((call.stop, call.is_function or is_recursive))
    ranges = sorted(
        each
        for bounds in map(sorted, bounds_by_stack.values())
        for each in zip(bounds[::2], bounds[1::2], strict=True)
    )
    return _Executions(
        np.array(ranges, np.uint64).reshape(-1),
        np.array(sizes, np.uint64),
        recursive,
        is_mixed=any(next_[0] < last[1] for last, next_ in pairwise(ranges))
        or sum(stop - first for first, stop in ranges) != sum(sizes),
    )


def _calls_and_handlers(
    trace: Trace, stream: Stream, function: Sequence[SelectedRange]
) -> Iterator[_CallRow]:
    """Iterate over the calls of a function and of signal handlers, callers before callees."""
    parts = []
    for batch in table_of_calls([stream], trace.symbols, is_whole=not trace.is_snapshot):
        is_function = rows_overlapping_ranges(function, batch.entry, batch.entry, batch.begin_time)
        is_handler = batch.kind == CallKind.SIGNAL
        rows = np.flatnonzero(is_function | is_handler)
        columns = (batch.first, batch.stop, batch.depth, batch.total_instructions, batch.stack)
        flags = (is_function[rows], is_handler[rows])
        parts.append(np.stack([*(each[rows].astype(np.int64) for each in columns), *flags]))
    table = np.concatenate(parts, axis=1) if parts else np.empty((7, 0), np.int64)
    first, _, depth, *_ = table
    for row in iterate_rows([*table], np.lexsort((depth, first))):
        begin, stop, level, total, stack, is_of_function, is_of_handler = row
        yield _CallRow(begin, stop, level, total, stack, bool(is_of_function), bool(is_of_handler))


# From one place to another


def _executions_between(
    stream: Stream, starts: Sequence[SelectedRange], stops: Sequence[SelectedRange]
) -> _Executions:
    """Return the regions from an execution of a start to the next execution of a stop."""
    finder = _InstructionFinder(stream)
    indexes, kinds = [np.empty(0, np.uint64)], [np.empty(0, np.bool_)]
    for first, rows in _rows_with_index(stream):
        for places, stops_here in ((starts, False), (stops, True)):
            for place in places:
                hits = np.flatnonzero(
                    rows_overlapping_ranges([place], rows.start, rows.last, rows.time)
                )
                if not len(hits):
                    continue
                begins, numbers = np.unique(rows.start[hits], return_inverse=True)
                time, bits = int(rows.time[hits[0]]), int(rows.bits[hits[0]])
                counts = [
                    finder.count_before(place.start, each, time, bits) for each in begins.tolist()
                ]
                before = np.array(counts)[numbers]
                is_executed = before >= 0
                found = first[hits[is_executed]] + before[is_executed].astype(np.uint64)
                indexes.append(found)
                kinds.append(np.full(len(found), stops_here))
    index, is_stop = np.concatenate(indexes), np.concatenate(kinds)
    if {each.start for each in starts} == {each.start for each in stops}:
        at = np.unique(index)
        bounds = np.repeat(at, 2)[1:-1]
        return _Executions(bounds, np.diff(at))
    order = np.argsort(index, kind="stable")
    index, is_stop = index[order], is_stop[order]
    changes = np.ones(len(index), np.bool_)
    changes[1:] = is_stop[1:] != is_stop[:-1]
    # A region begins with the first start, whatever stops are before it.
    changes[:1] &= ~is_stop[:1]
    bounds = index[changes]
    unfinished = len(bounds) % 2
    bounds = bounds[: len(bounds) - unfinished]
    return _Executions(bounds, bounds[1::2] - bounds[::2], unfinished=unfinished)


def _rows_with_index(stream: Stream) -> Iterator[tuple[U64, Rows]]:
    """Iterate over the rows of a stream, with the index of the first instruction of each."""
    executed = 0
    for rows in stream.rows():
        counts = rows.instructions.astype(np.uint64)
        first = np.cumsum(counts, dtype=np.uint64) - counts + np.uint64(executed)
        executed += int(counts.sum())
        yield first, rows


def _rows_within(stream: Stream, bounds: U64) -> Iterator[Rows]:
    """Iterate over the rows in the ranges of `_Executions.bounds`; rows are cut at the bounds."""
    finder = _InstructionFinder(stream)
    for first, rows in _rows_with_index(stream):
        if not len(rows):
            continue
        stop = first + rows.instructions
        around = np.searchsorted(bounds, [first[0], stop[-1]], "right")
        if around[0] == around[1]:
            # The batch is inside or outside as a whole.
            if around[0] & 1:
                yield rows
            continue
        before = np.searchsorted(bounds, first, "right")
        is_cut = np.searchsorted(bounds, stop, "left") > before
        yield rows.select_rows((before & 1).astype(np.bool_) & ~is_cut)
        for row in np.flatnonzero(is_cut).tolist():
            begin, end, at = int(first[row]), int(stop[row]), int(before[row])
            edges = [begin, *bounds[at : np.searchsorted(bounds, end, "left")].tolist(), end]
            for number, (low, high) in enumerate(pairwise(edges)):
                if not (at + number) & 1 or low == high:
                    continue
                piece = rows.select_rows(slice(row, row + 1))
                code = (int(column[row]) for column in (rows.start, rows.time, rows.bits))
                where = finder.nth_address(low - begin, *code)
                is_last = high == end
                yield piece.replace(
                    start=np.array([where], np.uint64),
                    instructions=np.array([high - low], np.uint32),
                    end=piece.end if is_last else np.array([End.CUT], np.uint8),
                )


def _ends_of_rows(rows: Rows) -> Branches:
    """Return the transfers at the ends of rows; their targets are unknown."""
    leaves = rows.select_rows(rows.end != End.CUT)
    return Branches(
        leaves.last,
        np.zeros(len(leaves), np.uint64),
        leaves.end,
        leaves.time,
        extra_columns=leaves.extra_columns,
    )


class _InstructionFinder:
    """Finds instructions in code that a stream executed; each start is decoded once."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._addresses: dict[int, list[int]] = {}

    def count_before(self, address: int, start: int, time: int, bits: int) -> int:
        """Return the instructions from a start up to an address; -1 if it is within one."""
        known = self._known_addresses(start)
        while known[-1] < address:
            self._decode_next(known, time, bits)
        return known.index(address) if address in known else -1

    def nth_address(self, number: int, start: int, time: int, bits: int) -> int:
        """Return the address of the n'th instruction after a start."""
        known = self._known_addresses(start)
        while len(known) <= number:
            self._decode_next(known, time, bits)
        return known[number]

    def _known_addresses(self, start: int) -> list[int]:
        return self._addresses.setdefault(start, [start])

    def _decode_next(self, known: list[int], time: int, bits: int) -> None:
        at = known[-1]
        code = self._stream.image_at(at).read(at, MAX_LENGTH, time=time)
        known.append(at + decode(code, at, bits).length)
