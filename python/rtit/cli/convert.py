"""`rtit convert`: a recording into bare PT and lists of its maps, or these into a recording."""

from __future__ import annotations

import argparse
import os
import shlex
from collections.abc import Iterable, Iterator
from io import BufferedWriter
from pathlib import Path
from typing import TYPE_CHECKING

from rtit.capture.private import create
from rtit.cli import out
from rtit.cli.bare import add_raw, is_bare
from rtit.cli.gaps import EXIT_CODE
from rtit.cli.inputs import add_file, opened
from rtit.cli.selecting import add_streams, selection
from rtit.errors import UsageError

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from rtit.trace import Stream, Trace


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add_file(parser)
    add_streams(parser)
    parser.add_argument(
        "--split",
        metavar="DIR",
        help="write the packets of each buffer into this folder, NAME.pt, and what each process "
        "had mapped, PID.maps, as /proc/PID/maps has it",
    )
    parser.add_argument(
        "--griffin",
        metavar="LOG",
        help="a log of Griffin's kernel, PT and pages of code, becomes a recording (-o FILE)",
    )
    group = add_raw(parser)
    group.add_argument("--maps", metavar="FILE", help="what was mapped, as /proc/PID/maps has it")
    group.add_argument("-o", "--output", metavar="FILE", help="the recording to write")
    group.add_argument("--noretcomp", action="store_true", help="RETs were not compressed")
    for name, metavar in (("--mtc-freq", "N"), ("--nom-freq", "N"), ("--cpuid-15", "EAX,EBX")):
        group.add_argument(name, metavar=metavar, help="as `rtit instructions` has it")


def run(arguments: argparse.Namespace) -> int:
    """Convert one way or the other; 3 if the recording is not whole."""
    if arguments.griffin is not None:
        others = (arguments.raw, arguments.maps, arguments.split, arguments.file, arguments.input)
        if arguments.output is None or any(each is not None for each in others):
            raise UsageError("a log becomes a recording: --griffin LOG -o FILE")
        from rtit.cli.joining import join_griffin

        return join_griffin(arguments)
    if is_bare(arguments):
        if arguments.output is None or arguments.maps is None or arguments.split is not None:
            raise UsageError("bare PT becomes a recording: --raw FILE --maps FILE -o FILE")
        from rtit.cli.joining import join

        join(arguments)
        return 0
    if arguments.split is None or arguments.output is not None or arguments.maps is not None:
        raise UsageError("a recording becomes bare PT: FILE --split DIR")
    with opened(arguments) as trace:
        _split(trace, selection(arguments).streams(trace.streams), Path(arguments.split))
        if trace.incomplete is not None:
            out.complain("convert", f"{trace.path} is incomplete: {trace.incomplete}")
        return EXIT_CODE if trace.incomplete is not None else 0


def _split(trace: Trace, streams: list[Stream], folder: Path) -> None:
    from rtit.image.mappings import has_file

    folder.mkdir(parents=True, exist_ok=True)
    for stream in streams:
        name = f"cpu{stream.cpu}" if stream.cpu >= 0 else f"thread{stream.tid}"
        path = folder / (f"{name}.{stream.part}.pt" if stream.part else f"{name}.pt")
        _make(path, stream.parts())
        words = ["rtit", "instructions", "--raw", str(path), *_options(stream)]
        out.line(f"{stream.size:14,} bytes  {shlex.join(words)}")
    for pid, mappings in trace.mappings().items():
        lines = [
            f"{each.start:x}-{each.end:x} r-xp {each.offset:08x} 00:00 0 {each.path}\n"
            for each in mappings
            if has_file(each.path) and "\n" not in each.path
        ]
        if lines:
            _make(folder / f"{pid}.maps", map(os.fsencode, lines))


def _make(path: Path, parts: Iterable[Buffer]) -> None:
    """A file that was not there; the whole of it or nothing."""
    path.touch(exist_ok=False)
    try:
        with BufferedWriter(create(path)) as file:
            file.writelines(parts)
    except BaseException:
        path.unlink()
        raise


def _options(stream: Stream) -> Iterator[str]:
    from rtit.trace.settings import Settings

    settings = stream.settings
    if not isinstance(settings, Settings):
        return
    if settings.cpu is not None:
        yield from ("--cpu", "/".join(map(str, settings.cpu)))
    ebx, eax = settings.tsc_ctc
    if ebx and eax:
        yield from ("--mtc-freq", str(settings.mtc_freq), "--cpuid-15", f"{eax},{ebx}")
    if settings.max_nonturbo_ratio:
        yield from ("--nom-freq", str(settings.max_nonturbo_ratio))
