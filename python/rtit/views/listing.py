"""What ran as text: a line an instruction."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from heapq import heapify, heappop, heapreplace
from itertools import chain
from typing import TYPE_CHECKING, Protocol

from rtit.trace.places import Places
from rtit.trace.selection import LATEST, Selection
from rtit.views.crash import crash
from rtit.views.fields import LISTED

if TYPE_CHECKING:
    from rtit import _core
    from rtit.trace import Stream, Trace

_PART = 1 << 20
_Part = tuple[bytes, int]


def listing(
    trace: Trace,
    streams: list[Stream],
    fields: list[str],
    selection: Selection | None = None,
    ended: Callable[[Stream], object] = id,
    *,
    merge: bool = False,
) -> Iterator[bytes]:
    """The lines of the streams, one stream after the other, or with `merge` in order of time: whole
    lines of UTF-8, in parts of about a megabyte.

    `fields` are those of `views.fields`; `selection` says which instructions of these
    streams have a line; `ended` is called with each stream whose lines have all been taken. Raises
    UsageError for a function that is nowhere.
    """
    selection = selection or Selection()
    ends = [_crashed(trace, stream, fields, selection) for stream in streams]
    where = Places(selection, trace.images)
    where.check(pid for stream in streams for pid in stream.pids)
    # what text is made of natively has one thread a stream
    several = any(stream.has_several for stream in streams)
    detail = not set(fields) <= set(LISTED) or (several and "tid" in fields)
    detail |= any(stream.is_taken_out for stream in streams)
    if detail:
        from rtit.views.detail import detailed
    lines: Iterator[_Part]
    if merge:
        if detail:
            parts = detailed(trace, streams, fields, selection, merge=True)
            lines = chain(parts, [end.part for end in ends if end is not None])
        else:
            flows = [_flow(trace, stream, fields, selection, where) for stream in streams]
            lines = _merged([*flows, *filter(None, ends)])
        yield from _ends(lines, selection)
        for stream in streams:
            ended(stream)
        return
    for stream, end in zip(streams, ends, strict=True):
        if detail:
            lines = detailed(trace, [stream], fields, selection)
        else:
            lines = _lines(_flow(trace, stream, fields, selection, where), selection)
        yield from _ends(chain(lines, [end.part] if end is not None else []), selection)
        ended(stream)


class _Lines(Protocol):
    """Something with lines, in order of time, as `_core.Flow` is after `list`."""

    def next_time(self) -> int | None: ...
    def lines(self, max_bytes: int, *, until: int) -> _Part | None: ...


class _End:
    """A last line."""

    def __init__(self, time: int, text: bytes) -> None:
        self.part = text, 1
        self._time: int | None = time

    def next_time(self) -> int | None:
        return self._time

    def lines(self, max_bytes: int, *, until: int) -> _Part | None:
        self._time = None
        return self.part


def _crashed(trace: Trace, stream: Stream, fields: list[str], selection: Selection) -> _End | None:
    """The line of the instruction that ended the stream's process by a fault, if it is wanted."""
    found = crash(trace, stream)
    if found is None:
        return None
    clock = trace.clock
    if selection.time is not None:
        first, last = selection.time.ticks(clock)
        if not first <= found.time <= last:
            return None
    places = Places(selection, trace.images).of(*stream.pids)
    if places is not None and not any(
        each.start <= found.ip < each.end and each.since <= found.time < each.until
        for each in places
    ):
        return None
    when = clock.to_nanoseconds(found.time) if clock is not None else found.time
    return _End(found.time, found.line(fields, when))


def _flow(
    trace: Trace, stream: Stream, fields: list[str], selection: Selection, where: Places
) -> _core.Flow:
    from rtit._core import Listing

    clock = trace.clock
    flow = stream.native()
    others = [(image.native, trace.symbols.names(pid)) for pid, image in stream.others]
    flow.list(
        Listing(
            fields,
            stream.image.native,
            trace.symbols.names(stream.tid),
            tid=stream.tid,
            clock=(clock.shift, clock.mult, clock.zero) if clock is not None else None,
            places=where.by_space(stream.pids),
            times=selection.time.ticks(clock) if selection.time is not None else (0, LATEST),
            tail=selection.tail,
            others=others,
        )
    )
    return flow


def _lines(flow: _core.Flow, selection: Selection) -> Iterator[_Part]:
    most = LATEST if selection.head is None else selection.head
    while (part := flow.lines(_PART, most)) is not None:
        yield part


def _merged(flows: Sequence[_Lines]) -> Iterator[_Part]:
    """What is earliest first; at one time the stream that comes first in the file."""
    waiting = [
        (time, number)
        for number, flow in enumerate(flows)
        if (time := flow.next_time()) is not None
    ]
    heapify(waiting)
    while waiting:
        _, number = waiting[0]
        until, other = min(waiting[1:3], default=(LATEST, len(flows)))
        # at the very time of another stream that comes earlier in the file, that one goes first
        part = flows[number].lines(_PART, until=until - (number > other))
        if part is not None:
            yield part
        time = flows[number].next_time()
        if time is None:
            heappop(waiting)
        else:
            heapreplace(waiting, (time, number))


def _ends(parts: Iterator[_Part], selection: Selection) -> Iterator[bytes]:
    """The first or the last lines, if only these are wanted."""
    if selection.head is not None:
        return _first(parts, selection.head)
    if selection.tail is not None:
        return _last(list(parts), selection.tail)
    return (text for text, _ in parts)


def _first(parts: Iterator[_Part], left: int) -> Iterator[bytes]:
    while left > 0 and (part := next(parts, None)) is not None:
        text, lines = part
        yield text if lines <= left else b"".join(text.splitlines(keepends=True)[:left])
        left -= lines


def _last(parts: list[_Part], most: int) -> Iterator[bytes]:
    skip = sum(lines for _, lines in parts) - most
    for text, lines in parts:
        if skip < lines:
            yield b"".join(text.splitlines(keepends=True)[max(0, skip) :])
        skip -= lines
