"""Where a program was when its trace ended.

The instruction that ended a program: it did not retire, and is where the trace ends.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from pathlib import PurePath
from typing import TYPE_CHECKING

from rtit.readable import readable
from rtit.trace.tables.batch import End, EventKind

if TYPE_CHECKING:
    from rtit.trace import Ended, Rows, Stream, Trace


HOLES = (EventKind.ERROR, EventKind.OVERFLOW, EventKind.RESUMED)
"""Something may be missing there."""
_BORDERS = (EventKind.ENABLED, EventKind.DISABLED, EventKind.ASYNC_DISABLED)


class Behind:
    """What was told behind the last row of all that were added: `next` is the IP there, None if no
    packet told it; `left`: a packet told that the program went on where nothing is traced; `lost`:
    something is missing there; `time`: of the last row, -1 if there is none.
    """

    def __init__(self) -> None:
        self.time = -1
        self.next: int | None = None
        self.left = False
        self.lost = False

    def add(self, rows: Rows) -> None:
        """More rows of the same stream, in order."""
        import numpy as np

        behind = rows.events.row == rows.first + len(rows)
        if len(rows):
            self.time, self.next, self.left = int(rows.time[-1]), None, False
            self.lost = bool(rows.end[-1] == End.LOST)
        self.lost |= bool((behind & np.isin(rows.events.kind, HOLES)).any())
        borders = np.flatnonzero(behind & np.isin(rows.events.kind, _BORDERS))
        if len(borders):
            self.left = bool(rows.events.kind[borders[-1]] == EventKind.DISABLED)
            self.next = None if self.left else int(rows.events.ip[borders[-1]])


_LONGEST = 15


class Crash:
    """The fault of a stream's thread that ended its process: how, and where. `ended` has one."""

    def __init__(self, trace: Trace, stream: Stream, ended: Ended) -> None:
        self._trace = trace
        self._stream = stream
        self._ended = ended
        fault = ended.ending.fault
        assert fault is not None, "crashes() takes no others"
        self._fault = fault

    @property
    def pid(self) -> int:
        """The process."""
        return self._ended.pid

    @property
    def tid(self) -> int:
        """The thread."""
        return self._ended.tid

    @property
    def time(self) -> int:
        """When, in TSC ticks."""
        return self._ended.time

    @property
    def ip(self) -> int:
        """Of the instruction."""
        return self._fault.ip

    @property
    def address(self) -> int:
        """What could not be reached, or the instruction: see `Fault`."""
        return self._fault.address

    @property
    def code(self) -> int:
        """The signal's si_code."""
        return self._fault.code

    @property
    def signal(self) -> tuple[int, str]:
        """The number and the name of the signal."""
        return self._ended.ending.signal or 0, self._ended.ending.signal_name

    @property
    def ending(self) -> str:
        """The signal and the address."""
        return str(self._ended.ending).partition(", instruction")[0]

    @property
    def function(self) -> tuple[str, int, str]:
        """Its name, "" if it is not known; the offset in it, or else in the module; the module."""
        location = self._trace.symbols.lookup(self._stream.tid, self.time, self.ip)
        return location.name, location.offset, location.module

    @cached_property
    def place(self) -> tuple[str, int] | None:
        """Source file and line, None if they are not known."""
        return self._trace.symbols.source_line(self._stream.tid, self.time, self.ip)

    @property
    def symbol(self) -> str:
        """`function+0x12`."""
        return str(self._trace.symbols.lookup(self._stream.tid, self.time, self.ip))

    @property
    def source(self) -> str:
        """`file.c:12`, "" if it is not known."""
        place = self.place
        return f"{PurePath(place[0]).name}:{place[1]}" if place is not None else ""

    @property
    def assembly(self) -> str:
        """The instruction; `(bad)` if there is none."""
        from rtit._core import disassemble

        return disassemble(self._stream.image.native.read(self.time, self.ip, _LONGEST), self.ip)

    @property
    def mark(self) -> str:
        """What stands behind its line."""
        source = f", {self.source}" if self.source else ""
        return f"  <- {self.ending}, not executed{source}"

    def calls(self, most: int) -> list[tuple[str, str]]:
        """The last calls before it, the latest last: where from (`caller+0x12`), and where to.
        Empty if the trace ends before.
        """
        import numpy as np

        from rtit._core import Flow

        kinds = [number for number, name in Flow.ENDS.items() if name in ("call", "indirect call")]
        found: list[tuple[int, int, int]] = []
        open_: tuple[int, int] | None = None  # a call whose target is in the next part
        behind = Behind()
        for rows in self._stream.rows():
            behind.add(rows)
            if open_ is not None and len(rows):
                found.append((*open_, int(rows.start[0])))
                open_ = None
            for row in np.flatnonzero(np.isin(rows.end, kinds))[-most - 1 :].tolist():
                place = int(rows.time[row]), int(rows.last[row])
                if row + 1 < len(rows):
                    found.append((*place, int(rows.start[row + 1])))
                else:
                    open_ = place
            found = found[-most:]
        if not self._reached(behind):
            return []
        names = self._trace.symbols
        tid = self._stream.tid
        return [
            (str(names.lookup(tid, time, ip)), str(names.lookup(tid, time, target)))
            for time, ip, target in found
        ]

    def _reached(self, behind: Behind) -> bool:
        if behind.next is not None:
            return behind.next == self.ip
        return not (behind.left or behind.lost or "stopped" in self._trace.facts)

    def line(self, fields: list[str], nanoseconds: int) -> bytes:
        """It as the last line of a listing with these fields."""
        texts = []
        for number, field in enumerate(fields):
            if field == "ip":
                texts.append(f"{self.ip:16x}")
            elif field == "tid":
                texts.append(f"{self._stream.tid:7}")
            elif field == "time":
                texts.append(f"{nanoseconds:15}")
            elif field == "sym":
                symbol = readable(self.symbol)
                texts.append(symbol if number == len(fields) - 1 else f"{symbol:32}")
            elif field == "asm":
                texts.append(self.assembly)
            else:
                texts.append("-")
        return (" ".join(texts) + readable(self.mark) + "\n").encode()


def crash(trace: Trace, stream: Stream) -> Crash | None:
    """How the stream's thread ended its process by a fault; None if it did not."""
    return next(iter(crashes(trace, [stream])), None)


def crashes(trace: Trace, streams: Iterable[Stream]) -> list[Crash]:
    """The faults that ended processes, of those threads whose last stream is among these."""
    faults = {
        (ended.pid, ended.tid): ended for ended in trace.endings if ended.ending.fault is not None
    }
    last: dict[int, Stream] = {}
    tids = {tid for _, tid in faults}
    for stream in trace.threads if faults else ():
        if stream.tid not in tids:
            continue
        before = last.get(stream.tid)
        if before is None or before.last_turn <= stream.last_turn:
            last[stream.tid] = stream
    found = []
    for stream in streams:
        for who in stream.whose:
            ended, own = faults.get(who), last.get(who[1])
            if ended is None or own is None:
                continue
            if own is stream or (len(stream.whose) > 1 and own.source is stream.source):
                found.append(Crash(trace, own, ended))
    return found
