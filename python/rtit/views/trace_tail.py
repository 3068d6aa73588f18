"""Where execution was when the trace ended, and the fault that ended it.

A row shows where a run of instructions ended, not where execution went next. Events after the last
row may show it (`TraceTail`). An instruction that faults does not retire, so no row has it; the
kernel's exit record does (`ProcessCrash`).
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from pathlib import PurePath
from typing import TYPE_CHECKING

from rtit.text_escaping import escape_control_characters
from rtit.trace.tables.batch import End, EventKind
from rtit.views.calls_at_end import DECODED_BYTES, CallsAtEnd, calls_at_end

if TYPE_CHECKING:
    from rtit.trace import Call, ProcessExit, Rows, Stream, Trace

GAP_EVENTS = (EventKind.ERROR, EventKind.OVERFLOW, EventKind.RESUMED)
"""Events at which execution may be missing."""
_TRACING_CHANGES = (EventKind.ENABLED, EventKind.DISABLED, EventKind.ASYNC_DISABLED)


class TraceTail:
    """The state after the last row, as events show it."""

    def __init__(self) -> None:
        self.time = -1
        """Time of the last row in TSC ticks; -1 without rows."""
        self.next_ip: int | None = None
        """IP of the next instruction; None if no packet has it."""
        self.left_traced_code = False
        """Whether tracing was disabled because execution left the traced code."""
        self.has_gap = False
        """Whether execution may be missing after the last row."""

    def add_rows(self, rows: Rows) -> None:
        """Add the next rows of the stream, in order."""
        import numpy as np

        after_last = rows.events.row == rows.first + len(rows)
        if len(rows):
            self.time, self.next_ip, self.left_traced_code = int(rows.time[-1]), None, False
            self.has_gap = bool(rows.end[-1] == End.LOST)
        self.has_gap |= bool((after_last & np.isin(rows.events.kind, GAP_EVENTS)).any())
        changes = np.flatnonzero(after_last & np.isin(rows.events.kind, _TRACING_CHANGES))
        if len(changes):
            self.left_traced_code = bool(rows.events.kind[changes[-1]] == EventKind.DISABLED)
            self.next_ip = None if self.left_traced_code else int(rows.events.ip[changes[-1]])


_MAX_INSTRUCTION_BYTES = 15


class ProcessCrash:
    """A fault that ended a process, in the last stream of its thread.

    `time` is that of the exit in TSC ticks. `ip` is the address of the instruction that faulted,
    `address` that which could not be accessed (see `Fault`), `code` the `si_code` of the signal,
    and `signal` its number and name. `ending` is the name of the signal, with the address.
    """

    def __init__(self, trace: Trace, stream: Stream, exit_: ProcessExit) -> None:
        self._trace = trace
        self._stream = stream
        self.pid, self.tid, self.time = exit_.pid, exit_.tid, exit_.time
        status = exit_.exit_status
        assert status.fault is not None, "find_crashes() selects faults"
        self.ip, self.address, self.code = status.fault.ip, status.fault.address, status.fault.code
        self.signal = status.signal or 0, status.signal_name
        self.ending = str(status).partition(", instruction")[0]

    @property
    def function_with_offset(self) -> tuple[str, int, str]:
        """Name of the function ("" if unknown), offset in the function or else in the module,
        module.
        """
        location = self._trace.symbols.lookup(self._stream.tid, self.time, self.ip)
        return location.name, location.offset, location.module

    @cached_property
    def source_line(self) -> tuple[str, int] | None:
        """Source file and line; None if unknown."""
        return self._trace.symbols.source_line(self._stream.tid, self.time, self.ip)

    @property
    def symbol_with_offset(self) -> str:
        """`function+0x12`."""
        return str(self._trace.symbols.lookup(self._stream.tid, self.time, self.ip))

    @property
    def source_line_text(self) -> str:
        """`file.c:12`; "" if unknown."""
        line = self.source_line
        return f"{PurePath(line[0]).name}:{line[1]}" if line is not None else ""

    @property
    def disassembled_instruction(self) -> str:
        """The instruction in Intel syntax; `(bad)` for bytes that are none."""
        from rtit._core import disassemble

        return disassemble(
            self._stream.image.native.read(self.time, self.ip, _MAX_INSTRUCTION_BYTES), self.ip
        )

    @property
    def listing_annotation(self) -> str:
        """Text after the instruction in a listing."""
        source = f", {self.source_line_text}" if self.source_line_text else ""
        return f"  <- {self.ending}, not executed{source}"

    def calls_at_end(self, last: int) -> CallsAtEnd:
        """Return the calls that had not returned at the fault, and the `last` calls before it.

        Empty if the trace ends before the fault.
        """
        end, tail = self._stream.tail(DECODED_BYTES), TraceTail()
        for rows in end.rows():
            tail.add_rows(rows)
        if not self._trace_reaches_crash(tail):
            return CallsAtEnd([], [])
        return calls_at_end(self._trace, self._stream, last)

    def call_site(self, call: Call) -> str:
        """`caller+0x12`; "" if the caller is unknown."""
        return self._name(call, call.call_site) if call.call_site else ""

    def callee(self, call: Call) -> str:
        """The name of the called function."""
        return self._name(call, call.entry)

    def _name(self, call: Call, ip: int) -> str:
        return str(self._trace.symbols.lookup(self._stream.tid, call.begin_time, ip))

    def _trace_reaches_crash(self, tail: TraceTail) -> bool:
        if tail.next_ip is not None:
            return tail.next_ip == self.ip
        return not (tail.left_traced_code or tail.has_gap or "stopped" in self._trace.facts)

    def format_line(self, fields: list[str], nanoseconds: int) -> bytes:
        """Return the last line of a listing with these fields."""
        texts = []
        for number, field in enumerate(fields):
            if field == "ip":
                texts.append(f"{self.ip:16x}")
            elif field == "tid":
                texts.append(f"{self._stream.tid:7}")
            elif field == "time":
                texts.append(f"{nanoseconds:15}")
            elif field == "sym":
                symbol = escape_control_characters(self.symbol_with_offset)
                texts.append(symbol if number == len(fields) - 1 else f"{symbol:32}")
            elif field == "asm":
                texts.append(self.disassembled_instruction)
            else:
                texts.append("-")
        return (
            " ".join(texts) + escape_control_characters(self.listing_annotation) + "\n"
        ).encode()


def find_crash(trace: Trace, stream: Stream) -> ProcessCrash | None:
    """Return the fault with which the stream's thread ended its process; None if there is none."""
    return next(iter(find_crashes(trace, [stream])), None)


def find_crashes(trace: Trace, streams: Iterable[Stream]) -> list[ProcessCrash]:
    """Return the faults of threads whose last stream is among these."""
    faults = {
        (exit_.pid, exit_.tid): exit_
        for exit_ in trace.endings
        if exit_.exit_status.fault is not None
    }
    last: dict[int, Stream] = {}
    tids = {tid for _, tid in faults}
    for stream in trace.threads if faults else ():
        if stream.tid not in tids:
            continue
        before = last.get(stream.tid)
        if before is None or before.last_interval_start <= stream.last_interval_start:
            last[stream.tid] = stream
    found = []
    for stream in streams:
        for who in stream.thread_ids:
            exit_, own = faults.get(who), last.get(who[1])
            if exit_ is None or own is None:
                continue
            if own is stream or (len(stream.thread_ids) > 1 and own.source is stream.source):
                found.append(ProcessCrash(trace, own, exit_))
    return found
