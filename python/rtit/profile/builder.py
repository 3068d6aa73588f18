"""Builds a profile: exact counts of what ran, by binary, from the totals of streams.

Streams count runs and edges by virtual address. Addresses are mapped to files and offsets through
the process's mappings. If a process maps something else at the same addresses (exec, dlclose),
counts are split into *mapping periods*, within which an address has one meaning. Code of no file
(kernel, JIT code, vDSO) is counted by function name.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from rtit.image import KERNEL_START, MappingLookup, has_file
from rtit.image.image import has_reused_addresses
from rtit.profile.losses import ProfileLosses
from rtit.profile.tables import NO_BINARY, Binary, Edges, Profile
from rtit.trace import EdgeTotals, End, RunTotals, Totals
from rtit.trace.tables.batch import ErrorClass
from rtit.trace.tables.counts import BoundedCounter
from rtit.trace.tables.unknown_loops import describe_loops, instructions_in_unknown_iterations
from rtit.trace.threads.schedule import instructions_by_thread

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from rtit._core import Space
    from rtit.image import Files, FileSymbols, Images, Mapping
    from rtit.trace import Branches, Rows, Stream, Trace
    from rtit.trace.tables.batch import Batch


class MappingPeriod(NamedTuple):
    """Totals while these mappings were valid. They do not overlap, unless they map the same."""

    totals: Totals
    mappings: list[Mapping]


class _MappingEpochs:
    """The mapping periods of every process, numbered from 0."""

    def __init__(self, images: Images) -> None:
        self._images = images
        self._changes: dict[int, NDArray[np.uint64]] = {}

    def epoch_of_each_row(
        self, pids: NDArray[np.int32], times: NDArray[np.uint64]
    ) -> NDArray[np.uint32]:
        """Return the number of the mapping period of each row."""
        found = np.zeros(len(pids), np.uint32)
        for pid in np.unique(pids).tolist():
            changes = self.mapping_change_times(pid)
            if len(changes):
                mask = pids == pid
                found[mask] = np.searchsorted(changes, times[mask], "right")
        return found

    def mappings_in_epoch(self, pid: int, epoch: int) -> list[Mapping]:
        """Return the mappings of a process in a period."""
        changes, found = self.mapping_change_times(pid), list(self._images.mappings(pid))
        if not len(changes):
            return found
        time = int(changes[epoch - 1]) if epoch else 0
        return [each for each in found if each.since <= time < each.until]

    def mapping_change_times(self, pid: int) -> NDArray[np.uint64]:
        """Return the times at which the periods of a process begin, except the first."""
        changes = self._changes.get(pid)
        if changes is None:
            found = list(self._images.mappings(pid))
            times = {time for each in found for time in (each.since, each.until)}
            changes = np.array(sorted(times) if has_reused_addresses(found) else [], np.uint64)
            self._changes[pid] = changes
        return changes


def mapping_periods(
    stream: Stream, images: Images, thread_counts: Counter[int]
) -> Iterator[MappingPeriod]:
    """Return the totals of a stream, by mapping period.

    If no address has two meanings in the processes of the stream, there is one period. Otherwise
    rows are added up here, which takes longer, for a stream of several threads, and for a thread of
    a trace with the kernel. `thread_counts` gets the instructions of each thread of several. Counts
    beyond the limit of the trace are in the first period.
    """
    has_several_threads = stream.has_several_threads
    mappings = _mappings_of_stream(stream, images)
    if not has_reused_addresses(mappings):
        yield MappingPeriod(stream.totals(), mappings)
        if has_several_threads:
            thread_counts.update(instructions_by_thread(stream.rows()))
        return
    if not has_several_threads and not stream.needs_extraction:
        epochs = _MappingEpochs(images)
        starts = epochs.mapping_change_times(stream.tid).tolist()
        for epoch, totals in stream.totals_by_period(starts):
            yield MappingPeriod(totals, epochs.mappings_in_epoch(stream.tid, epoch))
        return
    sums = MappingPeriodSums(stream, images)
    for branches in stream.branches():
        sums.add_branches(branches)
    for rows in stream.rows():
        sums.add_rows(rows)
        if has_several_threads:
            thread_counts.update(instructions_by_thread([rows]))
    yield from sums.periods()


def _mappings_of_stream(stream: Stream, images: Images) -> list[Mapping]:
    """Return the mappings of all processes of a stream; none if none of them has a file."""
    if not stream.has_several_threads:
        return list(images.mappings(stream.tid))
    scope = stream.thread_scope
    pids = {stream.pid, *(pid for pid, _ in stream.thread_ids)}
    if scope is not None and scope.selected is None:
        pids.update(scope.schedule.intervals.pid)
    found = {each: None for pid in sorted(pids) for each in images.mappings(pid)}
    return list(found) if any(has_file(each.path) for each in found) else []


class MappingPeriodSums:
    """Adds up rows and branches of a stream by mapping period."""

    def __init__(self, stream: Stream, images: Images) -> None:
        self._own_tid = None if stream.has_several_threads else stream.tid
        self._epochs = _MappingEpochs(images)
        self._runs = BoundedCounter("i4 u4 u8 u4", stream.max_counters)
        self._edges = BoundedCounter("i4 u4 u8 u8 u1", stream.max_counters, kind_column=4)

    def add_rows(self, rows: Rows) -> None:
        """Add the runs of rows."""
        found = self._process_and_epoch(rows, rows.time)
        self._runs.add_rows(*found, rows.start, rows.instructions)

    def add_branches(self, branches: Branches) -> None:
        """Add branches."""
        found = self._process_and_epoch(branches, branches.time)
        self._edges.add_rows(*found, branches.source, branches.target, branches.kind)

    def periods(self) -> Iterator[MappingPeriod]:
        """Yield the sums of each period."""
        sums = _SumsByEpoch(self._runs), _SumsByEpoch(self._edges)
        others: tuple[int, dict[int, int]] = self._runs.uncounted, self._edges.uncounted_by_kind
        for key in np.union1d(sums[0].keys, sums[1].keys).tolist():
            totals = Totals(
                RunTotals(*sums[0].rows_of_key(key)).replace(uncounted=others[0]),
                EdgeTotals(*sums[1].rows_of_key(key)).replace(uncounted_by_kind=others[1]),
            )
            others = 0, {}
            mappings = self._epochs.mappings_in_epoch(key >> 32, key & 0xFFFF_FFFF)
            yield MappingPeriod(totals, mappings)

    def _process_and_epoch(self, batch: Batch, times: NDArray[np.uint64]) -> tuple[Any, Any]:
        pids = (
            batch.extra_columns["pid"]
            if self._own_tid is None
            else np.full(len(batch), self._own_tid, np.int32)
        )
        return pids, self._epochs.epoch_of_each_row(pids, times)


class _SumsByEpoch:
    """Sums by process and mapping period."""

    def __init__(self, counter: BoundedCounter) -> None:
        pids, epochs, *self._columns = counter.take_sorted_columns()
        self.keys = pids.astype(np.int64) << 32 | epochs.astype(np.int64)

    def rows_of_key(self, key: int) -> list[Any]:
        """Return the rows of a key."""
        begin, end = np.searchsorted(self.keys, [key, key + 1]).tolist()
        return [column[begin:end] for column in self._columns]


Function = tuple[str, str]
"""Name of the function, and name of its module; "" if unknown."""


def unmapped_code(trace: Trace, stream: Stream) -> Counter[Function]:
    """Return the instructions by function of a stream's code that is in no file of its process.

    Decodes the stream again; raises what decoding raises.
    """
    files = {
        each.path
        for tid in (stream.tid, *stream.space_pids[1:])
        for each in trace.images.mappings(tid)
        if has_file(each.path) and each.start < KERNEL_START
    }
    found: Counter[Function] = Counter()
    for name, path, count in stream.instructions_by_function(trace.symbols):
        if path not in files:
            found[name, _file_name(path)] += count
    stream.discard_decoder()
    return found


def unmapped_function_at(trace: Trace, tid: int, address: int, time: int) -> Function:
    """Return the function at an address that is in no file."""
    location = trace.symbols.lookup(tid, time, address)
    return location.name, _file_name(location.module)


def _file_name(path: str) -> str:
    """Return the name of a mapped file; "" for anonymous memory."""
    return "" if path == "//anon" else path.rpartition("/")[2]


_MAX_COMM = 15
"""Characters of a process's name."""
_FileKey = tuple[str, bytes | None]


