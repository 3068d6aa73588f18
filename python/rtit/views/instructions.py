"""Lists executed instructions as text, one line per instruction.

`list_instructions` renders the fields of `NATIVE_FIELDS` in native code. Any other field, and a
stream with the rows of several threads, takes the slower path through columns of Python
(`_detailed_chunks`). Both paths print the same text for the same field. A fault that ended a
process is the last line of its stream.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from heapq import heapify, heappop, heapreplace
from heapq import merge as heap_merge
from itertools import chain, islice
from operator import itemgetter
from typing import TYPE_CHECKING, Protocol

from rtit.errors import UsageError
from rtit.text_escaping import escape_control_characters
from rtit.trace.tables.code_columns import lookup_symbols
from rtit.trace.tables.selection import LATEST, SelectedRanges, Selection
from rtit.views.field_names import (
    CODE_FIELDS,
    GUEST_FIELDS,
    NATIVE_FIELDS,
    STATE_FIELDS,
    TIMING_FIELDS,
)
from rtit.views.trace_tail import find_crash

if TYPE_CHECKING:
    from rtit import _core
    from rtit.trace import Instructions, Stream, Table, Trace

_CHUNK_BYTES = 1 << 20
_Chunk = tuple[bytes, int]
_LINES_PER_CHUNK = 1 << 14
_TimedLine = tuple[int, str]
"""Time and text of a line."""


def list_instructions(
    trace: Trace,
    streams: list[Stream],
    fields: list[str],
    selection: Selection | None = None,
    on_stream_end: Callable[[Stream], object] = id,
    *,
    merge: bool = False,
) -> Iterator[bytes]:
    """Iterate over the lines of the streams, as chunks of about a megabyte of UTF-8.

    The streams follow each other, or are merged by time with `merge`. `fields` are of
    `NATIVE_FIELDS` and `DETAILED_FIELDS`. `selection` chooses the instructions. `on_stream_end` is
    called with each stream after its last line. Raises UsageError for a function that does not
    exist.
    """
    selection = selection or Selection()
    crash_lines = [_crash_line(trace, stream, fields, selection) for stream in streams]
    selected = SelectedRanges(selection, trace.images)
    selected.check_functions_exist(pid for stream in streams for pid in stream.space_pids)
    # native code renders one thread per stream
    several = any(stream.has_several_threads for stream in streams)
    detail = not set(fields) <= set(NATIVE_FIELDS) or (several and "tid" in fields)
    detail |= any(stream.needs_extraction for stream in streams)
    lines: Iterator[_Chunk]
    if merge:
        if detail:
            chunks = _detailed_chunks(trace, streams, fields, selection, merge=True)
            lines = chain(
                chunks, [crash_line.chunk for crash_line in crash_lines if crash_line is not None]
            )
        else:
            listings = [
                _native_listing(trace, stream, fields, selection, selected) for stream in streams
            ]
            lines = _merge_by_time([*listings, *filter(None, crash_lines)])
        yield from _limit_lines(lines, selection)
        for stream in streams:
            on_stream_end(stream)
        return
    for stream, crash_line in zip(streams, crash_lines, strict=True):
        if detail:
            lines = _detailed_chunks(trace, [stream], fields, selection)
        else:
            lines = _native_line_chunks(
                _native_listing(trace, stream, fields, selection, selected), selection
            )
        yield from _limit_lines(
            chain(lines, [crash_line.chunk] if crash_line is not None else []), selection
        )
        on_stream_end(stream)


def _native_listing(
    trace: Trace, stream: Stream, fields: list[str], selection: Selection, selected: SelectedRanges
) -> _core.StreamDecoder:
    from rtit._core import Listing

    clock = trace.clock
    listing = stream.native_decoder()
    others = [(image.native, trace.symbols.names(pid)) for pid, image in stream.other_spaces]
    listing.start_listing(
        Listing(
            fields,
            stream.image.native,
            trace.symbols.names(stream.tid),
            tid=stream.tid,
            clock=(clock.shift, clock.mult, clock.zero) if clock is not None else None,
            ranges=selected.by_process(stream.space_pids),
            times=selection.time.to_ticks(clock) if selection.time is not None else (0, LATEST),
            indexes=(0, LATEST) if selection.indexes is None else selection.indexes,
            tail=selection.tail,
            others=others,
        )
    )
    return listing


def _native_line_chunks(listing: _core.StreamDecoder, selection: Selection) -> Iterator[_Chunk]:
    limit = LATEST if selection.head is None else selection.head
    while (chunk := listing.lines(_CHUNK_BYTES, limit)) is not None:
        yield chunk


class _ListingLines(Protocol):
    """Lines in order of time, as `_core.StreamDecoder` gives after `start_listing`."""

    def next_time(self) -> int | None: ...
    def lines(self, max_bytes: int, *, until: int) -> _Chunk | None: ...


class _CrashLine:
    """The line of the instruction that faulted, as a `_ListingLines`."""

    def __init__(self, time: int, text: bytes) -> None:
        self.chunk = text, 1
        self._time: int | None = time

    def next_time(self) -> int | None:
        return self._time

    def lines(self, max_bytes: int, *, until: int) -> _Chunk | None:
        self._time = None
        return self.chunk


def _crash_line(
    trace: Trace, stream: Stream, fields: list[str], selection: Selection
) -> _CrashLine | None:
    """Return the line of the fault that ended the stream's process; None if it is not selected."""
    found = find_crash(trace, stream)
    if found is None or selection.indexes is not None:
        return None
    clock = trace.clock
    if selection.time is not None:
        first, last = selection.time.to_ticks(clock)
        if not first <= found.time <= last:
            return None
    selected = SelectedRanges(selection, trace.images).in_processes(*stream.space_pids)
    if selected is not None and not any(
        each.start <= found.ip < each.end and each.since <= found.time < each.until
        for each in selected
    ):
        return None
    when = clock.to_nanoseconds(found.time) if clock is not None else found.time
    return _CrashLine(found.time, found.format_line(fields, when))


