"""`rtit packets FILE`: one line for each packet, or a page with the bits of the first packets."""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable, Iterator
from itertools import islice, pairwise, repeat
from pathlib import Path
from typing import TYPE_CHECKING

from rtit.cli import options, output
from rtit.cli.incomplete import IncompleteReport
from rtit.cli.parser import CommandParser
from rtit.cli.progress import show_progress
from rtit.errors import UsageError
from rtit.packets import BadBytes, Packet, describe, to_json
from rtit.packets.decode import decode_whole_packet
from rtit.text_escaping import format_json

if TYPE_CHECKING:
    from rtit.packets.html import Row
    from rtit.perfdata import TimeConversion
    from rtit.trace import Packets, Stream, Trace

_MAX_KNOWN_TEXTS = 1 << 16
_PAGE_HEAD = 1000
"""Packets of each stream on a page, unless --head has another number."""

_EPILOG = """Examples:
  rtit packets | head -50
  rtit packets --timing --tid 1234 crash.data
  rtit packets --raw trace.pt --cpu-model 6/94/3
  rtit packets --html first.html --head 200
"""


def add_arguments(parser: CommandParser) -> None:
    """Declare the options."""
    parser.description = "List the packets of a trace, one per line, with offset, name and fields."
    parser.epilog = _EPILOG
    options.add_file_argument(parser)
    group = parser.add_argument_group("Output")
    options.add_timing_option(group, "packet")
    options.add_json_option(group)
    options.add_value_option(
        group,
        "--head",
        "N",
        "Only the first N packets of each thread or CPU",
        type=options.parse_count,
    )
    options.add_value_option(
        group,
        "--html",
        "FILE",
        "Print nothing, and write a web page to FILE, with the bits of the first packets, and "
        f"PacketEn over time; --head sets how many packets (default: {_PAGE_HEAD:,})",
    )
    options.add_stream_options(parser)
    options.add_clock_and_start_options(options.add_raw_options(parser))
    parser.add_general_options(rare="the options for raw PT")


def run(arguments: argparse.Namespace) -> int:
    """Print the packets; return 3 if some bytes are no packet, or the file was cut."""
    if arguments.html and arguments.json:
        raise UsageError("--html and --json cannot be combined")
    with options.open_trace(arguments) as trace:
        gaps = IncompleteReport("packets", trace)
        streams = options.parse_selection(arguments).select_streams(trace.streams)
        with show_progress("packets", streams, prints=not arguments.html):
            if arguments.html:
                _write_page(trace, streams, arguments, gaps)
                return gaps.exit_code()
            for stream in streams:
                # raw PT is one stream, which has no name and perhaps no size
                title = stream.title if arguments.raw is None else None
                printer = _PacketPrinter(title, trace.clock, as_json=arguments.json)
                head = sys.maxsize if arguments.head is None else arguments.head
                if printer.print_packets(stream, head, timing=arguments.timing):
                    gaps.note_shown_gap()
        return gaps.exit_code()


def _write_page(
    trace: Trace, streams: list[Stream], arguments: argparse.Namespace, gaps: IncompleteReport
) -> None:
    from rtit.packets.html import escape_text, page

    head = _PAGE_HEAD if arguments.head is None else arguments.head
    name = Path(arguments.raw or trace.path).name
    views = [_StreamView(stream, trace.clock, timing=arguments.timing) for stream in streams]
    lines = (line for view in views for line in view.lines(head))
    title = f"<h1>{escape_text(name)}</h1>"
    with output.atomic_file(arguments.html) as file:
        file.writelines(page(f"{name} - rtit packets", [title, *lines]))
    if any(view.has_bad_bytes for view in views):
        gaps.note_shown_gap()