class _BinaryFile(NamedTuple):
    """A file with code that ran, and the ranges of it that were mapped."""

    path: str
    build_id: bytes | None
    symbols: FileSymbols
    mapped_ranges: set[tuple[int, int]]


class ProfileBuilder:
    """Adds up counts by file.

    At most `max_counters` runs and edges have counts of their own (see `BoundedCounter`).
    """

    def __init__(self, files: Files, max_counters: int = 0) -> None:
        self._file_cache = files
        self.files: list[_BinaryFile] = []
        self._numbers: dict[_FileKey, int] = {}
        self._runs = BoundedCounter("i4 u8 u4", max_counters)
        self._edges = BoundedCounter("i4 u8 i4 u8 u1", max_counters, kind_column=4)

    def add_mapping_period(self, period: MappingPeriod) -> bool:
        """Add the counts of a mapping period; return whether any may be in no file."""
        regions = MappingLookup(period.mappings)
        numbers = np.array([*map(self.binary_number, regions.mappings), NO_BINARY], np.int32)

        def locate_ips(ips: Any) -> tuple[Any, Any]:
            rows, offsets = regions.find_mappings(ips, ips)
            binary = numbers[rows]
            return binary, np.where(binary == NO_BINARY, ips, offsets)

        runs, edges = period.totals.runs, period.totals.edges
        binary, offsets = locate_ips(runs.start)
        self.add_runs(binary, offsets, runs.instructions, runs.count)
        ends = *locate_ips(edges.source), *locate_ips(edges.target)
        self._edges.add_rows(*ends, edges.kind, count=edges.count)
        self._runs.uncounted_by_kind[0] += runs.uncounted
        self._edges.uncounted_by_kind.update(edges.uncounted_by_kind)
        return bool((binary == NO_BINARY).any() or runs.uncounted)

    def add_runs(self, binary: Any, offset: Any, instructions: Any, count: Any) -> None:
        """Add runs of binaries, by number; NO_BINARY for code in no file."""
        # callers may have wider integers
        binary = binary.astype(np.int32, copy=False)
        self._runs.add_rows(binary, offset, instructions.astype(np.uint32, copy=False), count=count)

    def binary_number(self, mapping: Mapping) -> int:
        """Return the number of a mapping's binary, and note its code; NO_BINARY if it has none."""
        key = mapping.path, mapping.build_id
        if not has_file(mapping.path) or mapping.start >= KERNEL_START:
            return NO_BINARY
        if key not in self._numbers:
            symbols = self._file_cache.symbols(*key)
            self._numbers[key] = NO_BINARY if symbols is None else len(self.files)
            if symbols is not None:
                build_id = mapping.build_id or symbols.elf.build_id
                self.files.append(_BinaryFile(mapping.path, build_id, symbols, set()))
        number = self._numbers[key]
        if number != NO_BINARY and mapping.problem is None:
            self.files[number].mapped_ranges.add((mapping.offset, mapping.end - mapping.start))
        return number

    def build_binaries(self, losses: ProfileLosses) -> tuple[list[Binary], Edges]:
        """Return all binaries and all edges, and add the code in no file to `losses`.

        A binary of which nothing ran is included.
        """
        runs = self._runs.take_sorted_columns()
        source_binary, source, target_binary, target, kind, count = (
            self._edges.take_sorted_columns()
        )
        losses.uncounted_runs, losses.uncounted_transfers = (
            self._runs.uncounted,
            self._edges.uncounted,
        )
        edges = Edges(source_binary, source, target_binary, target, kind, count)
        unmapped_code = runs[0] == NO_BINARY
        kernel = unmapped_code & (runs[1] >= np.uint64(KERNEL_START))
        losses.kernel, losses.no_file = (
            _count_instructions(runs, kernel),
            _count_instructions(runs, unmapped_code & ~kernel),
        )
        binaries = []
        for number in range(len(self.files)):
            binary, unknown = _make_binary(self, number, runs, edges)
            losses.changed_code += unknown
            binaries.append(binary)
        return binaries, edges

    @property
    def uncounted_transfers(self) -> Counter[int]:
        """Transfers without a count of their own, by `End`."""
        return self._edges.uncounted_by_kind

    def code_space(self, number: int) -> Space:
        """Return the code of a binary by file offset."""
        found = self.files[number]
        ranges = sorted(found.mapped_ranges)
        return code_of_file(self._file_cache, found.path, found.build_id, ranges)