def _merge_by_time(listings: Sequence[_ListingLines]) -> Iterator[_Chunk]:
    """Merge lines by time. At equal times the stream that is first in the file goes first."""
    queue = [
        (time, number)
        for number, listing in enumerate(listings)
        if (time := listing.next_time()) is not None
    ]
    heapify(queue)
    while queue:
        _, number = queue[0]
        until, other = min(queue[1:3], default=(LATEST, len(listings)))
        # lines at the next time of an earlier stream must wait for that stream
        chunk = listings[number].lines(_CHUNK_BYTES, until=until - (number > other))
        if chunk is not None:
            yield chunk
        time = listings[number].next_time()
        if time is None:
            heappop(queue)
        else:
            heapreplace(queue, (time, number))


def _limit_lines(chunks: Iterator[_Chunk], selection: Selection) -> Iterator[bytes]:
    """Apply `head` or `tail` of the selection."""
    if selection.head is not None:
        return _first_lines(chunks, selection.head)
    if selection.tail is not None:
        return _last_lines(list(chunks), selection.tail)
    return (text for text, _ in chunks)


def _first_lines(chunks: Iterator[_Chunk], left: int) -> Iterator[bytes]:
    while left > 0 and (chunk := next(chunks, None)) is not None:
        text, lines = chunk
        yield text if lines <= left else b"".join(text.splitlines(keepends=True)[:left])
        left -= lines


def _last_lines(chunks: list[_Chunk], limit: int) -> Iterator[bytes]:
    skip = sum(lines for _, lines in chunks) - limit
    for text, lines in chunks:
        if skip < lines:
            yield b"".join(text.splitlines(keepends=True)[max(0, skip) :])
        skip -= lines


def _detailed_chunks(
    trace: Trace,
    streams: list[Stream],
    fields: list[str],
    selection: Selection,
    *,
    merge: bool = False,
) -> Iterator[tuple[bytes, int]]:
    """Return chunks of lines, each with its number of lines, from columns of Python.

    Raises UsageError for an IPC of instructions that do not follow each other.
    """
    if "ipc" in fields and (selection.ranges or selection.functions or selection.indexes):
        raise UsageError(
            "ipc counts all instructions and cannot be combined with --function, --range or --index"
        )
    if not merge:
        return _join_lines(
            chain.from_iterable(_detailed_lines(trace, each, fields, selection) for each in streams)
        )
    unlimited = replace(selection, head=None, tail=None)
    listings = [_detailed_lines(trace, each, fields, unlimited) for each in streams]
    lines: Iterator[_TimedLine] = iter(heap_merge(*listings, key=itemgetter(0)))
    if selection.head is not None:
        lines = islice(lines, selection.head)
    elif selection.tail is not None:
        lines = iter(deque(lines, maxlen=selection.tail))
    return _join_lines(lines)


