"""When an instruction ran, or a branch, as perf prints it (docs/decisions/0030): perf's time, which
is no bound.

`perf_marks.py` says where that time changes, and to what. Instructions are counted in any case; a
branch has the time of its instruction.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING, TypeVar

from rtit.trace import tables
from rtit.trace.perf_marks import Ahead, Changes, Decoded, Marks, places
from rtit.trace.results import Branches, Instructions

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from rtit import _core

    U64 = NDArray[np.uint64]

COLUMNS = ("perf_time",)
B = TypeVar("B", Instructions, Branches)
_ALL = (1 << 64) - 1


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
    rows, now, left = _rows(stream, tables.branches, "source"), 0, Changes.none()
    ends = ((0, Changes.none(), _ALL),)
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
    marks, rows = Marks(stream.anew()), _rows(stream, tables.instructions, "ip")
    while rows.reach < _ALL:
        # a decoder's batches end with every turn, and to look at a small one takes as long
        while rows.count < tables.ROWS and rows.reach < _ALL:
            rows.load()
        offset, ip = rows.until(_ALL)
        if len(ip):
            changes = marks.until(ip, offset)
            yield len(ip), changes, marks.settled


def _rows(stream: Decoded, of: Callable[[_core.Flow], tables.Placed[B]], address: str) -> Ahead:
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
