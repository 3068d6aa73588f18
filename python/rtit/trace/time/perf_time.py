"""Where perf's time changes (docs/decisions/0030).

Between timing packets it stands still, as ours does, but for two things. What waits for a packet (a
conditional branch, an indirect one, a RET) has the time that was told right before that packet,
where ours is that of the start of its run, and what perf may list (a PSB+, another CBR, a power
event) tells its time at once. Where user code begins, after tracing was off or from the kernel,
perf adds two cycles for each instruction since the last timing packet; that stands until a packet
tells a later time, or user code begins again.

Streams of columns are gone along together, by offset, no further than all of them have come: what
is in memory is a batch of each, or several small ones, however much happens between two
instructions.

When an instruction ran, or a branch, as perf prints it (docs/decisions/0030): perf's time, which
is no bound.

`perf_marks.py` says where that time changes, and to what. Instructions are counted in any case; a
branch has the time of its instruction.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, Self, TypeVar, cast

from rtit.image import KERNEL_START
from rtit.trace.recording.byte_source import AuxBytes, Source
from rtit.trace.tables import build_tables
from rtit.trace.tables.batch import End, EventKind
from rtit.trace.tables.packets import clocks_of
from rtit.trace.tables.rows import Branches, Instructions

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from rtit import _core


if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from rtit import _core
    from rtit.errors import RtitError
    from rtit.trace.recording.settings import Settings
    from rtit.trace.tables.rows import Rows
    from rtit.trace.threads.schedule import Shares

    U64 = NDArray[np.uint64]
    Columns = tuple[NDArray[Any], ...]

_CYCLES = 2
"""That perf takes an instruction to last."""
_ALL = (1 << 64) - 1
_PACKETS = 1 << 14


class Decoded(Protocol):
    """What is needed of a `Stream`."""

    source: Source
    settings: Settings | RtitError
    shares: Shares | None

    def native(self, *, points: bool = False, in_order: bool = False) -> _core.Flow:
        """A decoder."""

    def anew(self, **changes: Any) -> Self:
        """The same, but for these fields, with accounts of its own."""

    def parts(self) -> Iterator[memoryview]:
        """All bytes."""

    def rows(self) -> Iterator[Rows]:
        """What ran, with events."""


class Ahead:
    """Columns in the order of the first, the offset, taken up to one."""

    def __init__(self, batches: Iterator[Columns], dtypes: str) -> None:
        import numpy as np

        self._batches = batches
        self._left: list[Columns] = [tuple(np.zeros(0, dtype) for dtype in dtypes.split())]
        self._ended = False
        self.count = 0
        """Rows that are loaded and not taken."""

    @property
    def reach(self) -> int:
        """All up to this offset has been loaded; -1: nothing."""
        if self._ended:
            return _ALL
        last = self._left[-1][0]
        return int(last[-1]) - 1 if len(last) else -1

    def load(self) -> None:
        """A batch more."""
        batch = next(self._batches, None)
        if batch is None:
            self._ended = True
        elif len(batch[0]):
            self._left.append(batch)
            self.count += len(batch[0])

    def until(self, offset: int) -> Columns:
        """All up to this offset that was loaded and not taken before."""
        import numpy as np

        every = [np.concatenate(column) for column in zip(*self._left, strict=True)]
        at = _up_to(every[0], offset)
        self._left = [tuple(each[at:] for each in every)]
        self.count -= at
        return tuple(each[:at] for each in every)


def _up_to(offsets: U64, offset: int) -> int:
    """How many are not above one, which may be -1."""
    import numpy as np

    return int(np.searchsorted(offsets, np.uint64(offset), "right")) if offset >= 0 else 0


class Mark(NamedTuple):
    """From an instruction of the packet at `offset` on another time holds: from the first at `ip`,
    if it `has_ip`, else from the one behind the packet. `begins`: that is where user code begins.
    `time`: what a packet has told, when so many instructions had run (`since`) at this `ratio`.
    Columns of one length.
    """

    offset: U64
    ip: U64
    has_ip: NDArray[np.bool_]
    begins: NDArray[np.bool_]
    time: U64
    ratio: U64
    since: U64

    @classmethod
    def none(cls) -> Mark:
        """Without a row."""
        import numpy as np

        none, no = np.zeros(0, np.uint64), np.zeros(0, np.bool_)
        return cls(none, none, no, no, none, none, none)

    def take(self, which: slice | NDArray[Any]) -> Mark:
        """Some of the rows."""
        return Mark(*cast("Any", [each[which] for each in self]))

    def joined(self, *others: Mark) -> Mark:
        """With the rows of others behind."""
        import numpy as np

        columns = [np.concatenate(each) for each in zip(self, *others, strict=True)]
        return Mark(*cast("Any", columns))


class Changes(NamedTuple):
    """From instruction `at` of a batch on it is `now`, since `mark`; columns."""

    at: NDArray[np.int64]
    now: U64
    mark: Mark

    @classmethod
    def none(cls) -> Changes:
        """Without a row."""
        import numpy as np

        return cls(np.zeros(0, np.int64), np.zeros(0, np.uint64), Mark.none())

    def joined(self, *others: Changes) -> Changes:
        """With the rows of others behind."""
        import numpy as np

        at = np.concatenate([self.at, *(each.at for each in others)])
        now = np.concatenate([self.now, *(each.now for each in others)])
        return Changes(at, now, self.mark.joined(*(each.mark for each in others)))

    def split(self, offset: int) -> tuple[Changes, Changes]:
        """Those of packets up to this offset, and the others."""
        count = _up_to(self.mark.offset, offset)
        parts = (slice(count), slice(count, None))
        one, other = (Changes(self.at[i], self.now[i], self.mark.take(i)) for i in parts)
        return one, other

    def last(self, now: int) -> int:
        """What it is in the end, if it was `now`."""
        return int(self.now[-1]) if len(self.now) else now


def places(offset: U64, ip: U64, marks: Mark) -> tuple[NDArray[np.int64], ...]:
    """For each mark which of the rows with these offsets and addresses are of its packet or an
    earlier one (how many), from which of them on it holds, and whether that is for its `ip`.
    """
    import numpy as np

    start = np.searchsorted(offset, marks.offset, "left")
    behind = np.searchsorted(offset, marks.offset, "right")
    if not marks.has_ip.any():
        return behind, behind, np.zeros(len(behind), np.int64)
    wanted = np.unique(marks.ip[marks.has_ip])
    # of the rows at wanted addresses each address's in order, and which is the first from `start`
    rank = np.minimum(np.searchsorted(wanted, ip), len(wanted) - 1)
    rows = np.flatnonzero(wanted[rank] == ip)
    size = len(ip) + 1
    keys = np.append(np.sort(rank[rows] * size + rows), (len(wanted) + 1) * size)
    own = np.searchsorted(wanted, marks.ip)
    first = keys[np.searchsorted(keys, own * size + start)]
    found = marks.has_ip & (first // size == own) & (first % size < behind)
    return behind, np.where(found, first % size, behind), found.astype(np.int64)


class Marks:
    """Goes along batches of instructions."""

    def __init__(self, stream: Decoded) -> None:
        import numpy as np

        settings = cast("Settings", stream.settings)
        self._nominal = np.uint64(settings.max_nonturbo_ratio)
        self._told = Ahead(_told(stream, settings), "u8 u8 u8 u1")
        self._branches = Ahead(_branches(stream.anew()), "u8 u8 ?")
        self._events = Ahead(_events(stream.anew()), "u8 u8 ?")
        start = (0, settings.start_time, 0, 0)
        self._known = [np.array([each], np.uint64) for each in start]
        self._left = Mark.none()
        self._last = self._ran = self._now = 0
        self.settled = -1
        """Up to this packet all is known."""

    def until(self, ip: U64, offset: U64) -> Changes:
        """Those up to the last packet of the next batch of instructions, with these addresses and
        offsets.
        """
        import numpy as np

        found, least, until = [], 0, int(offset[-1])
        for step in self._steps(offset):
            every = self._left.joined(step)
            behind, at, is_it = places(offset, ip, every)
            # the packet told of more than is in this batch
            waits = every.has_ip & (is_it == 0) & (behind == len(ip))
            count = int(np.argmax(waits)) if waits.any() else len(waits)
            marks, self._left = every.take(slice(count)), every.take(slice(count, None))
            ran = self._ran + (at + is_it)[:count]
            if not count:
                continue
            at = np.maximum.accumulate(np.maximum(at[:count], least))
            least = int(at[-1])
            now = self._reached(marks, ran.astype(np.uint64))
            # where nothing ran in between the last counts
            last = np.diff(at, append=-1) != 0
            found.append(Changes(at[last], now[last], marks.take(last)))
        self._ran += len(ip)
        waiting = self._left.offset
        self.settled = int(waiting[0]) - 1 if len(waiting) else until
        return Changes.none().joined(*found)

    def _reached(self, marks: Mark, ran: U64) -> U64:
        """The time from each mark on, at which so many instructions have run: never less than
        before, but where user code begins.
        """
        import numpy as np

        ticks = np.uint64(_CYCLES) * (ran - marks.since)
        by_ratio = ticks * self._nominal // np.maximum(marks.ratio, 1)
        if self._nominal:
            ticks = np.where(marks.ratio > 0, by_ratio, ticks)
        told = marks.time + np.where(marks.begins, ticks, 0)
        times = np.concatenate([np.array([self._now], np.uint64), told])
        # by place in order: what comes behind a beginning is more than all before it
        order = np.argsort(times, kind="stable")
        rank = np.empty(len(times), np.int64)
        rank[order] = np.arange(len(times))
        rank[1:] += np.cumsum(marks.begins) * len(times)
        now = times[order][np.maximum.accumulate(rank) % len(times)][1:]
        self._now = int(now[-1])
        return cast("U64", now)

    def _steps(self, offset: U64) -> Iterator[Mark]:
        every, until = (self._told, self._branches, self._events), int(offset[-1])
        while (reach := min(each.reach for each in every)) < until:
            if reach >= 0 and sum(each.count for each in every) > build_tables.ROWS:
                yield self._step(reach, offset)
            for each in every:
                if each.reach <= reach:
                    each.load()
        yield self._step(until, offset)

    def _step(self, until: int, offset: U64) -> Mark:
        """The marks up to a packet, in order; `offset` are those of the batch of instructions."""
        import numpy as np

        *told, place = self._told.until(until)
        ends = place > 0
        self._know([each[~ends] for each in told], offset)
        branch, source, enters = self._branches.until(until)
        # a packet's first branch, if time was told since the packet before
        known = np.searchsorted(self._known[0], branch)
        before = np.searchsorted(self._known[0], np.uint64(self._last))
        which = (np.diff(known, prepend=before) != 0) | enters
        self._last = int(branch[-1]) if len(branch) else self._last
        branch, source, enters = branch[which], source[which], enters[which]
        event, ip, has_ip = self._events.until(until)
        end, time = (each[ends] for each in told[:2])
        parts = [
            self._mark(branch, source, np.ones(len(branch), np.bool_), enters),
            self._mark(event, ip, has_ip, ~has_ip),
            self._mark(end, end, np.zeros(len(end), np.bool_), np.zeros(len(end), np.bool_)),
        ]
        parts[2] = parts[2]._replace(time=time)
        marks = Mark.none().joined(*parts)
        return marks.take(np.argsort(marks.offset, kind="stable"))

    def _mark(
        self, offset: U64, ip: U64, has_ip: NDArray[np.bool_], begins: NDArray[np.bool_]
    ) -> Mark:
        """With what was told right before each packet."""
        import numpy as np

        before = np.maximum(np.searchsorted(self._known[0], offset) - 1, 0)
        time, ratio, since = (each[before] for each in self._known[1:])
        return Mark(offset, ip, has_ip, begins, time, ratio, since)

    def _know(self, told: list[U64], offset: U64) -> None:
        """What packets have told, behind the last one before: offset, time, ratio of CBR, and how
        many instructions had run.
        """
        import numpy as np

        offsets, times, ratios = told
        before = [each[-1:] for each in self._known]
        count = self._ran + np.searchsorted(offset, offsets, "right")
        # a CBR tells no time: instructions are counted on
        told_at = np.where(ratios > 0, 0, count).astype(np.uint64)
        ratios = np.concatenate([before[2], ratios])
        last = np.maximum.accumulate(np.where(ratios > 0, np.arange(len(ratios)), 0))
        self._known = [
            np.concatenate([before[0], offsets]),
            np.concatenate([before[1], times]),
            ratios[last],
            np.maximum.accumulate(np.concatenate([before[3], told_at])),
        ]


def _told(stream: Decoded, settings: Settings) -> Iterator[Columns]:
    """What perf's clock says: offset, time, ratio of a CBR, and whether all that runs behind the
    packet has that time.
    """
    import numpy as np

    from rtit._core import PacketScan

    source = stream.source
    ends = source.ends() if isinstance(source, AuxBytes) else []
    scan = PacketScan(stream.parts(), clocks_of(settings), perf=ends)
    goes_on = True
    while goes_on:
        goes_on = scan.next(_PACKETS) is not None
        yield tuple(map(np.asarray, scan.perf_times()))


def _branches(stream: Decoded) -> Iterator[Columns]:
    """Those that took a packet, the first of each: its offset, where they were, and whether they
    left the kernel.
    """
    import numpy as np

    flow, last = stream.native(points=True, in_order=True), -1
    for batch, offset in build_tables.branches(flow):
        flow.points()
        waits = (batch.kind != End.JUMP) & (batch.kind != End.CALL)
        place, source = np.asarray(offset)[waits], batch.source[waits]
        enters = (source >= KERNEL_START) & (batch.target[waits] < KERNEL_START)
        first = np.diff(place.astype(np.int64), prepend=last) != 0
        last = int(place[-1]) if len(place) else last
        which = first | enters
        yield place[which], source[which], enters[which]


def _events(stream: Decoded) -> Iterator[Columns]:
    """Offsets, an address, and whether that is known: of a last branch before tracing went off. If
    it is not, code begins there.
    """
    for rows in stream.rows():
        events = rows.events
        off = (events.kind == EventKind.DISABLED) & (events.ip > 0)
        begins = (events.kind == EventKind.ENABLED) | (events.kind == EventKind.RESUMED)
        which = off | begins
        yield events.offset[which], events.ip[which], off[which]


COLUMNS = ("perf_time",)
B = TypeVar("B", Instructions, Branches)
_ALL_ROWS = (1 << 64) - 1


def perf_times(stream: Decoded, kind: type[B]) -> Iterator[U64]:
    """TSC ticks for each instruction or branch that is decoded of `stream`, in batches: of one
    thread of several for those of all, which are followed. `Trace.clock` makes perf's nanoseconds
    of them. Decodes the stream three times, for branches four times. Raises what decoding does.
    """
    shares = stream.shares
    # perf's time is that of the CPU, whoever runs
    alone = shares is None or shares.who is None
    whole = stream if alone else stream.anew(shares=replace(shares, who=None))  # type: ignore[type-var]
    return _of_branches(whole) if kind is Branches else _of_instructions(whole)


def with_perf_times(stream: Decoded, kind: type[B], found: Iterator[B]) -> Iterator[B]:
    """All instructions or branches that are decoded of a stream, `found`, with the column
    `perf_time`. If two decodings differed what is left would have its `time`.
    """
    import numpy as np

    times, left = perf_times(stream, kind), np.zeros(0, np.uint64)
    for batch in found:
        while len(left) < len(batch):
            left = np.concatenate([left, next(times, batch.time[len(left) :])])
        yield batch.with_columns(perf_time=left[: len(batch)])
        left = left[len(batch) :]


def _of_instructions(stream: Decoded) -> Iterator[U64]:
    now = 0
    for count, changes, _ in _changes(stream):
        yield _filled(now, changes.at, changes.now, count)
        now = changes.last(now)


def _of_branches(stream: Decoded) -> Iterator[U64]:
    rows, now, left = _rows(stream, build_tables.branches, "source"), 0, Changes.none()
    ends = ((0, Changes.none(), _ALL_ROWS),)
    for _, changes, until in chain(_changes(stream), ends):
        while rows.reach < until:
            rows.load()
        offset, source = rows.until(until)
        settled, left = left.joined(changes).split(until)
        _, at, _ = places(offset, source, settled.mark)
        # one that is not there comes with the instruction behind it
        yield _filled(now, at, settled.now, len(offset))
        now = settled.last(now)


def _changes(stream: Decoded) -> Iterator[tuple[int, Changes, int]]:
    """Batches of instructions: how many, where the time changes in them, and up to which packet all
    of that is known.
    """
    marks, rows = Marks(stream.anew()), _rows(stream, build_tables.instructions, "ip")
    while rows.reach < _ALL_ROWS:
        # a decoder's batches end with every turn, and to look at a small one takes as long
        while rows.count < build_tables.ROWS and rows.reach < _ALL_ROWS:
            rows.load()
        offset, ip = rows.until(_ALL_ROWS)
        if len(ip):
            changes = marks.until(ip, offset)
            yield len(ip), changes, marks.settled


def _rows(
    stream: Decoded, of: Callable[[_core.Flow], build_tables.Placed[B]], address: str
) -> Ahead:
    """Offsets and addresses of instructions or branches."""
    import numpy as np

    def told() -> Iterator[tuple[U64, U64]]:
        flow = stream.anew().native(points=True, in_order=True)
        for batch, offset in of(flow):
            # of what timing packets told `Marks` has all; nothing goes on while too much waits
            flow.points()
            yield np.asarray(offset), getattr(batch, address)

    return Ahead(told(), "u8 u8")


def _filled(now: int, at: NDArray[np.int64], then: U64, count: int) -> U64:
    """`now` up to the first place, from each place on what holds `then`."""
    import numpy as np

    values = np.concatenate([np.array([now], np.uint64), then])
    return np.repeat(values, np.diff(np.maximum.accumulate(at), prepend=0, append=count))
