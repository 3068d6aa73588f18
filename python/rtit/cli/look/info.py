"""`rtit info FILE`: machine, settings, buffers and files of a recording; nothing is decoded."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from rtit.cli import options, output
from rtit.cli.incomplete import EXIT_CODE
from rtit.cli.parser import CommandParser
from rtit.errors import UnsupportedError, UsageError

if TYPE_CHECKING:
    from rtit.perfdata import TimeConversion
    from rtit.trace import Trace
    from rtit.trace.recording.aux_buffers import BufferSummary
    from rtit.trace.recording.summary import RecordingSummary

_MOST = 40
_MOST_THREADS = 12

_EPILOG = """Examples:
  rtit info crash.data
  rtit info --at 1.5s
"""


def add_arguments(parser: CommandParser) -> None:
    """Declare the options."""
    parser.description = "Show the machine, settings, trace buffers and files of a recording."
    parser.epilog = _EPILOG
    options.add_file_argument(parser)
    group = parser.add_argument_group("Output")
    options.add_value_option(
        group,
        "--at",
        "TIME",
        "Only convert TIME from TSC to perf's clock, or from perf's clock to TSC. TIME is a TSC "
        "value, or a time of perf's clock such as 5ns or 1.5s",
    )
    options.add_json_option(group, "Print one JSON object")
    options.add_image_options(parser)
    options.add_raw_options(parser)
    parser.add_general_options(rare=options.RARE)


def run(arguments: argparse.Namespace) -> int:
    """Print the summary; return 3 if something is missing or lost."""
    from rtit.trace.recording.summary import summarize_recording

    with options.open_trace(arguments) as trace:
        if arguments.at is not None:
            _print_converted_time(trace, arguments.at, as_json=arguments.json)
            return 0
        found = summarize_recording(trace)
        if arguments.json:
            from dataclasses import asdict

            output.write_json(asdict(found), indent=2)
        else:
            _print_summary(trace, found)
    return EXIT_CODE if found.losses or found.missing else 0


def _print_converted_time(trace: Trace, text: str, *, as_json: bool) -> None:
    from rtit.trace.recording.decoder_settings import format_seconds

    clock = trace.clock
    if clock is None:
        raise UnsupportedError(f"{trace.path} has no conversion between TSC and perf's clock")
    tsc, nanoseconds = _parse_tsc_or_nanoseconds(text, clock)
    if as_json:
        output.write_json({"tsc": tsc, "nanoseconds": nanoseconds})
    else:
        output.print_line(f"TSC    {tsc} ({tsc:#x})")
        output.print_line(f"perf   {format_seconds(nanoseconds)} s")


def _parse_tsc_or_nanoseconds(text: str, clock: TimeConversion) -> tuple[int, int]:
    """Return a time as TSC value and as nanoseconds. Raises UsageError."""
    from decimal import Decimal

    number, unit = (text[:-2], 1) if text.endswith("ns") else (text[:-1], 10**9)
    try:
        if not text.endswith("s"):
            tsc = int(text, 0)
            found = tsc, clock.to_nanoseconds(tsc)
        else:
            exact = Decimal(number) * unit
            when = int(exact) if abs(exact) < 1 << 64 else -1
            found = clock.to_tsc(when), when
    except (ValueError, ArithmeticError):
        raise UsageError(
            f"--at {text}: expected a TSC value, or a time such as 5ns or 1.5s"
        ) from None
    if not all(0 <= each < 1 << 64 for each in found):
        raise UsageError(f"--at {text}: a time must fit in 64 bits")
    return found


def _print_summary(trace: Trace, found: RecordingSummary) -> None:
    output.print_line(found.path)
    for name, text in found.machine.items():
        output.print_line(f"  {name + ':' if name else '':12} {text}")
    _print_titled_list("traced", found.settings)
    sizes = sum(each.size for each in found.buffers)
    output.print_line()
    output.print_line(f"{'bytes of PT':>14} {'PSBs':>9} {'ms':>12}  {len(found.buffers)} buffers")
    for each in found.buffers[:_MOST]:
        output.print_line(
            f"{each.size:14,} {each.psbs:9,} {_format_milliseconds(trace, each):>12}  {each.title}"
        )
        _print_thread_sizes(each)
    if len(found.buffers) > 1:
        rest = len(found.buffers) - _MOST
        more = f", {rest:,} more than are listed" if rest > 0 else ""
        output.print_line(f"{sizes:14,} {'':9} {'':12}  all{more}")
    _print_titled_list("lost", found.losses)
    known = len(found.files) - len(found.missing)
    _print_titled_list(
        f"code: {known:,} of {len(found.files):,} files are known",
        [
            f"{each.path} (build id {each.build_id or 'not known'})"
            + (f": {each.problem}" if each.problem is not None else "")
            for each in sorted(found.files, key=lambda each: each.problem is None)
        ],
    )
    _print_titled_list("advice", found.hints)


def _print_thread_sizes(buffer: BufferSummary) -> None:
    """Print the bytes of each thread, the largest first, unless the title names the thread."""
    if all(each.title in buffer.title for each in buffer.threads):
        return
    for each in buffer.threads[:_MOST_THREADS]:
        output.print_line(f"{each.size:14,} {'':9} {'':12}    {each.title}")
    rest = buffer.threads[_MOST_THREADS:]
    if rest:
        size, count = sum(each.size for each in rest), sum(each.threads for each in rest)
        output.print_line(f"{size:14,} {'':9} {'':12}    {count:,} more")


def _format_milliseconds(trace: Trace, each: BufferSummary) -> str:
    if each.first is None or each.last is None or each.first == each.last or not trace.clock:
        return "-"
    return f"{(each.last - each.first) / 1e6:,.3f}"


def _print_titled_list(title: str, texts: list[str]) -> None:
    if texts or title.startswith("code"):
        output.print_line()
        output.print_line(f"{title}:" if texts else title)
    for text in texts[:_MOST]:
        output.print_line(f"  {text}")
    if len(texts) > _MOST:
        output.print_line(f"  ... and {len(texts) - _MOST:,} more")
