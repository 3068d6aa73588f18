"""`rtit packets FILE`: one line for each packet."""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from rtit.cli import options, output
from rtit.cli.incomplete import IncompleteReport
from rtit.cli.parser import CommandParser
from rtit.cli.progress import show_progress
from rtit.errors import UsageError
from rtit.packets import BadBytes, Packet, describe, to_json

if TYPE_CHECKING:
    from rtit.perfdata import TimeConversion
    from rtit.trace import Stream

_EPILOG = """Examples:
  rtit packets | head -50
  rtit packets --timing --tid 1234 crash.data
  rtit packets --raw trace.pt --cpu-model 6/94/3
"""


def add_arguments(parser: CommandParser) -> None:
    """Declare the options."""
    parser.description = "List the packets of a trace, one per line, with offset, name and fields."
    parser.epilog = _EPILOG
    options.add_file_argument(parser)
    group = parser.add_argument_group("Output")
    options.add_timing_option(group, "packet")
    options.add_json_option(group)
    options.add_stream_options(parser)
    options.add_clock_and_start_options(options.add_raw_options(parser))
    parser.add_general_options(rare="the options for raw PT")


def run(arguments: argparse.Namespace) -> int:
    """Print the packets; return 3 if some bytes are no packet, or the file was cut."""
    if arguments.timing and arguments.raw is not None and options.is_raw_file_piped(arguments.raw):
        raise UsageError("--timing reads the packets twice, so --raw must name a file, not a pipe")
    with options.open_trace(arguments) as trace:
        gaps = IncompleteReport("packets", trace)
        streams = options.parse_selection(arguments).select_streams(trace.streams)
        with show_progress("packets", streams, prints=True):
            for stream in streams:
                # raw PT is one stream, which has no name and perhaps no size
                title = stream.title if arguments.raw is None else None
                printer = _PacketPrinter(title, trace.clock, as_json=arguments.json)
                if printer.print_all_packets(stream, timing=arguments.timing):
                    gaps.note_shown_gap()
        return gaps.exit_code()


class _PacketPrinter:
    """Prints the packets of a stream."""

    def __init__(self, title: str | None, clock: TimeConversion | None, *, as_json: bool) -> None:
        self._title = title
        self._clock = clock
        self._as_json = as_json

    def print_all_packets(self, stream: Stream, *, timing: bool) -> bool:
        """Print all packets; return True if some bytes are no packet."""
        if self._title and not self._as_json:
            output.print_line(f"# {self._title}, {stream.size:,} bytes")
        gaps = False
        times = _PacketTimes(stream) if timing else None
        # packets show this erratum, if the processor is unknown
        for item in stream.scan(options.stream_errata(stream) or ("SKD007",)):
            if isinstance(item, BadBytes):
                gaps = True
                self._print_bad_bytes(item)
            else:
                self._print_packet(item, None if times is None else times.times_of_packet(item))
        return gaps

    def _print_bad_bytes(self, item: BadBytes) -> None:
        if self._as_json:
            bad = {"offset": item.offset, "size": item.length, "error": item.reason}
            output.write_json({"stream": self._title, **bad})
        else:
            output.print_line(f"{item.offset:08x}  ({item.length} bytes) {item.reason}")

    def _print_packet(self, packet: Packet, times: dict[str, Any] | None) -> None:
        if self._as_json:
            row = times or {}
            if math.isnan(row.get("frequency", 0)):
                row = row | {"frequency": None}
            output.write_json({"stream": self._title, **to_json(packet), **row})
        elif times is None:
            output.print_line(f"{packet.offset:08x}  {describe(packet)}")
        else:
            bounds = times["earliest"], times["latest"]
            when = " ".join(f"{self._format_ticks(each):>15}" for each in bounds)
            output.print_line(f"{when} {packet.offset:08x}  {describe(packet)}")

    def _format_ticks(self, ticks: int) -> str:
        from rtit.trace.tables.selection import LATEST

        if ticks in (0, LATEST):
            return "-"
        return str(ticks if self._clock is None else self._clock.to_nanoseconds(ticks))


class _PacketTimes:
    """The times of packets, which are looked up in stream order."""

    def __init__(self, stream: Stream) -> None:
        self._rows = _read_packet_times(stream)
        self._offset = -1
        self._times: dict[str, Any] = {}

    def times_of_packet(self, packet: Packet) -> dict[str, Any]:
        """Return the times of this packet, or of the next that has some.

        `Stream.packets` reads bytes that an erratum has corrupted in another way.
        """
        while self._offset < packet.offset:
            following = next(self._rows, None)
            if following is None:
                break
            self._offset, self._times = following
        return self._times


def _read_packet_times(stream: Stream) -> Iterator[tuple[int, dict[str, Any]]]:
    from rtit.trace.tables.packets import PACKET_BOUND_COLUMNS

    for batch in stream.packets(timing=True):
        columns = batch.columns()
        rows = zip(*(columns[name].tolist() for name in PACKET_BOUND_COLUMNS), strict=True)
        for offset, times in zip(columns["offset"].tolist(), rows, strict=True):
            yield offset, dict(zip(PACKET_BOUND_COLUMNS, times, strict=True))
