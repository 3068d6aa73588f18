"""`rtit instructions FILE`: one line an instruction that ran."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator

from rtit.cli.inputs import add_file, add_images, opened
from rtit.cli.selecting import add_streams, selection
from rtit.errors import UsageError
from rtit.trace import Stream, Trace

FIELDS = ("ip", "tid", "time", "sym", "asm")
_DEFAULT = "tid,ip,sym,asm"
_LONGEST = 15


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add_file(parser)
    add_streams(parser)
    add_images(parser)
    parser.add_argument(
        "--fields",
        default=_DEFAULT,
        metavar="LIST",
        help=f"what to print, of {','.join(FIELDS)} (default: {_DEFAULT}); "
        "time is the TSC estimate in nanoseconds at the start of the run, a lower bound",
    )


def run(arguments: argparse.Namespace) -> int:
    """Print the instructions; 3 if something could not be decoded."""
    fields = parse_fields(arguments.fields)
    gaps = False
    with opened(arguments) as trace:
        for stream in selection(arguments).streams(trace.streams):
            lines = Lines(trace, stream, fields)
            for line in lines:
                sys.stdout.write(line)
            for span in stream.ledger():
                if span.kind != "exact":
                    gaps = True
                    print(f"rtit instructions: {stream.title}: {span}", file=sys.stderr)
        for problem in trace.image_problems:
            print(f"rtit instructions: {problem}", file=sys.stderr)
            gaps = True
    return 3 if gaps else 0


def parse_fields(text: str) -> list[str]:
    """The fields named. Raises UsageError for others."""
    fields = [name.strip() for name in text.split(",") if name.strip()]
    for name in fields:
        if name not in FIELDS:
            raise UsageError(f"no field {name!r}; the fields are {', '.join(FIELDS)}")
    if not fields:
        raise UsageError(f"no field given; the fields are {', '.join(FIELDS)}")
    return fields


class Lines:
    """The lines of one stream. What an address is called and reads is looked up once for each
    run's place and time.
    """

    def __init__(self, trace: Trace, stream: Stream, fields: list[str]) -> None:
        self._trace = trace
        self._stream = stream
        makers: dict[str, Callable[[int, int], str]] = {
            "ip": lambda ip, _time: f"{ip:16x}",
            "tid": lambda _ip, _time: f"{stream.tid:7}",
            "time": lambda _ip, time: f"{self._nanoseconds(time):15}",
            "sym": self._symbol,
            "asm": self._assembly,
        }
        self._makers = [makers[name] for name in fields]
        self._texts: dict[tuple[int, bytes], str] = {}
        self._convert = trace.data.time_conversion

    def __iter__(self) -> Iterator[str]:
        makers = self._makers
        for ips, times in self._stream.instructions():
            for ip, time in zip(ips.tolist(), times.tolist(), strict=True):
                yield " ".join([make(ip, time) for make in makers]) + "\n"

    def _nanoseconds(self, time: int) -> int:
        return self._convert.to_nanoseconds(time) if self._convert is not None else time

    def _symbol(self, ip: int, time: int) -> str:
        return f"{self._trace.symbols.lookup(self._stream.tid, time, ip)!s:32}"

    def _assembly(self, ip: int, time: int) -> str:
        from rtit._core import disassemble

        code = self._trace.images.space(self._stream.tid).read(time, ip, _LONGEST)
        key = (ip, code)
        text = self._texts.get(key)
        if text is None:
            text = self._texts[key] = disassemble(code, ip)
        return text