class _PacketPrinter:
    """Prints the packets of a stream."""

    def __init__(self, title: str | None, clock: TimeConversion | None, *, as_json: bool) -> None:
        self._title = title
        self._times = _BoundsFormatter(clock)
        self._as_json = as_json
        self._known_texts: dict[bytes, str] = {}

    def print_packets(self, stream: Stream, head: int, *, timing: bool) -> bool:
        """Print at most `head` packets; return True if some bytes before them are no packet."""
        if self._title and not self._as_json:
            output.print_line(f"# {self._title}, {stream.size:,} bytes")
        gaps = False
        for batch in _packet_batches(stream, timing=timing):
            lines = self._json_lines(batch) if self._as_json else self._text_lines(batch)
            output.write_lines("".join(islice(lines, head)).encode())
            head -= len(batch)
            if head <= 0:
                break
            if batch.bad is not None:
                gaps = True
                self._print_bad_bytes(batch.bad)
        return gaps

    def _print_bad_bytes(self, item: BadBytes) -> None:
        if self._as_json:
            bad = {"offset": item.offset, "size": item.length, "error": item.reason}
            output.write_json({"stream": self._title, **bad})
        else:
            output.print_line(f"{item.offset:08x}  ({item.length} bytes) {item.reason}")

    def _text_lines(self, batch: Packets) -> Iterator[str]:
        offsets = batch.buffer("offset").tolist()
        texts = self._texts_of_packets(batch, offsets, describe)
        if not batch.extra_columns:
            return (f"{offset:08x}  {text}\n" for offset, text in zip(offsets, texts, strict=True))
        bounds = zip(batch.earliest.tolist(), batch.latest.tolist(), strict=True)
        return (
            f"{self._times.format_bounds(*times)} {offset:08x}  {text}\n"
            for times, offset, text in zip(bounds, offsets, texts, strict=True)
        )

    def _json_lines(self, batch: Packets) -> Iterator[str]:
        offsets = batch.buffer("offset").tolist()
        texts = self._texts_of_packets(batch, offsets, _describe_as_json)
        start = f'{{"stream": {format_json(self._title)}, "offset": '
        times = _times_as_json(batch)
        return (
            f"{start}{offset}, {text}{time}}}\n"
            for offset, text, time in zip(offsets, texts, times, strict=False)
        )

    def _texts_of_packets(
        self, batch: Packets, offsets: list[int], describe_packet: Callable[[Packet], str]
    ) -> Iterator[str]:
        """Return the text of each packet. Packets with equal bytes are described once."""
        known = self._known_texts
        packets = _bytes_of_packets(batch, offsets)
        if len(known) > _MAX_KNOWN_TEXTS:
            known.clear()
        for packet in set(packets) - known.keys():
            known[packet] = describe_packet(decode_whole_packet(packet))
        return map(known.__getitem__, packets)


class _BoundsFormatter:
    """Formats the times between which packets were written."""

    def __init__(self, clock: TimeConversion | None) -> None:
        self._clock = clock
        self._last_bounds = (-1, -1)
        self._last_bounds_text = ""

    def format_bounds(self, earliest: int, latest: int) -> str:
        """Return the earliest and the latest time in columns, `-` if unknown."""
        # packets without timing packets between them have the same bounds
        if (earliest, latest) != self._last_bounds:
            self._last_bounds = earliest, latest
            texts = self._format_ticks(earliest), self._format_ticks(latest)
            self._last_bounds_text = f"{texts[0]:>15} {texts[1]:>15}"
        return self._last_bounds_text

    def _format_ticks(self, ticks: int) -> str:
        from rtit.trace.tables.selection import LATEST

        if ticks in (0, LATEST):
            return "-"
        return str(ticks if self._clock is None else self._clock.to_nanoseconds(ticks))