def _join_lines(lines: Iterator[_TimedLine]) -> Iterator[tuple[bytes, int]]:
    while chunk := [f"{text}\n" for _, text in islice(lines, _LINES_PER_CHUNK)]:
        yield "".join(chunk).encode(), len(chunk)


def _detailed_lines(
    trace: Trace, stream: Stream, fields: list[str], selection: Selection
) -> Iterator[_TimedLine]:
    ipc = _IpcCounter() if "ipc" in fields else None
    formatter = _FieldFormatter(trace, stream, fields)
    timing = not set(TIMING_FIELDS).isdisjoint(fields)
    code_columns = [name for name in fields if name in (*CODE_FIELDS, *STATE_FIELDS)]
    # IPC needs the cycles of all instructions, so head and tail are applied after decoding
    decoded = selection if ipc is None else Selection(time=selection.time)
    found = _render_batches(
        stream.instructions(decoded, timing=timing, extra_columns=code_columns),
        fields,
        formatter,
        ipc,
    )
    if ipc is not None and selection.head is not None:
        return islice(found, selection.head)
    if ipc is not None and selection.tail is not None:
        return iter(deque(found, maxlen=selection.tail))
    return found


def _render_batches(
    batches: Table[Instructions],
    fields: list[str],
    formatter: _FieldFormatter,
    ipc: _IpcCounter | None,
) -> Iterator[_TimedLine]:
    for batch in batches:
        columns = [
            ipc.format_field(batch)
            if name == "ipc" and ipc
            else formatter.format_field(name, batch)
            for name in fields
        ]
        texts = map(" ".join, zip(*columns, strict=True))
        yield from zip(batch.time.tolist(), map(str.rstrip, texts), strict=True)


