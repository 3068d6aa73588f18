"""Instructions with more of what is known of each: slower than `listing`, which has most of what
one looks at.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from heapq import merge as merged
from itertools import chain, islice
from operator import itemgetter
from typing import TYPE_CHECKING

from rtit.errors import UsageError
from rtit.readable import readable
from rtit.trace.selection import LATEST, Selection
from rtit.views.fields import GUEST, PERF_TIME, TIMING
from rtit.views.places import lookup

if TYPE_CHECKING:
    from rtit.trace import Instructions, Stream, Table, Trace

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
        return _parts(chain.from_iterable(_lines(trace, each, fields, where) for each in streams))
    whole = replace(where, head=None, tail=None)
    ways = [_lines(trace, each, fields, whole) for each in streams]
    lines: Iterator[_Line] = iter(merged(*ways, key=itemgetter(0)))
    if where.head is not None:
        lines = islice(lines, where.head)
    elif where.tail is not None:
        lines = iter(deque(lines, maxlen=where.tail))
    return _parts(lines)


def _parts(lines: Iterator[_Line]) -> Iterator[tuple[bytes, int]]:
    while part := [f"{text}\n" for _, text in islice(lines, _LINES)]:
        yield "".join(part).encode(), len(part)


def _lines(trace: Trace, stream: Stream, fields: list[str], where: Selection) -> Iterator[_Line]:
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