def code_of_file(
    files: Files, path: str, build_id: bytes | None, ranges: Iterable[tuple[int, int]]
) -> Space:
    """Return ranges of a file, offset and size each, by file offset. Raises UnusableFile."""
    from rtit._core import Space

    space = Space()
    for offset, size in ranges:
        space.map(0, offset, files.read_code(path, offset, size, build_id))
    return space


def build_profile(trace: Trace, streams: Sequence[Stream]) -> Profile:
    """Decode the streams and return the counts by binary. Raises what decoding raises."""
    builder = ProfileBuilder(trace.images.files, trace.max_counters)
    losses = ProfileLosses(incomplete=trace.incomplete)
    threads: list[tuple[str, int]] = []
    unmapped: Counter[Function] = Counter()
    for stream in streams:
        has_unmapped = False
        thread_counts: Counter[int] = Counter()
        for period in mapping_periods(stream, trace.images, thread_counts):
            has_unmapped |= builder.add_mapping_period(period)
            del period
        counts = stream.counts()
        if len(stream.thread_ids) > 1:
            alone = (stream.for_thread(*who, trace.comms) for who in stream.thread_ids)
            threads += ((each.title, thread_counts[each.tid]) for each in alone)
        else:
            loop_instructions = _add_unknown_loops(trace, stream, counts.instructions, losses)
            threads.append((stream.title, counts.instructions + loop_instructions))
        add_lost_bytes(stream, losses)
        stream.discard_decoder()
        if has_unmapped:
            unmapped += unmapped_code(trace, stream)
    losses.problems = [str(problem) for problem in trace.image_problems]
    binaries, edges = builder.build_binaries(losses)
    program = _program_path(trace)
    main = next((each for each in binaries if program in (each.path, None)), None)
    transfers = {
        kind: int(edges.count[edges.kind == kind].sum()) + builder.uncounted_transfers[kind]
        for kind in End
    }
    binaries_run = [each for each in binaries if each.executed_instructions]
    total = sum(count for _, count in threads)
    return Profile(binaries_run, main, total, losses, threads, transfers, unmapped)


