"""`rtit packets FILE`: the packets of every stream, one a line."""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from rtit.cli import out
from rtit.cli.bare import add_numbers, add_raw, is_piped
from rtit.cli.gaps import Gaps
from rtit.cli.inputs import add_file, opened
from rtit.cli.selecting import add_streams, selection
from rtit.cli.tabular import add_timing
from rtit.cli.watching import watched
from rtit.errors import RtitError, UsageError
from rtit.packets import BadBytes, Packet, describe, to_json

if TYPE_CHECKING:
    from rtit.perfdata import TimeConversion
    from rtit.trace import Stream


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add_file(parser)
    add_streams(parser)
    raw = add_raw(parser)
    add_numbers(raw)
    add_timing(parser)
    parser.add_argument("--json", action="store_true", help="one JSON object a line")


def run(arguments: argparse.Namespace) -> int:
    """Print the packets; 3 if some bytes are no packet, or the file was cut."""
    if arguments.timing and arguments.raw is not None and is_piped(arguments.raw):
        raise UsageError("--timing reads the packets twice: --raw takes a file then, no pipe")
    with opened(arguments) as trace:
        gaps = Gaps("packets", trace)
        streams = selection(arguments).streams(trace.streams)
        with watched("packets", streams, prints=True):
            for stream in streams:
                # bare PT is one stream, which has no name and perhaps no size
                title = stream.title if arguments.raw is None else None
                show = _Shown(title, trace.clock, as_json=arguments.json)
                if show.all(stream, timing=arguments.timing):
                    gaps.noted()
        return gaps.exit_code()


class _Shown:
    """The packets of a stream as lines."""

    def __init__(self, title: str | None, clock: TimeConversion | None, *, as_json: bool) -> None:
        from rtit.trace.selection import LATEST

        self._unknown_times = (0, LATEST)
        self._title = title
        self._clock = clock
        self._as_json = as_json

    def all(self, stream: Stream, *, timing: bool) -> bool:
        """Print them; True if some bytes are none."""
        if self._title and not self._as_json:
            out.line(f"# {self._title}, {stream.size:,} bytes")
        gaps = False
        times = _Times(stream) if timing else None
        for item in stream.scan(_errata(stream)):
            if isinstance(item, BadBytes):
                gaps = True
                self._bad(item)
            else:
                self._packet(item, None if times is None else times.of(item))
        return gaps

    def _bad(self, item: BadBytes) -> None:
        if self._as_json:
            bad = {"offset": item.offset, "size": item.length, "error": item.reason}
            out.document({"stream": self._title, **bad})
        else:
            out.line(f"{item.offset:08x}  ({item.length} bytes) {item.reason}")

    def _packet(self, packet: Packet, times: dict[str, Any] | None) -> None:
        if self._as_json:
            told = times or {}
            if math.isnan(told.get("frequency", 0)):
                told = told | {"frequency": None}
            out.document({"stream": self._title, **to_json(packet), **told})
        elif times is None:
            out.line(f"{packet.offset:08x}  {describe(packet)}")
        else:
            bounds = times["earliest"], times["latest"]
            when = " ".join(f"{self._time(each):>15}" for each in bounds)
            out.line(f"{when} {packet.offset:08x}  {describe(packet)}")

    def _time(self, ticks: int) -> str:
        if ticks in self._unknown_times:
            return "-"
        return str(ticks if self._clock is None else self._clock.to_nanoseconds(ticks))


def _errata(stream: Stream) -> tuple[str, ...]:
    """The errata that the decoder reckons with in packets."""
    from rtit.registers.errata import errata_of

    settings = stream.settings
    cpu = None if isinstance(settings, RtitError) else settings.cpu
    listed = errata_of(*cpu[:2]) if cpu is not None else ()
    # of a processor that is not known: this one shows in the packets alone
    return listed or ("SKD007",)


class _Times:
    """The times of packets, asked for in order."""

    def __init__(self, stream: Stream) -> None:
        self._rows = _times(stream)
        self._offset = -1
        self._times: dict[str, Any] = {}

    def of(self, packet: Packet) -> dict[str, Any]:
        """Those of this packet, or of the next that has some: `Stream.packets` reads bytes that
        an erratum has spoiled in another way.
        """
        while self._offset < packet.offset:
            following = next(self._rows, None)
            if following is None:
                break
            self._offset, self._times = following
        return self._times


def _times(stream: Stream) -> Iterator[tuple[int, dict[str, Any]]]:
    from rtit.trace.packets import TIMED

    for batch in stream.packets(timing=True):
        columns = batch.columns()
        rows = zip(*(columns[name].tolist() for name in TIMED), strict=True)
        for offset, times in zip(columns["offset"].tolist(), rows, strict=True):
            yield offset, dict(zip(TIMED, times, strict=True))
