"""The totals of a stream, by process, cut where the same addresses begin to mean something else.

What ran in no file of a process, by name: the kernel, code that programs made, the vdso.

From the totals of streams to counts by binary.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from rtit.image import UPPER, Regions, has_file
from rtit.image.image import reused
from rtit.profile.tables import NOWHERE, Binary, Edges, Losses, Profile
from rtit.trace import EdgeTotals, End, RunTotals, Totals
from rtit.trace.tables.batch import ErrorClass
from rtit.trace.tables.counts import Sums, further_rounds, sentences
from rtit.trace.tables.selection import functions

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from rtit._core import Space
    from rtit.image import Files, FileSymbols, Images, Mapping
    from rtit.trace import Rows, Stream, Trace
    from rtit.trace.tables.batch import Batch


class Slice(NamedTuple):
    """What ran while these were mapped; they do not overlap, but where they show the same."""

    totals: Totals
    mappings: list[Mapping]


class _Lives:
    """When the same addresses begin to mean something else, of every process."""

    def __init__(self, images: Images) -> None:
        self._images = images
        self._cuts: dict[int, NDArray[np.uint64]] = {}

    def epochs(self, pids: NDArray[np.int32], times: NDArray[np.uint64]) -> NDArray[np.uint32]:
        """In how many-th of its process's times each row is: 0 before the first change."""
        found = np.zeros(len(pids), np.uint32)
        for pid in np.unique(pids).tolist():
            cuts = self._cuts_of(pid)
            if len(cuts):
                own = pids == pid
                found[own] = np.searchsorted(cuts, times[own], "right")
        return found

    def mappings(self, pid: int, epoch: int) -> list[Mapping]:
        """What was mapped then."""
        cuts, found = self._cuts_of(pid), list(self._images.mappings(pid))
        if not len(cuts):
            return found
        time = int(cuts[epoch - 1]) if epoch else 0
        return [each for each in found if each.since <= time < each.until]

    def _cuts_of(self, pid: int) -> NDArray[np.uint64]:
        cuts = self._cuts.get(pid)
        if cuts is None:
            found = list(self._images.mappings(pid))
            times = {time for each in found for time in (each.since, each.until)}
            cuts = np.array(sorted(times) if reused(found) else [], np.uint64)
            self._cuts[pid] = cuts
        return cuts


def slices(stream: Stream, images: Images, ran: Counter[int]) -> Iterator[Slice]:
    """All that ran in a stream. A process that never maps another thing at addresses that it used
    before is one slice, added up while it is decoded; one that does (exec, dlclose) has a slice for
    each time between changes, which takes as long as its rows do, and so do those of a stream of
    several threads, of which `ran` is told how many instructions each had. Of more places than the
    trace has counts of those of the first times are there; the first slice tells of the others.
    """
    several = stream.has_several
    if not several:
        mappings = list(images.mappings(stream.tid))
        if not reused(mappings):
            yield Slice(stream.totals(), mappings)
            return
    lives = _Lives(images)

    def whose(batch: Batch, times: NDArray[np.uint64]) -> tuple[Any, Any]:
        pids = batch.more["pid"] if several else np.full(len(batch), stream.tid, np.int32)
        return pids, lives.epochs(pids, times)

    runs = Sums("i4 u4 u8 u4", stream.places)
    edges = Sums("i4 u4 u8 u8 u1", stream.places, kind=4)
    for branches in stream.branches():
        found = whose(branches, branches.time)
        edges.add(*found, branches.source, branches.target, branches.kind)
    for rows in stream.rows():
        runs.add(*whose(rows, rows.time), rows.start, rows.instructions)
        if several:
            _count(ran, rows)
    sums = _Parts(runs), _Parts(edges)
    others: tuple[int, dict[int, int]] = runs.others, edges.others_of
    for key in np.union1d(sums[0].keys, sums[1].keys).tolist():
        totals = Totals(
            RunTotals(*sums[0].of(key)).replaced(others=others[0]),
            EdgeTotals(*sums[1].of(key)).replaced(others_of=others[1]),
        )
        others = 0, {}
        yield Slice(totals, lives.mappings(key >> 32, key & 0xFFFF_FFFF))


class _Parts:
    """Sums by process and time."""

    def __init__(self, sums: Sums) -> None:
        pids, epochs, *self._columns = sums.columns()
        self.keys = pids.astype(np.int64) << 32 | epochs.astype(np.int64)

    def of(self, key: int) -> list[Any]:
        """The rows of one."""
        begin, end = np.searchsorted(self.keys, [key, key + 1]).tolist()
        return [column[begin:end] for column in self._columns]


