"""Lines of text in order, as many as there are, for whoever prints them later.

How much ran, and where: per stream and per function.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import accumulate, islice
from typing import IO, TYPE_CHECKING

from rtit.trace.tables.batch import ErrorClass
from rtit.trace.tables.selection import functions as instructions_by_function

if TYPE_CHECKING:
    from rtit.trace import Stream, Trace


_PART = 1 << 16
"""Characters that are kept as they are, and compressed at once."""
_ROOM = 1 << 24
"""Bytes of compressed lines that are kept in memory; more go to a file without a name."""


class Spool:
    """Lines, be they what they may. Raises OSError if there is no room for the file."""

    def __init__(self) -> None:
        self._last: list[str] = []
        self._size = 0
        self._begun = 0
        # of the compressed parts: their first lines, and where they are
        self._first = array("Q")
        self._place = array("Q", [0])
        self._file: IO[bytes] | None = None
        self._read: tuple[int, list[str]] = -1, []

    def __del__(self) -> None:
        if self._file is not None:
            self._file.close()

    def __len__(self) -> int:
        return self._begun + len(self._last)

    def add(self, line: str) -> None:
        """The next line."""
        self._last.append(line)
        self._size += len(line)
        if self._size >= _PART:
            self._compress()

    def lines(self, first: int = 0) -> Iterator[str]:
        """Those from number `first` on; none is to be added meanwhile."""
        part = bisect_right(self._first, first) - 1
        for number in range(max(part, 0), len(self._first)):
            begin = self._first[number]
            yield from self._part(number)[max(0, first - begin) :]
        yield from self._last[max(0, first - self._begun) :]

    def _compress(self) -> None:
        # most spools stay empty
        import zlib

        if self._file is None:
            from tempfile import SpooledTemporaryFile

            self._file = SpooledTemporaryFile(_ROOM)  # noqa: SIM115 - __del__ closes it
        sizes = array("Q", map(len, self._last)).tobytes()
        text = "".join(self._last).encode("utf-8", "surrogatepass")
        self._file.seek(self._place[-1])
        self._file.write(zlib.compress(sizes + text, 1))
        self._place.append(self._file.tell())
        self._first.append(self._begun)
        self._begun += len(self._last)
        self._last, self._size = [], 0

    def _part(self, number: int) -> list[str]:
        if self._read[0] != number:
            import zlib

            assert self._file is not None
            begin, end = self._place[number : number + 2]
            self._file.seek(begin)
            data = zlib.decompress(self._file.read(end - begin))
            behind = self._first[number + 1] if number + 1 < len(self._first) else self._begun
            sizes = array("Q", data[: 8 * (behind - self._first[number])])
            text = data[8 * len(sizes) :].decode("utf-8", "surrogatepass")
            ends = zip(sizes, accumulate(sizes), strict=True)
            self._read = number, [text[end - size : end] for size, end in ends]
        return self._read[1]


class Lines:
    """Some lines one after the other in a spool that is being filled: `len` says how many were
    added, and iterating gives the first `most` of them, which alone are kept.
    """

    def __init__(self, spool: Spool, most: int | None = None) -> None:
        self._spool, self._most = spool, most
        self._first, self._count = len(spool), 0

    def add(self, line: str) -> None:
        """The next line; nobody else may have added to the spool since the first."""
        if self._most is None or self._count < self._most:
            self._spool.add(line)
        self._count += 1

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[str]:
        kept = self._count if self._most is None else min(self._count, self._most)
        return islice(self._spool.lines(self._first), kept)


@dataclass(frozen=True, slots=True)
class StreamStatistics:
    """One stream, of process `pid`, or of a CPU (-1: a thread's). `branches` counts conditional,
    indirect and return branches and far transfers; `pt_bytes` its size, of a thread on a CPU what
    is its own; `losses`: which of its bytes could not be decoded, and why; `unsure`: at how many
    switches nothing tells what ran before and what behind, and how many instructions that are;
    `shares`: of a CPU's with the kernel in it the instructions of each thread, by what to call it,
    the most first; `repeats`: a sentence for each loop without packets, of which no packet says
    how often it went round; `missing`: instructions of further rounds that are in `instructions`
    and in no function's count, None where the recording does not say how many.
    """

    title: str
    pid: int
    cpu: int
    instructions: int
    branches: int
    pt_bytes: int
    losses: Lines
    repeats: Lines
    exact_bytes: int
    shares: tuple[tuple[str, int], ...] = ()
    unsure: tuple[int, int] = (0, 0)
    missing: int | None = 0

    @property
    def bytes_per_1000(self) -> float:
        """Bytes of PT for 1000 instructions; 0 without instructions."""
        return 1000 * self.pt_bytes / self.instructions if self.instructions else 0.0


@dataclass(slots=True)
class Statistics:
    """A whole recording. `functions` counts instructions by (function, module)."""

    streams: list[StreamStatistics] = field(default_factory=list)
    functions: Counter[tuple[str, str]] = field(default_factory=Counter)

    @property
    def instructions(self) -> int:
        """Of all streams."""
        return sum(each.instructions for each in self.streams)

    @property
    def has_gaps(self) -> bool:
        """Whether anything could not be decoded."""
        return any(each.losses for each in self.streams)

    @property
    def missing(self) -> int | None:
        """Instructions of loops without packets that are in no function's count; None if nothing
        says how many.
        """
        found = [each.missing for each in self.streams]
        return None if None in found else sum(each or 0 for each in found)


def statistics(trace: Trace, streams: list[Stream], most: int | None = None) -> Statistics:
    """Decode the streams and add up; of each the first `most` losses and loops are kept."""
    result, spool = Statistics(), Spool()
    for stream in streams:
        result.streams.append(_stream(trace, stream, result.functions, spool, most))
    return result


def _stream(
    trace: Trace,
    stream: Stream,
    functions: Counter[tuple[str, str]],
    spool: Spool,
    most: int | None,
) -> StreamStatistics:
    for name, path, count in instructions_by_function(stream, trace.symbols):
        functions[name, path] += count
    shares = _shares(trace, stream)
    counts = stream.counts()
    exact = 0
    causes: set[ErrorClass | None] = set()
    losses = Lines(spool, most)
    for span in stream.spans():
        causes.add(span.cause)
        if span.is_gap:
            losses.add(str(span))
        elif span.kind == "exact":
            exact += span.end - span.start
    unsure = _unsure(stream) if ErrorClass.TURN_UNKNOWN in causes else (0, 0)
    repeats = Lines(spool, most)
    missing: int | None = 0
    if ErrorClass.REPEATS_UNKNOWN in causes:
        from rtit.trace.tables.counts import further_rounds, sentences

        missing = further_rounds(trace, stream, counts.instructions)
        for text in sentences(stream):
            repeats.add(text)
    result = StreamStatistics(
        title=stream.title,
        pid=stream.pid,
        cpu=stream.cpu,
        instructions=counts.instructions + (missing or 0),
        branches=counts.branches,
        pt_bytes=stream.size - counts.elsewhere_bytes,
        losses=losses,
        repeats=repeats,
        exact_bytes=exact,
        shares=shares,
        unsure=unsure,
        missing=missing,
    )
    stream.forget()  # of thousands of streams each would keep a decoder
    return result


def _unsure(stream: Stream) -> tuple[int, int]:
    import numpy as np

    # in order, and none over another
    begins, ends = array("Q"), array("Q")
    for end, begin in stream.places_of(ErrorClass.TURN_UNKNOWN):
        begins.append(begin)
        ends.append(end)
    first, last = np.asarray(begins), np.asarray(ends)
    instructions = 0
    for rows in stream.blocks():
        at = np.searchsorted(last, rows.offset, "left")
        inside = at < len(last)
        inside[inside] = first[at[inside]] < rows.offset[inside]
        instructions += int(rows.instructions[inside].sum())
    return len(last), instructions


def _shares(trace: Trace, stream: Stream) -> tuple[tuple[str, int], ...]:
    if not stream.has_several:
        return ()
    found: Counter[int] = Counter()
    for rows in stream.blocks():
        tids = rows.more["tid"]
        for tid in set(tids.tolist()):
            found[tid] += int(rows.instructions[tids == tid].sum())
    return tuple((_thread(trace, tid), count) for tid, count in found.most_common())


def _thread(trace: Trace, tid: int) -> str:
    name = trace.comms.get(tid)
    return f"thread {tid if tid >= 0 else 'not known'}" + (f" ({name})" if name else "")
