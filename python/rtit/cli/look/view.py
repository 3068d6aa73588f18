"""`rtit view FILE`: a page about a recording, in a file or served to a browser."""

from __future__ import annotations

import argparse
from itertools import count
from typing import TYPE_CHECKING

from rtit.cli import options, output
from rtit.cli.incomplete import EXIT_CODE
from rtit.cli.parser import CommandParser
from rtit.cli.progress import show_progress

if TYPE_CHECKING:
    from rtit.trace import Selection, Trace
    from rtit.views.page.page_data import PageData

_EPILOG = """With -o, the page is one HTML file of less than 15 MB, which needs no other file.
Without -o, rtit serves the page to browsers on this machine until Ctrl-C, at an
address with a secret token.

Examples:
  rtit view
  rtit view -o page.html
  rtit view --comm worker -o page.html crash.data
"""
_PERFETTO_CALLS, _PERFETTO_DEPTH = 1_000_000, 500
"""Limits of the timeline for Perfetto: the defaults of `rtit timeline`."""


def add_arguments(parser: CommandParser) -> None:
    """Declare the options."""
    parser.description = (
        "Show a recording in a browser: lost data, calls, functions, annotated code and coverage."
    )
    parser.epilog = _EPILOG
    options.add_file_argument(parser)
    group = parser.add_argument_group("Output")
    options.add_value_option(
        group, "-o", "FILE", "Write the page to FILE (default: serve the page)", dest="output"
    )
    options.add_dso_option(group, "the program; the option limits only the coverage")
    options.add_stream_options(parser)
    options.add_common_reading_options(parser, jobs=options.MANY_JOBS)


def run(arguments: argparse.Namespace) -> int:
    """Write or serve the page; return 3 if something could not be decoded."""
    from rtit.views.page.page_data import PASSES, collect_page_data
    from rtit.views.page.rendering import render_page

    with options.open_trace(arguments) as trace:
        where = options.parse_selection(arguments)
        numbers = count(1)
        data = collect_page_data(
            trace,
            where,
            arguments.dso,
            lambda streams: show_progress(
                f"view, pass {next(numbers)} of {PASSES}", streams, prints=False
            ),
        )
        if arguments.output is not None:
            output.write_file_or_stdout(arguments.output, [render_page(data, trace.path)])
        else:
            _serve(trace, where, data)
    return EXIT_CODE if data.has_gaps else 0


def _serve(trace: Trace, where: Selection | None, data: PageData) -> None:
    from rtit.cli.browser import serve_until_interrupted
    from rtit.errors import UnsupportedError
    from rtit.views.page.page_server import ServedPage, serve_page
    from rtit.views.page.rendering import render_page
    from rtit.views.page.single_instructions import single_instructions
    from rtit.views.perfetto_server import perfetto_folder
    from rtit.views.timeline import collect_calls, perfetto_trace

    def make_timeline() -> bytes:
        calls = collect_calls(trace, where, max_calls=_PERFETTO_CALLS, max_depth=_PERFETTO_DEPTH)
        return b"".join(perfetto_trace(calls, trace))

    try:
        perfetto_folder()
        served = "perfetto"
    except UnsupportedError:
        served = "file"
    page = render_page(data, trace.path, served=served)
    content = ServedPage(
        page,
        make_timeline,
        lambda *which: single_instructions(trace, *which),
        has_perfetto=served == "perfetto",
    )
    server, url = serve_page(content)
    serve_until_interrupted(server, "page", url)