def _count(ran: Counter[int], rows: Rows) -> None:
    tids, places = np.unique(rows.more["tid"], return_inverse=True)
    counts = np.bincount(places, rows.instructions, len(tids))
    for tid, count in zip(tids.tolist(), counts.tolist(), strict=True):
        ran[tid] += int(count)


Function = tuple[str, str]
"""The name, "" for none, and that of the module it is in, "" for none."""


def outside(trace: Trace, stream: Stream) -> Counter[Function]:
    """Instructions of a stream by function, of those that are in no file of its process. Decodes
    the stream once more; raises what decoding raises.
    """
    files = {
        each.path
        for tid in (stream.tid, *stream.pids[1:])
        for each in trace.images.mappings(tid)
        if has_file(each.path) and each.start < UPPER
    }
    found: Counter[Function] = Counter()
    for name, path, count in functions(stream, trace.symbols):
        if path not in files:
            found[name, path.rpartition("/")[2]] += count
    stream.forget()
    return found


def name_at(trace: Trace, tid: int, address: int, time: int) -> Function:
    """Of the function at an address that is in no file."""
    location = trace.symbols.lookup(tid, time, address)
    return location.name, location.module.rpartition("/")[2]


_COMM = 15
"""Characters of a process's name."""
_Key = tuple[str, bytes | None]


class _Found(NamedTuple):
    """A binary, before its instructions are known."""

    path: str
    build_id: bytes | None
    symbols: FileSymbols
    pieces: set[tuple[int, int]]


class Gathering:
    """Counts of what ran in these files, added up, at so many `places` (see `Sums`)."""

    def __init__(self, files: Files, places: int = 0) -> None:
        self._files = files
        self.found: list[_Found] = []
        self._numbers: dict[_Key, int] = {}
        self._runs = Sums("i4 u8 u4", places)
        self._edges = Sums("i4 u8 i4 u8 u1", places, kind=4)

    def add(self, part: Slice) -> bool:
        """Runs and edges of some time, in the mappings of that time; whether any may be in no
        file.
        """
        regions = Regions(part.mappings)
        numbers = np.array([*map(self.number, regions.mappings), NOWHERE], np.int32)

        def placed(ips: Any) -> tuple[Any, Any]:
            rows, offsets = regions.at(ips, ips)
            binary = numbers[rows]
            return binary, np.where(binary == NOWHERE, ips, offsets)

        runs, edges = part.totals.runs, part.totals.edges
        binary, offsets = placed(runs.start)
        self.add_runs(binary, offsets, runs.instructions, runs.count)
        ends = *placed(edges.source), *placed(edges.target)
        self._edges.add(*ends, edges.kind, count=edges.count)
        self._runs.others_of[0] += runs.others
        self._edges.others_of.update(edges.others_of)
        return bool((binary == NOWHERE).any() or runs.others)

    def add_runs(self, binary: Any, offset: Any, instructions: Any, count: Any) -> None:
        """Runs, in binaries by number or NOWHERE."""
        # tallies of programs have wider ones
        binary = binary.astype(np.int32, copy=False)
        self._runs.add(binary, offset, instructions.astype(np.uint32, copy=False), count=count)

    def number(self, mapping: Mapping) -> int:
        """Of the mapping's binary; NOWHERE if it has none. Its code counts from now on."""
        key = mapping.path, mapping.build_id
        if not has_file(mapping.path) or mapping.start >= UPPER:
            return NOWHERE
        if key not in self._numbers:
            symbols = self._files.symbols(*key)
            self._numbers[key] = NOWHERE if symbols is None else len(self.found)
            if symbols is not None:
                build_id = mapping.build_id or symbols.elf.build_id
                self.found.append(_Found(mapping.path, build_id, symbols, set()))
        number = self._numbers[key]
        if number != NOWHERE and mapping.problem is None:
            self.found[number].pieces.add((mapping.offset, mapping.end - mapping.start))
        return number

    def binaries(self, losses: Losses) -> tuple[list[Binary], Edges]:
        """All of it, also that of which nothing ran; and every edge. What ran elsewhere is added to
        `losses`.
        """
        runs = self._runs.columns()
        source_in, source, target_in, target, kind, count = self._edges.columns()
        losses.runs, losses.transfers = self._runs.others, self._edges.others
        edges = Edges(source_in, source, target_in, target, kind, count)
        outside = runs[0] == NOWHERE
        kernel = outside & (runs[1] >= np.uint64(UPPER))
        losses.kernel, losses.elsewhere = _weight(runs, kernel), _weight(runs, outside & ~kernel)
        binaries = []
        for number in range(len(self.found)):
            binary, unknown = _binary(self, number, runs, edges)
            losses.rewritten += unknown
            binaries.append(binary)
        return binaries, edges

    @property
    def beyond(self) -> Counter[int]:
        """How often edges were taken that have no count of their own, by `End`."""
        return self._edges.others_of

    def space(self, number: int) -> Space:
        """The code of a binary, by file offset."""
        from rtit._core import Space

        found = self.found[number]
        space = Space()
        for offset, size in sorted(found.pieces):
            space.map(0, offset, self._files.code(found.path, offset, size, found.build_id))
        return space


