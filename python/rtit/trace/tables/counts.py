"""What ran and how often, whatever the order.

Totals of a stream.

Counts by what is counted, however many rows there are, up to an end.

How long loops without packets took, of which the trace does not tell how often they went round.

A round takes time, but how much no packet says. What can be said is how much time all of them had:
after what the last packet of the path before tells, until the packet that tells where the loop was
left. The way into the loop is in it, too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import chain, islice, repeat
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from rtit.errors import UsageError
from rtit.trace.tables.batch import Batch, End, ErrorClass, Field
from rtit.trace.tables.packets import KINDS
from rtit.trace.tables.selection import LATEST

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from rtit._core import FlowCounts
    from rtit.trace.stream import Stream
    from rtit.trace.tables.packets import Packets
    from rtit.trace.trace import Trace


BEYOND = "beyond --max-edges: they are only in the total"
"""What is said of `others`."""


@dataclass(frozen=True, slots=True)
class RunTotal:
    """One run; see `RunTotals`."""

    start: int
    instructions: int
    count: int


@dataclass(frozen=True, slots=True)
class Edge:
    """One edge; see `EdgeTotals`."""

    source: int
    target: int
    kind: End
    count: int


class RunTotals(Batch):
    """Runs of instructions that follow each other in memory, as columns of one length, sorted by
    `start` (IP of the first) and `instructions` (how many); `count`: how often they ran.

    Runs overlap: an instruction ran as often as all runs that hold it. Of more than the
    trace's `places` the first are there; `others`: how often the rest ran.
    """

    FIELDS: ClassVar[tuple[Field, ...]] = (
        ("start", "u8", None),
        ("instructions", "u4", None),
        ("count", "u8", None),
    )
    WHEN: ClassVar[str | None] = None
    start: NDArray[np.uint64]
    instructions: NDArray[np.uint32]
    count: NDArray[np.uint64]
    others: int = 0

    def __iter__(self) -> Iterator[RunTotal]:
        return map(RunTotal, *self.lists())


class EdgeTotals(Batch):
    """Transfers, as columns of one length, sorted by `source` (IP of the instruction), `target`
    (where it went) and `kind`; `count`: how often.

    `kind`: an `End`; CUT is a conditional branch that was not taken. A transfer counts where code
    or trace tell its target, also if tracing ended with it, or if an event struck before the first
    instruction there. Of more edges than the trace's `places` the first are there; `others`: how
    often the rest was taken, `others_of` by `End`.
    """

    FIELDS: ClassVar[tuple[Field, ...]] = (
        ("source", "u8", None),
        ("target", "u8", None),
        ("kind", "u1", End),
        ("count", "u8", None),
    )
    WHEN: ClassVar[str | None] = None
    WHERE: ClassVar[tuple[str, str] | None] = ("source", "source")
    source: NDArray[np.uint64]
    target: NDArray[np.uint64]
    kind: NDArray[np.uint8]
    count: NDArray[np.uint64]
    others_of: Mapping[int, int] = MappingProxyType({})

    @property
    def others(self) -> int:
        """All of `others_of`."""
        return sum(self.others_of.values())

    def __iter__(self) -> Iterator[Edge]:
        for source, target, kind, count in zip(*self.lists(), strict=True):
            yield Edge(source, target, End(kind), count)


@dataclass(frozen=True, slots=True, eq=False)
class Totals:
    """All runs and edges of a stream."""

    runs: RunTotals
    edges: EdgeTotals


@dataclass(frozen=True, slots=True)
class Counts:
    """What was decoded: `packets` by name, `errors` by the label of their `ErrorClass`; `errata`:
    how often the stream was read as an erratum of its processor asks, by its name; bytes of the
    stream by what is known of them; instructions; branches by kind: conditional ones, indirect
    ones with far transfers among them, returns, of these those that were compressed into a TNT bit;
    asynchronous events; core cycles, 0 without CYC packets; of these the `measured_cycles`, which
    lie between two known times, and TSC ticks that they took; TSC ticks in which nothing was traced
    (section 33.3.6).
    """

    packets: Mapping[str, int]
    errors: Mapping[str, int]
    errata: Mapping[str, int]
    exact_bytes: int
    resumed_bytes: int
    lost_bytes: int
    elsewhere_bytes: int
    instructions: int
    conditional: int
    indirect: int
    returns: int
    compressed_returns: int
    asynchronous: int
    cycles: int
    measured_cycles: int
    measured_ticks: int
    inactive_ticks: int

    @property
    def branches(self) -> int:
        """Conditional, indirect and return branches, and far transfers."""
        return self.conditional + self.indirect + self.returns

    @property
    def ipc(self) -> float | None:
        """Instructions for a core cycle, as perf has it: None without CYC packets. Cycles count
        outside of the traced code, too.
        """
        return self.instructions / self.cycles if self.cycles else None

    @property
    def frequency(self) -> float | None:
        """Core cycles in a tick of the TSC, as measured between TSCs and MTCs (section 33.8.3.4);
        None without a measure.
        """
        return self.measured_cycles / self.measured_ticks if self.measured_ticks else None

    @classmethod
    def of(cls, counts: FlowCounts) -> Counts:
        """From what the native decoder counts."""
        return cls(
            packets=counts["packets"],
            errors=counts["errors"],
            errata=counts["errata"],
            exact_bytes=counts["bytes"]["exact"],
            resumed_bytes=counts["bytes"]["resumed"],
            lost_bytes=counts["bytes"]["lost"],
            elsewhere_bytes=counts["bytes"]["elsewhere"],
            instructions=counts["instructions"],
            conditional=counts["conditional"],
            indirect=counts["indirect"],
            returns=counts["returns"],
            compressed_returns=counts["compressed_returns"],
            asynchronous=counts["asynchronous"],
            cycles=counts["cycles"],
            measured_cycles=counts["measured"][0],
            measured_ticks=counts["measured"][1],
            inactive_ticks=counts["inactive"],
        )


_LEAST = 1 << 19
_BYTES = 1 << 10
"""Of PT, for each place beyond those."""
_WAITING = 1 << 17
"""Rows that wait to be added up, beside half of those that are kept."""
_PART = 64
"""Rows as which the columns of a few count: of thousands of streams each may have run little."""


def places_of(size: int) -> int:
    """Of how many places, runs and edges each, a recording of so many bytes of PT has counts; 0: it
    is not known how many bytes.
    """
    from rtit import _core

    return min(_LEAST + size // _BYTES, _core.MOST_PLACES) if size else _core.MOST_PLACES


class Sums:
    """How often each combination of numbers came, of the first `most` in their order, as many as
    native code keeps by default; `others`: how often the rest came, of the rows that were added up,
    `others_of` by what they have in the column `kind`, where there is one.

    Whatever is beyond `most` in a part is so in the whole: neither parts nor order show.
    """

    def __init__(
        self, dtypes: str, most: int = 0, *, kind: int | None = None, waiting: int = _WAITING
    ) -> None:
        self.others_of: Counter[int] = Counter()
        self._kind = kind
        self._dtypes = dtypes.split()
        self._most = most or places_of(0)
        self._waits = waiting
        # the first is in order, each key once, if nothing else has come
        self._parts: list[list[NDArray[Any]]] = []
        self._known = self._waiting = 0

    def add(self, *columns: NDArray[Any], count: NDArray[Any] | None = None) -> None:
        """Rows more, a column each, which came `count` times each, or once; all are kept as they
        are until they are added up.
        """
        import numpy as np

        count = np.ones(len(columns[0]), np.uint64) if count is None else count
        self._parts.append([*columns, count])
        self._waiting += len(count) + _PART
        if self._waiting > self._known // 2 + self._waits:
            self._join()

    def columns(self) -> list[NDArray[Any]]:
        """In order, the counts last; they are let go of."""
        import numpy as np

        if self._waiting:
            self._join()
        kept, self._parts, self._known = self._parts, [], 0
        return kept[0] if kept else [np.zeros(0, each) for each in (*self._dtypes, "u8")]

    def _join(self) -> None:
        import numpy as np

        parts, self._parts = self._parts, []
        # a column after the other: there may be much of them
        *keys, counts = [
            _joined([part.pop(0) for part in parts]) for _ in range(len(self._dtypes) + 1)
        ]
        order = np.lexsort(keys[::-1])
        new = np.zeros(len(order), np.bool_)
        new[:1] = True
        for at in range(len(keys)):
            keys[at] = key = keys[at][order]
            new[1:] |= key[1:] != key[:-1]
        counts = counts[order]
        del order
        if not new.all():
            first = np.flatnonzero(new)
            counts = np.add.reduceat(counts, first)
            for at in range(len(keys)):
                keys[at] = keys[at][first]
        kept = [*keys, counts]
        if len(counts) > self._most:
            self._tell(keys, counts)
            # no views: what is beyond would stay in memory
            kept = [column[: self._most].copy() for column in kept]
        self._parts, self._known, self._waiting = [kept], len(kept[-1]), 0

    @property
    def others(self) -> int:
        """All of `others_of`."""
        return self.others_of.total()

    def _tell(self, keys: list[NDArray[Any]], counts: NDArray[Any]) -> None:
        import numpy as np

        beyond = counts[self._most :]
        if self._kind is None:
            self.others_of[0] += int(beyond.sum())
            return
        kinds = keys[self._kind][self._most :]
        for kind in np.unique(kinds).tolist():
            self.others_of[kind] += int(beyond[kinds == kind].sum())


def _joined(parts: list[NDArray[Any]]) -> NDArray[Any]:
    import numpy as np

    return np.concatenate(parts) if len(parts) > 1 else parts[0]


_RESULTS = tuple(map(KINDS.index, ("TNT", "TNT.64")))
_NOWHERE = None, 0
_MOST_LOOPS = 1000
_PATH = (*_RESULTS, *map(KINDS.index, ("TIP", "TIP.PGE", "TIP.PGD", "FUP")))


class Repeats(NamedTuple):
    """A loop without a packet, left at instruction `ip`, as the packet at `offset` tells. Since the
    path's packet before, at least `least` and at most `most` TSC ticks had passed; `most` is None
    where no time is known behind it, or time went back.
    """

    offset: int
    ip: int
    least: int
    most: int | None

    def __str__(self) -> str:
        most = f"at most {self.most:,}" if self.most is not None else "any number of"
        return f"at least {self.least:,} and {most} ticks passed meanwhile"


class _Told(NamedTuple):
    """A packet of the path: between which times it came, and whether it has results of branches,
    the first of which may be as old as the packet before.
    """

    earliest: int
    latest: int
    has_results: bool = False


def repeats(stream: Stream) -> list[Repeats]:
    """Those of which the ledger of `stream` says that nothing tells how often, in order. Looks at
    the packets once more if there is one.
    """
    return [*_repeats(stream)]


def sentences(stream: Stream) -> Iterator[str]:
    """One for each loop without packets in the ledger of `stream`: where it was left, how often if
    that was more than once, and how much time there was, where that is known and the packets can be
    had once more.
    """
    spans = (span for span in stream.spans() if span.cause == ErrorClass.REPEATS_UNKNOWN)
    times = _repeats(stream)
    try:
        first = list(islice(times, 1))
    except UsageError:  # of a pipe
        first = []
    loops: dict[str, _Loop] = {}
    others = 0
    for span, each in zip(spans, chain(first, times, repeat(None)), strict=False):
        text, _, place = span.error.rpartition(" at offset ")
        if text in loops or len(loops) < _MOST_LOOPS:
            loops.setdefault(text, _Loop(place)).add(each)
        else:
            others += 1
    yield from (f"{text}{loop}" for text, loop in loops.items())
    if others:
        yield f"{others:,} more times such loops were left"


def further_rounds(trace: Trace, stream: Stream, counted: int) -> int | None:
    """How many instructions ran in rounds of such loops beyond the `counted` ones of the decoded
    path; None if the recording does not say it, or if the path has other gaps.
    """
    traced = trace.traced_instructions.get(stream.tid) if stream.cpu < 0 else None
    if traced is None or any(span.is_gap for span in stream.spans()):
        return None
    return max(0, traced - counted)


class _Loop:
    """A loop, over all times that it was left."""

    def __init__(self, place: str) -> None:
        self._place = place
        self._times = self._least = 0
        self._most: int | None = 0

    def add(self, each: Repeats | None) -> None:
        """It was left once more."""
        self._times += 1
        if each is None or each.most is None:
            self._most = None
        elif self._most is not None:
            self._most += each.most
        self._least += each.least if each is not None else 0

    def __str__(self) -> str:
        often = f", {self._times:,} times, first" if self._times > 1 else ""
        text = f"{often} at offset {self._place}"
        ticks = Repeats(0, 0, self._least, self._most)
        return f"{text}; {ticks}" if self._least or self._most is not None else text


def _repeats(stream: Stream) -> Iterator[Repeats]:
    import numpy as np

    places = stream.places_of(ErrorClass.REPEATS_UNKNOWN)
    offset, ip = next(places, _NOWHERE)
    last = [_Told(0, LATEST)] * 2
    for batch in stream.packets(timing=True) if offset is not None else ():
        among = np.flatnonzero(np.isin(batch.kind, _PATH))
        while offset is not None:
            at = int(np.searchsorted(batch.offset, np.uint64(offset)))
            if at == len(batch):
                break
            number = int(np.searchsorted(among, at))
            before, newest = (last + [_told(batch, place) for place in among[:number][-2:]])[-2:]
            begin = before.earliest if newest.has_results else newest.earliest
            end = _told(batch, at)
            most = end.latest - begin if begin <= end.latest < LATEST else None
            yield Repeats(offset, ip, max(0, end.earliest - newest.latest), most)
            offset, ip = next(places, _NOWHERE)
        if offset is None:
            return
        last = (last + [_told(batch, place) for place in among[-2:]])[-2:]


def _told(packets: Packets, index: int) -> _Told:
    earliest, latest = (int(packets.more[name][index]) for name in ("earliest", "latest"))
    return _Told(earliest, latest, int(packets.kind[index]) in _RESULTS)