class _StreamView:
    """The first packets of a stream as a table in HTML."""

    def __init__(self, stream: Stream, clock: TimeConversion | None, *, timing: bool) -> None:
        self._stream = stream
        self._timing = timing
        self._times = _BoundsFormatter(clock)
        self.has_bad_bytes = self._is_cut = False

    def lines(self, head: int) -> Iterator[str]:
        """Return the lines of at most `head` packets."""
        from rtit.packets.html import Lane, escape_text, lanes_note, unit_table

        # the states that packets alone determine
        lanes = (
            Lane("PSB+", "33.3.7"),
            Lane("overflow", "33.3.8"),
            Lane("PacketEn", "33.2.6.1"),
        )
        size = f", {self._stream.size:,} bytes" if self._stream.size else ""
        yield f"<h2>{escape_text(f'{self._stream.title}{size}')}</h2>"
        event = "offset, earliest and latest time" if self._timing else "offset"
        yield from unit_table(lanes, self._rows(head), event=event)
        if self._is_cut:
            yield f"<p>These are the first {head:,} packets. --head sets how many are shown.</p>"
        yield lanes_note(lanes, "packet")

    def _rows(self, head: int) -> Iterator[Row]:
        from rtit.linter.stream_state import IP_PACKETS, StreamState
        from rtit.packets.html import Row, line_element, packet_element

        state = StreamState()
        for batch in _packet_batches(self._stream, timing=self._timing):
            self._is_cut = head == 0
            if self._is_cut:
                return
            offsets = batch.buffer("offset").tolist()[:head]
            bounds = (
                zip(batch.earliest.tolist(), batch.latest.tolist(), strict=True)
                if self._timing
                else repeat(None)
            )
            packets = _bytes_of_packets(batch, batch.buffer("offset").tolist())
            for offset, raw, times in zip(offsets, packets, bounds, strict=False):
                packet = decode_whole_packet(raw)
                ip = state.ip_of_packet(packet) if packet.name in IP_PACKETS else None
                title = describe(packet).removeprefix(packet.name).strip()
                title = title if ip is None else f"{ip:#x}"
                state.apply_packet(packet, begins_event=False)
                where = f"{offset:08x}"
                if times is not None:
                    where += f" {' '.join(self._times.format_bounds(*times).split())}"
                values = state.psb_plus is not None, state.overflowed, state.tracing
                yield Row(f"<code>{where}</code>", values, [packet_element(packet, title)])
            self._is_cut = len(batch) > len(offsets)
            if self._is_cut:
                return
            head -= len(offsets)
            if batch.bad is not None:
                self.has_bad_bytes = True
                state = StreamState()
                bad = line_element(f"{batch.bad.length} bytes: {batch.bad.reason}", kind="extra")
                yield Row(f"<code>{batch.bad.offset:08x}</code>", (None, None, None), [bad])


def _packet_batches(stream: Stream, *, timing: bool) -> Iterator[Packets]:
    # packets show this erratum, if the processor is unknown
    errata = options.stream_errata(stream) or ("SKD007",)
    return stream.packets_with_bytes(timing=timing, errata=errata)


def _bytes_of_packets(batch: Packets, offsets: list[int]) -> list[bytes]:
    raw = batch.raw or b""
    start = offsets[0] if offsets else batch.end
    boundaries = pairwise([*(offset - start for offset in offsets), batch.end - start])
    return [raw[begin:end] for begin, end in boundaries]


def _describe_as_json(packet: Packet) -> str:
    """Return the fields after the offset, without the braces of the object."""
    fields = to_json(packet)
    del fields["offset"]
    return format_json(fields)[1:-1]


def _times_as_json(batch: Packets) -> Iterator[str]:
    """Return the time columns of each packet, as the end of a JSON object."""
    names = tuple(batch.extra_columns)
    if not names:
        return repeat("")
    rows = zip(*(batch.extra_columns[name].tolist() for name in names), strict=True)
    return (
        ", " + format_json(dict(zip(names, map(_none_if_nan, row), strict=True)))[1:-1]
        for row in rows
    )


def _none_if_nan(value: float) -> float | None:
    return None if math.isnan(value) else value
