"""`rtit convert`: a recording into bare PT and lists of its maps, or these into a recording."""

from __future__ import annotations

import argparse
import mmap
import os
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from rtit.cli import out
from rtit.cli.bare import add_raw, is_bare, numbers
from rtit.cli.gaps import EXIT_CODE
from rtit.cli.inputs import add_file, opened
from rtit.cli.selecting import add_streams, processor, selection
from rtit.errors import InputError, UsageError
from rtit.image.mappings import has_file
from rtit.perfdata import TimeConversion, Writer, rotate
from rtit.perfdata.attr import config_mask
from rtit.trace import Stream, Trace
from rtit.trace.settings import Settings, checked, cpu_named

_MAP = re.compile(r"([0-9a-f]+)-([0-9a-f]+) ([-r][-w][-x][-ps]) ([0-9a-f]+) \S+ \d+ +(/.*)")
_PROT = {"r": 1, "w": 2, "x": 4}
_PRIVATE = 2
_BUS_MHZ = 100
_SHIFT = 22
_THREAD = 1
_MOST = 1 << 20


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
    group = add_raw(parser)
    group.add_argument("--maps", metavar="FILE", help="what was mapped, as /proc/PID/maps has it")
    group.add_argument("-o", "--output", metavar="FILE", help="the recording to write")
    group.add_argument("--noretcomp", action="store_true", help="RETs were not compressed")
    for name, metavar in (("--mtc-freq", "N"), ("--nom-freq", "N"), ("--cpuid-15", "EAX,EBX")):
        group.add_argument(name, metavar=metavar, help="as `rtit instructions` has it")


def run(arguments: argparse.Namespace) -> int:
    """Convert one way or the other; 3 if the recording is not whole."""
    if is_bare(arguments):
        if arguments.output is None or arguments.maps is None or arguments.split is not None:
            raise UsageError("bare PT becomes a recording: --raw FILE --maps FILE -o FILE")
        _join(arguments)
        return 0
    if arguments.split is None or arguments.output is not None or arguments.maps is not None:
        raise UsageError("a recording becomes bare PT: FILE --split DIR")
    with opened(arguments) as trace:
        _split(trace, selection(arguments).streams(trace.streams), Path(arguments.split))
        if trace.incomplete is not None:
            out.complain("convert", f"{trace.path} is incomplete: {trace.incomplete}")
        return EXIT_CODE if trace.incomplete is not None else 0


def _split(trace: Trace, streams: list[Stream], folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for stream in streams:
        name = f"cpu{stream.cpu}" if stream.cpu >= 0 else f"thread{stream.tid}"
        path = folder / (f"{name}.{stream.part}.pt" if stream.part else f"{name}.pt")
        with path.open("xb") as file:
            for part in stream.parts():
                file.write(part)
        words = ["rtit", "instructions", "--raw", str(path), *_options(stream)]
        out.line(f"{stream.size:14,} bytes  {shlex.join(words)}")
    for pid, mappings in trace.mappings().items():
        lines = [
            f"{each.start:x}-{each.end:x} r-xp {each.offset:08x} 00:00 0 {each.path}\n"
            for each in mappings
            if has_file(each.path) and "\n" not in each.path
        ]
        if lines:
            with (folder / f"{pid}.maps").open("x", errors="surrogateescape") as file:
                file.writelines(lines)


def _options(stream: Stream) -> Iterator[str]:
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


class _Seen(NamedTuple):
    """Which packets of time there are, and the last TSC."""

    tsc: int
    mtc: bool
    cyc: bool


def _join(arguments: argparse.Namespace) -> None:
    maps = list(_maps(arguments.maps))
    mtc_freq, ratio, (eax, ebx) = numbers(arguments)
    checked(Settings(mtc_freq=mtc_freq, tsc_ctc=(ebx, eax), max_nonturbo_ratio=ratio))
    model = processor(arguments)
    cpu = cpu_named(model) if model is not None else ()
    raw = Path(arguments.raw)
    with raw.open("rb") as file:
        if not os.fstat(file.fileno()).st_size:
            raise InputError("there is no packet in it", source=str(raw), offset=0)
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as packets:
            seen = _look(packets)
            config = config_mask("pt") | config_mask("branch")
            for term, there in (("tsc", seen.tsc), ("mtc", seen.mtc), ("cyc", seen.cyc)):
                config |= config_mask(term) if there else 0
            config |= config_mask("noretcomp") if arguments.noretcomp else 0
            mhz = ratio * _BUS_MHZ or 1000
            rotate(arguments.output)
            with Writer(
                arguments.output,
                config=config | mtc_freq << 14,
                cpuid=",".join(["GenuineIntel", *map(str, cpu)]) if cpu else "",
                cmdline=["rtit", "convert", "--raw", str(raw)],
                time=TimeConversion(_SHIFT, (1000 << _SHIFT) // mhz, 0),
                tsc_ctc=(ebx, eax),
                max_nonturbo_ratio=ratio,
            ) as writer:
                writer.comm(_THREAD, _THREAD, 0, raw.name[:15], by_exec=True)
                for start, size, offset, prot, path in maps:
                    place = (start, size, offset, prot, _PRIVATE, 0, 0, 0, 0)
                    writer.mmap2(_THREAD, _THREAD, 0, *place, path)
                writer.itrace_start(_THREAD, _THREAD, 0)
                with memoryview(packets) as view:
                    writer.auxtrace(_THREAD, _THREAD, view, None, max(1, seen.tsc))
    out.line(f"{arguments.output}: thread {_THREAD}, {len(maps):,} mappings")


def _look(packets: mmap.mmap) -> _Seen:
    import numpy as np

    from rtit.trace.packets import KINDS
    from rtit.trace.packets import packets as columns

    tsc, mtc, cyc = (KINDS.index(name) for name in ("TSC", "MTC", "CYC"))
    seen = _Seen(0, mtc=False, cyc=False)
    with memoryview(packets) as view:
        parts = (view[at : at + _MOST] for at in range(0, len(view), _MOST))
        for part in columns(parts):
            times = part.payload[part.kind == tsc]
            last = int(times[-1]) if len(times) else seen.tsc
            has_mtc, has_cyc = (bool(np.any(part.kind == kind)) for kind in (mtc, cyc))
            seen = _Seen(last, mtc=seen.mtc or has_mtc, cyc=seen.cyc or has_cyc)
            del part
    return seen


def _maps(name: str) -> Iterator[tuple[int, int, int, int, str]]:
    """start, size, offset, prot and path of the files that may run. Raises InputError."""
    with Path(name).open(errors="surrogateescape") as file:
        offset = 0
        for line in file:
            found = _MAP.fullmatch(line.rstrip("\n"))
            if found is not None and "x" in found[3]:
                start, end = int(found[1], 16), int(found[2], 16)
                if not start < end < 1 << 64:
                    message = "a mapping without bytes"
                    raise InputError(message, source=name, offset=offset, value=found[0])
                prot = sum(_PROT.get(letter, 0) for letter in found[3])
                yield start, end - start, int(found[4], 16), prot, found[5]
            offset += len(line)