def add_lost_bytes(stream: Stream, losses: ProfileLosses) -> None:
    """Add the bytes of a stream, and those that were not decoded, to `losses`."""
    losses.bytes += stream.size - stream.counts().elsewhere_bytes
    losses.bytes_lost += sum(span.end - span.start for span in stream.spans() if span.is_gap)


def _add_unknown_loops(trace: Trace, stream: Stream, counted: int, losses: ProfileLosses) -> int:
    """Add the loops without packets to `losses`; return the instructions of their further
    iterations.
    """
    if not any(True for _ in stream.errors_of_class(ErrorClass.UNKNOWN_REPETITIONS)):
        return 0
    losses.unknown_loops += [f"{stream.title}: {text}" for text in describe_loops(stream)]
    loop_instructions = instructions_in_unknown_iterations(trace, stream, counted) or 0
    losses.loop_instructions += loop_instructions
    return loop_instructions


def _make_binary(
    builder: ProfileBuilder, number: int, runs: list[Any], edges: Edges
) -> tuple[Binary, int]:
    """Return a binary, and how many instructions ran where its file has other code."""
    from rtit._core import count_instructions

    found = builder.files[number]
    mask = runs[0] == number
    space = builder.code_space(number)
    starts, instructions, run_counts = (column[mask] for column in runs[1:4])
    counted, unknown = count_instructions(
        space, starts, instructions, run_counts, found.symbols.elf.bits
    )
    mask = (edges.source_binary == number) | (edges.target_binary == number)
    binary = Binary(
        number,
        found.path,
        found.build_id,
        found.symbols,
        space,
        np.asarray(counted["ip"]),
        np.asarray(counted["size"]),
        np.asarray(counted["kind"]),
        np.asarray(counted["count"]),
        edges.select_rows(mask),
        sorted(found.mapped_ranges),
    )
    return binary, unknown


def _count_instructions(runs: list[Any], mask: Any) -> int:
    return int((runs[2][mask].astype(np.uint64) * runs[3][mask]).sum())


def _program_path(trace: Trace) -> str | None:
    """Return the path of the program.

    Of the files of the first process this is the one with the process's name, else the one that was
    mapped first, at the lowest address.
    """
    for pid in trace.images.pids:
        files = [
            each
            for each in trace.images.mappings(pid)
            if has_file(each.path) and each.start < KERNEL_START
        ]
        name = trace.comms.get(pid)
        called = [each for each in files if PurePath(each.path).name[:_MAX_COMM] == name]
        if files:
            return min(called or files, key=lambda each: (each.since, each.start)).path
    return None
