"""The names of what a line about an instruction may have.

Names of addresses in the processes of those that ran.

Instructions with more of what is known of each: slower than `listing`, which has most of what
one looks at.

What ran as text: a line an instruction.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from heapq import heapify, heappop, heapreplace
from heapq import merge as merged
from itertools import chain, islice
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Protocol

from rtit.errors import UsageError
from rtit.readable import readable
from rtit.trace.tables.selection import LATEST, Places, Selection
from rtit.trace.threads.address_spaces import are_apart
from rtit.views.trace_tail import crash

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from rtit import _core
    from rtit.trace import Instructions, Stream, Table, Trace


LISTED = ("ip", "tid", "time", "sym", "asm")
"""What one looks at mostly."""
TIMING = ("earliest", "latest", "cycles", "freq", "ipc")
PERF_TIME = "perf_time"
GUEST = ("guest_pid", "guest_tid", "guest_comm")
DETAILED = (
    *("pid", "comm", "cpu", "dso", "insn", "insnlen", "bits", "in_tx"),
    *(*TIMING, PERF_TIME, *GUEST),
)
"""What takes longer; perf's names where it has one."""


def lookup(
    trace: Trace,
    stream: Stream,
    more: Mapping[str, NDArray[Any]],
    times: NDArray[Any],
    addresses: NDArray[Any],
    space: str = "space",
) -> tuple[NDArray[Any], NDArray[Any]]:
    """As `Symbols.lookup_many`, each row in the address space that the column called `space` in
    `more` says, or where that is a process's, in that of the thread that the column `tid` says, or
    the process that `pid` does.
    """
    import numpy as np

    count = len(addresses)
    whose = more.get("tid", more.get("pid", np.full(count, stream.tid))).astype(np.int64)
    if space in more:
        pids = np.array(stream.pids, np.int64)[more[space]]
        whose = np.where(are_apart(pids), pids, whose)
    numbers, offsets = np.zeros(count, np.uint32), addresses.copy()
    for tid in np.unique(whose).tolist():
        own = whose == tid
        numbers[own], offsets[own] = trace.symbols.lookup_many(tid, times[own], addresses[own])
    return numbers, offsets


_LINES = 1 << 14
_Line = tuple[int, str]
"""When it ran, and its text."""


def detailed(
    trace: Trace, streams: list[Stream], fields: list[str], where: Selection, *, merge: bool = False
) -> Iterator[tuple[bytes, int]]:
    """Lines in parts, and how many each part has. Raises UsageError for an IPC of instructions that
    do not follow each other.
    """
    if "ipc" in fields and (where.ranges or where.functions):
        raise UsageError("ipc counts all instructions: it goes without --function and --range")
    if not merge:
        return _parts(
            chain.from_iterable(_detailed_lines(trace, each, fields, where) for each in streams)
        )
    whole = replace(where, head=None, tail=None)
    ways = [_detailed_lines(trace, each, fields, whole) for each in streams]
    lines: Iterator[_Line] = iter(merged(*ways, key=itemgetter(0)))
    if where.head is not None:
        lines = islice(lines, where.head)
    elif where.tail is not None:
        lines = iter(deque(lines, maxlen=where.tail))
    return _parts(lines)


def _parts(lines: Iterator[_Line]) -> Iterator[tuple[bytes, int]]:
    while part := [f"{text}\n" for _, text in islice(lines, _LINES)]:
        yield "".join(part).encode(), len(part)


def _detailed_lines(
    trace: Trace, stream: Stream, fields: list[str], where: Selection
) -> Iterator[_Line]:
    ipc = _Ipc() if "ipc" in fields else None
    show = _Shown(trace, stream, fields)
    timing = not set(TIMING).isdisjoint(fields)
    # of the first and the last alone the cycles before them are not known
    part = where if ipc is None else Selection(time=where.time)
    perf_time = PERF_TIME in fields
    found = _texts(stream.instructions(part, timing=timing, perf_time=perf_time), fields, show, ipc)
    if ipc is not None and where.head is not None:
        return islice(found, where.head)
    if ipc is not None and where.tail is not None:
        return iter(deque(found, maxlen=where.tail))
    return found


def _texts(
    batches: Table[Instructions],
    fields: list[str],
    show: _Shown,
    ipc: _Ipc | None,
) -> Iterator[_Line]:
    for batch in batches:
        columns = [
            ipc.column(batch) if name == "ipc" and ipc else show.column(name, batch)
            for name in fields
        ]
        texts = map(" ".join, zip(*columns, strict=True))
        yield from zip(batch.time.tolist(), map(str.rstrip, texts), strict=True)


