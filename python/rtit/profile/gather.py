"""From the totals of streams to counts by binary."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from rtit.image import UPPER, Regions, has_file
from rtit.profile.outside import Function, outside
from rtit.profile.slices import Slice, slices
from rtit.profile.table import NOWHERE, Binary, Edges, Losses, Profile
from rtit.trace import End
from rtit.trace.categories import ErrorClass
from rtit.trace.rounds import further_rounds, sentences
from rtit.trace.sums import Sums

if TYPE_CHECKING:
    from rtit._core import Space
    from rtit.image import Files, FileSymbols, Mapping
    from rtit.trace import Stream, Trace

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