def profile(trace: Trace, streams: Sequence[Stream]) -> Profile:
    """Decode the streams and add up, binary by binary. Raises what decoding raises."""
    gathering = Gathering(trace.images.files, trace.places)
    losses = Losses(incomplete=trace.incomplete)
    threads: list[tuple[str, int]] = []
    named: Counter[Function] = Counter()
    for stream in streams:
        is_outside = False
        ran: Counter[int] = Counter()
        for part in slices(stream, trace.images, ran):
            is_outside |= gathering.add(part)
            del part
        counts = stream.counts()
        if len(stream.whose) > 1:
            alone = (stream.of_thread(*who, trace.comms) for who in stream.whose)
            threads += ((each.title, ran[each.tid]) for each in alone)
        else:
            further = _note_repeats(trace, stream, counts.instructions, losses)
            threads.append((stream.title, counts.instructions + further))
        losses.bytes += stream.size - counts.elsewhere_bytes
        losses.bytes_lost += sum(span.end - span.start for span in stream.spans() if span.is_gap)
        stream.forget()
        if is_outside:
            named += outside(trace, stream)
    losses.problems = [str(problem) for problem in trace.image_problems]
    binaries, edges = gathering.binaries(losses)
    first = _first(trace)
    main = next((each for each in binaries if first in (each.path, None)), None)
    transfers = {
        kind: int(edges.count[edges.kind == kind].sum()) + gathering.beyond[kind] for kind in End
    }
    ran_in = [each for each in binaries if each.instructions]
    whole = sum(count for _, count in threads)
    return Profile(ran_in, main, whole, losses, threads, transfers, named)


def _note_repeats(trace: Trace, stream: Stream, counted: int, losses: Losses) -> int:
    """Add the loops without packets of a stream to `losses`; returns the instructions of their
    further rounds, as far as they are known.
    """
    if not any(True for _ in stream.places_of(ErrorClass.REPEATS_UNKNOWN)):
        return 0
    losses.repeats += [f"{stream.title}: {text}" for text in sentences(stream)]
    further = further_rounds(trace, stream, counted) or 0
    losses.rounds += further
    return further


def _binary(gathering: Gathering, number: int, runs: list[Any], edges: Edges) -> tuple[Binary, int]:
    """One of the binaries, and how many instructions of it have no code in the file."""
    from rtit._core import unrolled

    found = gathering.found[number]
    own = runs[0] == number
    space = gathering.space(number)
    ips, lengths, kinds, counts, _lasts, unknown = unrolled(
        space,
        runs[1][own].tobytes(),
        runs[2][own].tobytes(),
        runs[3][own].tobytes(),
        found.symbols.elf.bits,
    )
    own = (edges.source_in == number) | (edges.target_in == number)
    binary = Binary(
        number,
        found.path,
        found.build_id,
        found.symbols,
        space,
        np.asarray(ips),
        np.asarray(lengths),
        np.asarray(kinds),
        np.asarray(counts),
        edges.where(own),
    )
    return binary, unknown


def _weight(runs: list[Any], own: Any) -> int:
    return int((runs[2][own].astype(np.uint64) * runs[3][own]).sum())


def _first(trace: Trace) -> str | None:
    """The path of the program: of the files of the first process the one that the process is called
    after, else the one that was mapped first, at the lowest address.
    """
    for pid in trace.images.pids:
        files = [
            each
            for each in trace.images.mappings(pid)
            if has_file(each.path) and each.start < UPPER
        ]
        name = trace.comms.get(pid)
        called = [each for each in files if PurePath(each.path).name[:_COMM] == name]
        if files:
            return min(called or files, key=lambda each: (each.since, each.start)).path
    return None
