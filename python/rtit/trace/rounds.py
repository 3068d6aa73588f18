"""How long loops without packets took, of which the trace does not tell how often they went round.

A round takes time, but how much no packet says. What can be said is how much time all of them had:
after what the last packet of the path before tells, until the packet that tells where the loop was
left. The way into the loop is in it, too.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, islice, repeat
from typing import TYPE_CHECKING, NamedTuple

from rtit.errors import UsageError
from rtit.trace.categories import ErrorClass
from rtit.trace.packets import KINDS
from rtit.trace.selection import LATEST

if TYPE_CHECKING:
    from rtit.trace.packets import Packets
    from rtit.trace.stream import Stream
    from rtit.trace.trace import Trace

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
