"""The instruction that ended a program: it did not retire, and is where the trace ends."""

from __future__ import annotations

from pathlib import PurePath
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rtit.trace import Stream, Trace

_LONGEST = 15


class Crash:
    """The fault of a stream's thread that ended its process: at `time` (TSC ticks), at `ip`;
    `ending` is the signal and the address.
    """

    def __init__(self, trace: Trace, stream: Stream, time: int, ip: int, ending: str) -> None:
        self._trace = trace
        self._stream = stream
        self.time = time
        self.ip = ip
        self.ending = ending

    @property
    def symbol(self) -> str:
        """`function+0x12`."""
        return str(self._trace.symbols.lookup(self._stream.tid, self.time, self.ip))

    @property
    def source(self) -> str:
        """`file.c:12`, "" if it is not known."""
        line = self._trace.symbols.source_line(self._stream.tid, self.time, self.ip)
        return f"{PurePath(line[0]).name}:{line[1]}" if line is not None else ""

    @property
    def assembly(self) -> str:
        """The instruction; `(bad)` if there is none."""
        from rtit._core import disassemble

        return disassemble(self._stream.space.read(self.time, self.ip, _LONGEST), self.ip)

    @property
    def mark(self) -> str:
        """What stands behind its line."""
        source = f", {self.source}" if self.source else ""
        return f"  <- {self.ending}, not executed{source}"

    def calls(self, most: int) -> list[str]:
        """The last calls before it, the latest last, each as `caller+0x12 -> function`."""
        import numpy as np

        from rtit._core import Flow

        kinds = [number for number, name in Flow.ENDS.items() if name in ("call", "indirect call")]
        found: list[tuple[int, int, int]] = []
        open_: tuple[int, int] | None = None  # a call whose target is in the next part
        for rows in self._stream.rows():
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
        names = self._trace.symbols
        tid = self._stream.tid
        return [
            f"{names.lookup(tid, time, ip)} -> {names.lookup(tid, time, target)}"
            for time, ip, target in found
        ]

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
                texts.append(self.symbol if number == len(fields) - 1 else f"{self.symbol:32}")
            else:
                texts.append(self.assembly)
        return (" ".join(texts) + self.mark + "\n").encode(errors="replace")


def crash(trace: Trace, stream: Stream) -> Crash | None:
    """How the stream's thread ended its process by a fault; None if it did not."""
    for ended in trace.endings:
        fault = ended.ending.fault
        if fault is not None and (ended.pid, ended.tid) == (stream.pid, stream.tid):
            last = [each for each in trace.streams if each.tid == stream.tid][-1]
            ending = str(ended.ending).partition(", instruction")[0]
            return Crash(trace, stream, ended.time, fault.ip, ending) if last is stream else None
    return None
