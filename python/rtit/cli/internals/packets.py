"""`rtit packets FILE`: one line for each packet."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Iterator
from itertools import pairwise, repeat
from typing import TYPE_CHECKING

from rtit.cli import options, output
from rtit.cli.incomplete import IncompleteReport
from rtit.cli.parser import CommandParser
from rtit.cli.progress import show_progress
from rtit.packets import BadBytes, Packet, decode, describe, to_json
from rtit.packets.table import BLOCK_ITEM
from rtit.text_escaping import format_json

if TYPE_CHECKING:
    from rtit.perfdata import TimeConversion
    from rtit.trace import Packets, Stream

_MAX_KNOWN_TEXTS = 1 << 16

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
        self._known_texts: dict[bytes, str] = {}
        self._last_bounds = (-1, -1)
        self._last_bounds_text = ""

    def print_all_packets(self, stream: Stream, *, timing: bool) -> bool:
        """Print all packets; return True if some bytes are no packet."""
        if self._title and not self._as_json:
            output.print_line(f"# {self._title}, {stream.size:,} bytes")
        gaps = False
        # packets show this erratum, if the processor is unknown
        errata = options.stream_errata(stream) or ("SKD007",)
        for batch in stream.packets_with_bytes(timing=timing, errata=errata):
            lines = self._json_lines(batch) if self._as_json else self._text_lines(batch)
            output.write_lines("".join(lines).encode())
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
            f"{self._format_bounds(*times)} {offset:08x}  {text}\n"
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
        known, raw = self._known_texts, batch.raw or b""
        start = offsets[0] if offsets else batch.end
        boundaries = pairwise([*(offset - start for offset in offsets), batch.end - start])
        packets = [raw[begin:end] for begin, end in boundaries]
        if len(known) > _MAX_KNOWN_TEXTS:
            known.clear()
        for packet in set(packets) - known.keys():
            known[packet] = describe_packet(_decode_packet(packet))
        return map(known.__getitem__, packets)

    def _format_bounds(self, earliest: int, latest: int) -> str:
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


def _describe_as_json(packet: Packet) -> str:
    """Return the fields after the offset, without the braces of the object."""
    fields = to_json(packet)
    del fields["offset"]
    return format_json(fields)[1:-1]


def _decode_packet(raw: bytes) -> Packet:
    """Decode the bytes of one packet. Only a block item (BIP) has a first byte with these bits and
    is longer than a TNT.
    """
    is_item = len(raw) > 1 and raw[0] & BLOCK_ITEM.mask[0] == BLOCK_ITEM.header[0]
    return decode(raw, in_block=(4 if len(raw) == 5 else 8) if is_item else None)


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