class _Shown:
    """Columns of a stream as text."""

    def __init__(self, trace: Trace, stream: Stream, fields: Sequence[str]) -> None:
        self._trace = trace
        self._stream = stream
        self._last = fields[-1]
        clock = trace.clock
        self._nanoseconds: Callable[[int], int] = (
            clock.to_nanoseconds if clock is not None else lambda ticks: ticks
        )
        self._megahertz = 1000 * 2**clock.shift / clock.mult if clock is not None else None
        self._known: dict[tuple[bytes, int, int], str] = {}

    def column(self, name: str, batch: Instructions) -> list[str]:
        """A text for each instruction."""
        stream, count = self._stream, len(batch)
        constant = {
            "tid": f"{stream.tid:7}",
            "pid": f"{stream.pid:7}",
            "comm": f"{readable(stream.name or '-'):>16}",
            "cpu": f"[{stream.cpu:03}]" if stream.cpu >= 0 else "[-]",
        }
        if name in ("tid", "pid", "comm") and "tid" in batch.more:
            return self._whose(name, batch)
        if name in constant:
            return [constant[name]] * count
        if name in GUEST:
            return self._in_guest(name, batch)
        if name in ("sym", "dso"):
            return self._named(name, batch)
        if name in ("insn", "asm"):
            return self._code(name, batch)
        if name in ("earliest", "latest"):
            return [self._bound(each) for each in getattr(batch, name).tolist()]
        plain: dict[str, Callable[[], list[str]]] = {
            "time": lambda: [f"{self._nanoseconds(each):15}" for each in batch.time.tolist()],
            PERF_TIME: lambda: [f"{self._nanoseconds(t):15}" for t in batch.perf_time.tolist()],
            "ip": lambda: [f"{each:16x}" for each in batch.ip.tolist()],
            "insnlen": lambda: [f"{each:2}" for each in batch.size.tolist()],
            "bits": lambda: [str(each) for each in batch.bits.tolist()],
            "in_tx": lambda: ["x" if each else "-" for each in batch.in_tx.tolist()],
            "cycles": lambda: [f"{each:12}" for each in batch.cycles.tolist()],
            "freq": lambda: [self._frequency(each) for each in batch.frequency.tolist()],
        }
        return plain[name]()

    def _whose(self, name: str, batch: Instructions) -> list[str]:
        numbers = batch.more["pid" if name == "pid" else "tid"].tolist()
        if name == "comm":
            comms = self._trace.comms
            return [f"{readable(comms.get(number) or '-'):>16}" for number in numbers]
        return [f"{number:7}" for number in numbers]

    def _in_guest(self, name: str, batch: Instructions) -> list[str]:
        if "guest_tid" not in batch.more:
            return [f"{'-':>{16 if name == 'guest_comm' else 7}}"] * len(batch)
        if name == "guest_comm":
            comms, columns = self._trace.guest_comms, (batch.pid, batch.guest_tid)
            pairs = zip(*(column.tolist() for column in columns), strict=True)
            return [f"{readable(comms.get(pair) or '-'):>16}" for pair in pairs]
        numbers = batch.more[name].tolist()
        return [f"{number if number >= 0 else '-':>7}" for number in numbers]

    def _bound(self, ticks: int) -> str:
        return f"{'-':>15}" if ticks in (0, LATEST) else f"{self._nanoseconds(ticks):15}"

    def _frequency(self, ratio: float) -> str:
        if math.isnan(ratio):
            return f"{'-':>6}"
        return f"{ratio:6.3f}" if self._megahertz is None else f"{ratio * self._megahertz:6.0f}"

    def _named(self, name: str, batch: Instructions) -> list[str]:
        symbols = self._trace.symbols
        numbers, offsets = lookup(self._trace, self._stream, batch.more, batch.time, batch.ip)
        found = []
        for number, offset in zip(numbers.tolist(), offsets.tolist(), strict=True):
            text = symbols.text(number, offset) if name == "sym" else symbols.table[number][1]
            found.append(readable(text) or "-")
        return found if name == self._last else [f"{text:32}" for text in found]

    def _code(self, name: str, batch: Instructions) -> list[str]:
        from rtit._core import disassemble

        found = []
        tids = batch.more.get("tid", [None] * len(batch))
        spaces = batch.more["space"].tolist() if "space" in batch.more else [0] * len(batch)
        columns = (batch.time, batch.ip, batch.size, batch.bits)
        others = [image for _, image in self._stream.others]
        rows = zip(tids, spaces, *(each.tolist() for each in columns), strict=True)
        for tid, space, time, ip, size, bits in rows:
            image = others[space - 1] if space else self._stream.code_at(ip, tid)
            data = image.native.read(time, ip, size)
            if name == "insn":
                found.append(f"{data.hex(' '):{0 if name == self._last else 44}}")
                continue
            key = (data, ip, bits)
            if key not in self._known:
                if len(self._known) > _LINES * 8:
                    self._known.clear()
                self._known[key] = disassemble(data, ip, bits)
            found.append(self._known[key])
        return found


class _Ipc:
    """Instructions for a cycle, where CYCs have told how many there were, as perf prints it."""

    def __init__(self) -> None:
        self._cycles: int | None = None
        self._since = 0

    def column(self, batch: Instructions) -> list[str]:
        """`0.81 (36/44)` where the cycles before an instruction are told, else nothing."""
        found = []
        for cycles in batch.cycles.tolist():
            text = ""
            if self._cycles is not None and cycles != self._cycles:
                passed = cycles - self._cycles
                text = f"{self._since / passed:.2f} ({self._since}/{passed})"
                self._since = 0
            self._cycles = cycles
            self._since += 1
            found.append(text)
        return found


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
        pass  # self-import
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
