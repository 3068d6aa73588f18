"""`rtit convert`: splits a recording into raw PT and maps, or joins them."""

from __future__ import annotations

import argparse
import os
import shlex
from collections.abc import Iterable, Iterator
from io import BufferedWriter
from pathlib import Path
from typing import TYPE_CHECKING

from rtit.capture.output_files import create_private_file
from rtit.cli import options, output
from rtit.cli.incomplete import EXIT_CODE
from rtit.cli.parser import CommandParser
from rtit.cli.progress import show_progress
from rtit.errors import UsageError

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from rtit.trace import Stream, Trace

_EPILOG = """Examples:
  rtit convert --split parts perf.data
  rtit convert --raw thread7.pt --maps 7.maps -o perf.data
  rtit convert --griffin griffin.log -o perf.data
"""


def add_arguments(parser: CommandParser) -> None:
    """Declare the options."""
    parser.usage = (
        "rtit convert [options] --split DIR [FILE]\n"
        "       rtit convert [options] --raw FILE --maps FILE -o FILE\n"
        "       rtit convert [options] --griffin LOG -o FILE"
    )
    parser.epilog = _EPILOG
    options.add_file_argument(parser)
    group = parser.add_argument_group("Split a recording")
    options.add_value_option(
        group,
        "--split",
        "DIR",
        "Write the packets of each thread or CPU to DIR/threadTID.pt or DIR/cpuN.pt. Write the "
        "memory mappings of each process to DIR/PID.maps, in the format of /proc/PID/maps",
    )
    options.add_stream_options(parser)
    group = parser.add_argument_group("Make a recording")
    group.add_argument("-o", "--output", metavar="FILE", help="The recording to write")
    options.add_value_option(
        group,
        "--raw",
        "FILE",
        "File with only the PT packets of one logical processor",
    )
    options.add_value_option(
        group,
        "--maps",
        "FILE",
        "Memory mappings of the process whose packets are in the --raw file, in the format of "
        "/proc/PID/maps",
    )
    options.add_value_option(
        group,
        "--griffin",
        "LOG",
        "Log file of Griffin, a kernel module that records the PT packets of each thread, and the "
        "executed pages of code",
    )
    group = parser.add_rare_group("Settings of the trace, with --raw or --griffin")
    options.add_cpu_model_option(group)
    options.add_flag_option(
        group, "--noretcomp", "The trace was recorded with DisRETC=1 (no RET compression)"
    )
    options.add_clock_options(group)
    parser.add_general_options(
        rare="the options that describe the trace: CPU model, clocks, RET compression"
    )


def run(arguments: argparse.Namespace) -> int:
    """Convert one way or the other; return 3 if the recording is incomplete."""
    if arguments.griffin is not None:
        others = (arguments.raw, arguments.maps, arguments.split, arguments.file, arguments.input)
        if arguments.output is None or any(each is not None for each in others):
            raise UsageError("--griffin needs -o, and no other input")
        from rtit.cli.move.assemble import assemble_griffin

        return assemble_griffin(arguments)
    if options.is_raw_requested(arguments):
        if arguments.output is None or arguments.maps is None or arguments.split is not None:
            raise UsageError("--raw needs --maps and -o, and no --split")
        from rtit.cli.move.assemble import assemble_recording

        assemble_recording(arguments)
        return 0
    if arguments.split is None or arguments.output is not None or arguments.maps is not None:
        raise UsageError("a recording needs --split DIR, and no -o or --maps")
    with options.open_trace(arguments) as trace:
        streams = options.parse_selection(arguments).select_streams(trace.streams)
        with show_progress("convert", streams, prints=False):
            _write_stream_files(trace, streams, Path(arguments.split))
        if trace.incomplete is not None:
            output.print_error("convert", f"{trace.path} is incomplete: {trace.incomplete}")
        return EXIT_CODE if trace.incomplete is not None else 0


def _write_stream_files(trace: Trace, streams: list[Stream], folder: Path) -> None:
    from rtit.image.mappings import has_file

    folder.mkdir(parents=True, exist_ok=True)
    for stream in streams:
        name = f"cpu{stream.cpu}" if stream.cpu >= 0 else f"thread{stream.tid}"
        path = folder / (f"{name}.{stream.part}.pt" if stream.part else f"{name}.pt")
        _write_new_file(path, stream.chunks())
        words = ["rtit", "instructions", "--raw", str(path), *_command_options_of_stream(stream)]
        words += _code_options(trace, stream)
        output.print_line(f"{stream.size:14,} bytes  {shlex.join(words)}")
    for pid, mappings in trace.mappings().items():
        lines = [
            f"{each.start:x}-{each.end:x} r-xp {each.offset:08x} 00:00 0 {each.path}\n"
            for each in mappings
            if has_file(each.path) and "\n" not in each.path
        ]
        if lines:
            _write_new_file(folder / f"{pid}.maps", map(os.fsencode, lines))


def _write_new_file(path: Path, parts: Iterable[Buffer]) -> None:
    """Write a new file; remove it if it cannot be written whole."""
    path.touch(exist_ok=False)
    try:
        with BufferedWriter(create_private_file(path)) as file:
            file.writelines(parts)
    except BaseException:
        path.unlink()
        raise


def _code_options(trace: Trace, stream: Stream) -> list[str]:
    """Return --elf for each file with code; none for a stream of several processes."""
    from rtit.image import has_file, load_bias
    from rtit.image.image import PAGE

    [(pid, _), *_] = stream.thread_ids
    if pid < 0 or not stream.has_one_process:
        return []
    options: dict[str, None] = {}
    for each in trace.images.mappings(pid):
        symbols = None
        if has_file(each.path) and each.problem is None:
            symbols = trace.images.files.symbols(each.path, each.build_id)
        if symbols is None:
            continue
        elf = symbols.elf
        bias = load_bias(elf, each.offset, each.end - each.start, each.start)
        if bias is not None:
            first = min(address for _, address, size, *_ in elf.segments if size) & -PAGE
            options[f"{each.path}@{first + bias:x}"] = None
    return [word for option in options for word in ("--elf", option)]


def _command_options_of_stream(stream: Stream) -> Iterator[str]:
    from rtit.trace.recording.decoder_settings import Settings

    settings = stream.settings
    if not isinstance(settings, Settings):
        return
    if settings.cpu is not None:
        yield from ("--cpu-model", "/".join(map(str, settings.cpu)))
    ebx, eax = settings.tsc_ctc
    if ebx and eax:
        yield from ("--mtc-freq", str(settings.mtc_freq), "--cpuid-15", f"{eax},{ebx}")
    if settings.max_nonturbo_ratio:
        yield from ("--nom-freq", str(settings.max_nonturbo_ratio))
    if settings.ranges:
        ranges = [f"filter {first:#x}/{last - first + 1:#x}" for first, last in settings.ranges]
        yield from ("--filter", ",".join(ranges))
    if settings.no_tnt:
        yield "--notnt"
    if settings.no_retcomp:
        yield "--noretcomp"
