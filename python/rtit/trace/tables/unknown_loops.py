"""Loops without packets, whose number of iterations the trace does not contain.

A loop of direct jumps generates no packet until execution leaves it. The decoder reports one
iteration and an error of class UNKNOWN_REPETITIONS in the ledger. Time gives a bound: all
iterations ran between the last packet of the path before the loop and the packet that shows where
execution left it. The way into the loop is part of this time.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, islice, repeat
from typing import TYPE_CHECKING, NamedTuple

from rtit.errors import UsageError
from rtit.trace.tables.batch import ErrorClass
from rtit.trace.tables.packets import PACKET_KINDS
from rtit.trace.tables.selection import LATEST

if TYPE_CHECKING:
    from rtit.trace.stream import Stream
    from rtit.trace.tables.packets import Packets
    from rtit.trace.trace import Trace


_TNT_KINDS = tuple(map(PACKET_KINDS.index, ("TNT", "TNT.64")))
_PATH_KINDS = (
    *_TNT_KINDS,
    *map(PACKET_KINDS.index, ("TIP", "TIP.PGE", "TIP.PGD", "FUP")),
)
_MAX_DESCRIBED_LOOPS = 1000


class UnknownLoop(NamedTuple):
    """A loop without packets that execution left at instruction `ip`.

    `offset` is that of the packet that shows the exit. Since the packet before, between `min_ticks`
    and `max_ticks` TSC ticks passed. `max_ticks` is None if no later time is known, or if time went
    back.
    """

    offset: int
    ip: int
    min_ticks: int
    max_ticks: int | None

    def __str__(self) -> str:
        return _describe_ticks(self.min_ticks, self.max_ticks)


def unknown_loops(stream: Stream) -> list[UnknownLoop]:
    """The loops of unknown repetition count in the ledger of `stream`, in order. Scans the packets
    once more if there is one.
    """
    return [*_find_loops(stream)]


def describe_loops(stream: Stream) -> Iterator[str]:
    """One sentence for each loop without packets in the ledger of `stream`: where execution left
    it, how often, and how much time it had if that is known.
    """
    spans = (span for span in stream.spans() if span.cause == ErrorClass.UNKNOWN_REPETITIONS)
    loops = _find_loops(stream)
    try:
        first = list(islice(loops, 1))
    except UsageError:  # A pipe cannot be read again.
        first = []
    exits: dict[str, _LoopExits] = {}
    omitted = 0
    for span, each in zip(spans, chain(first, loops, repeat(None)), strict=False):
        text, _, offset = span.error.rpartition(" at offset ")
        if text in exits or len(exits) < _MAX_DESCRIBED_LOOPS:
            exits.setdefault(text, _LoopExits(offset)).count_loop_exit(each)
        else:
            omitted += 1
    yield from (f"{text}{each}" for text, each in exits.items())
    if omitted:
        yield f"{omitted:,} more exits from such loops are not listed"


def instructions_in_unknown_iterations(trace: Trace, stream: Stream, counted: int) -> int | None:
    """Return the number of instructions in loop iterations that the decoded path does not contain.

    `counted`: the instructions of the decoded path. None if the recording does not have the true
    number, or if the path has other gaps.
    """
    traced = trace.traced_instructions.get(stream.tid) if stream.cpu < 0 else None
    if traced is None or any(span.is_gap for span in stream.spans()):
        return None
    return max(0, traced - counted)


class _LoopExits:
    """All exits from one loop."""

    def __init__(self, first_offset: str) -> None:
        self._first_offset = first_offset
        self._count = self._min_ticks = 0
        self._max_ticks: int | None = 0

    def count_loop_exit(self, loop: UnknownLoop | None) -> None:
        self._count += 1
        if loop is None or loop.max_ticks is None:
            self._max_ticks = None
        elif self._max_ticks is not None:
            self._max_ticks += loop.max_ticks
        self._min_ticks += loop.min_ticks if loop is not None else 0

    def __str__(self) -> str:
        count = f", {self._count:,} times, first" if self._count > 1 else ""
        text = f"{count} at offset {self._first_offset}"
        if not self._min_ticks and self._max_ticks is None:
            return text
        return f"{text}; {_describe_ticks(self._min_ticks, self._max_ticks)}"


def _describe_ticks(minimum: int, maximum: int | None) -> str:
    at_most = f"at most {maximum:,}" if maximum is not None else "any number of"
    return f"at least {minimum:,} and {at_most} ticks passed meanwhile"


class _PathPacket(NamedTuple):
    """The time bounds of a packet of the path. The first result of a TNT may be as old as the
    packet before it.
    """

    earliest: int
    latest: int
    is_tnt: bool = False


def _find_loops(stream: Stream) -> Iterator[UnknownLoop]:
    import numpy as np

    positions = stream.errors_of_class(ErrorClass.UNKNOWN_REPETITIONS)
    offset, ip = next(positions, (None, 0))
    last_two = [_PathPacket(0, LATEST)] * 2
    for batch in stream.packets(timing=True) if offset is not None else ():
        path_rows = np.flatnonzero(np.isin(batch.kind, _PATH_KINDS))
        while offset is not None:
            exit_row = int(np.searchsorted(batch.offset, np.uint64(offset)))
            if exit_row == len(batch):
                break
            count = int(np.searchsorted(path_rows, exit_row))
            packets = [_path_packet(batch, row) for row in path_rows[:count][-2:]]
            before, newest = (last_two + packets)[-2:]
            start = before.earliest if newest.is_tnt else newest.earliest
            end = _path_packet(batch, exit_row)
            maximum = end.latest - start if start <= end.latest < LATEST else None
            yield UnknownLoop(offset, ip, max(0, end.earliest - newest.latest), maximum)
            offset, ip = next(positions, (None, 0))
        if offset is None:
            return
        last_two = (last_two + [_path_packet(batch, row) for row in path_rows[-2:]])[-2:]


def _path_packet(packets: Packets, row: int) -> _PathPacket:
    earliest, latest = (int(packets.extra_columns[name][row]) for name in ("earliest", "latest"))
    return _PathPacket(earliest, latest, int(packets.kind[row]) in _TNT_KINDS)