class _FieldFormatter:
    """Formats columns of a stream as text."""

    def __init__(self, trace: Trace, stream: Stream, fields: Sequence[str]) -> None:
        self._trace = trace
        self._stream = stream
        self._last_field = fields[-1]
        clock = trace.clock
        self._nanoseconds: Callable[[int], int] = (
            clock.to_nanoseconds if clock is not None else lambda ticks: ticks
        )
        self._megahertz = 1000 * 2**clock.shift / clock.mult if clock is not None else None
        self._known: dict[tuple[bytes, int, int], str] = {}

    def format_field(self, name: str, batch: Instructions) -> list[str]:
        """Return the text of a field for each instruction."""
        stream, count = self._stream, len(batch)
        constant = {
            "tid": f"{stream.tid:7}",
            "pid": f"{stream.pid:7}",
            "comm": f"{escape_control_characters(stream.name or '-'):>16}",
            "cpu": f"[{stream.cpu:03}]" if stream.cpu >= 0 else "[-]",
        }
        if name in ("tid", "pid", "comm") and "tid" in batch.extra_columns:
            return self._thread_field(name, batch)
        if name in constant:
            return [constant[name]] * count
        if name in GUEST_FIELDS:
            return self._guest_field(name, batch)
        if name in ("sym", "dso"):
            return self._symbol_field(name, batch)
        if name in ("insn", "asm"):
            return self._code_field(name, batch)
        if name in ("earliest", "latest"):
            return [self._format_bound(each) for each in getattr(batch, name).tolist()]
        plain: dict[str, Callable[[], list[str]]] = {
            "time": lambda: [f"{self._nanoseconds(each):15}" for each in batch.time.tolist()],
            "ip": lambda: [f"{each:16x}" for each in batch.ip.tolist()],
            "insnlen": lambda: [f"{each:2}" for each in batch.size.tolist()],
            "bits": lambda: [str(each) for each in batch.bits.tolist()],
            "in_tx": lambda: ["x" if each else "-" for each in batch.in_tx.tolist()],
            "cpl": lambda: [str(each) for each in batch.cpl.tolist()],
            "cr3": lambda: [f"{each:16x}" for each in batch.cr3.tolist()],
            "index": lambda: [f"{each:12}" for each in batch.index.tolist()],
            "function": lambda: self._pad_names(name, batch.function_names),
            "file": lambda: self._pad_names(name, batch.file_names),
            "line": lambda: [f"{each or '-':>5}" for each in batch.line.tolist()],
            "cycles": lambda: [f"{each:12}" for each in batch.cycles.tolist()],
            "freq": lambda: [self._format_frequency(each) for each in batch.frequency.tolist()],
        }
        return plain[name]()

    def _thread_field(self, name: str, batch: Instructions) -> list[str]:
        numbers = batch.extra_columns["pid" if name == "pid" else "tid"].tolist()
        if name == "comm":
            comms = self._trace.comms
            return [
                f"{escape_control_characters(comms.get(number) or '-'):>16}" for number in numbers
            ]
        return [f"{number:7}" for number in numbers]

    def _guest_field(self, name: str, batch: Instructions) -> list[str]:
        if "guest_tid" not in batch.extra_columns:
            return [f"{'-':>{16 if name == 'guest_comm' else 7}}"] * len(batch)
        if name == "guest_comm":
            comms, columns = self._trace.guest_comms, (batch.pid, batch.guest_tid)
            pairs = zip(*(column.tolist() for column in columns), strict=True)
            return [f"{escape_control_characters(comms.get(pair) or '-'):>16}" for pair in pairs]
        numbers = batch.extra_columns[name].tolist()
        return [f"{number if number >= 0 else '-':>7}" for number in numbers]

    def _format_bound(self, ticks: int) -> str:
        return f"{'-':>15}" if ticks in (0, LATEST) else f"{self._nanoseconds(ticks):15}"

    def _format_frequency(self, ratio: float) -> str:
        if math.isnan(ratio):
            return f"{'-':>6}"
        return f"{ratio:6.3f}" if self._megahertz is None else f"{ratio * self._megahertz:6.0f}"

    def _symbol_field(self, name: str, batch: Instructions) -> list[str]:
        symbols = self._trace.symbols
        numbers, offsets = lookup_symbols(
            symbols, self._stream, batch.extra_columns, batch.time, batch.ip
        )
        found = []
        for number, offset in zip(numbers.tolist(), offsets.tolist(), strict=True):
            text = (
                symbols.location_text(number, offset) if name == "sym" else symbols.table[number][1]
            )
            found.append(text)
        return self._pad_names(name, found)

    def _pad_names(self, field: str, texts: list[str]) -> list[str]:
        shown = [escape_control_characters(text) or "-" for text in texts]
        return shown if field == self._last_field else [f"{text:32}" for text in shown]

    def _code_field(self, name: str, batch: Instructions) -> list[str]:
        from rtit._core import disassemble

        found = []
        tids = batch.extra_columns.get("tid", [None] * len(batch))
        spaces = (
            batch.extra_columns["space"].tolist()
            if "space" in batch.extra_columns
            else [0] * len(batch)
        )
        columns = (batch.time, batch.ip, batch.size, batch.bits)
        others = [image for _, image in self._stream.other_spaces]
        rows = zip(tids, spaces, *(each.tolist() for each in columns), strict=True)
        for tid, space, time, ip, size, bits in rows:
            image = others[space - 1] if space else self._stream.image_at(ip, tid)
            data = image.native.read(time, ip, size)
            if name == "insn":
                found.append(f"{data.hex(' '):{0 if name == self._last_field else 44}}")
                continue
            key = (data, ip, bits)
            if key not in self._known:
                if len(self._known) > _LINES_PER_CHUNK * 8:
                    self._known.clear()
                self._known[key] = disassemble(data, ip, bits)
            found.append(self._known[key])
        return found


class _IpcCounter:
    """Computes instructions per cycle between CYC packets, as perf prints it."""

    def __init__(self) -> None:
        self._cycles: int | None = None
        self._instructions = 0

    def format_field(self, batch: Instructions) -> list[str]:
        """Return `0.81 (36/44)` for instructions that follow a CYC, else ""."""
        found = []
        for cycles in batch.cycles.tolist():
            text = ""
            if self._cycles is not None and cycles != self._cycles:
                elapsed = cycles - self._cycles
                text = f"{self._instructions / elapsed:.2f} ({self._instructions}/{elapsed})"
                self._instructions = 0
            self._cycles = cycles
            self._instructions += 1
            found.append(text)
        return found
