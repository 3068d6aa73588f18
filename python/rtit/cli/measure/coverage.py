"""`rtit coverage FILE...`: which lines, branches and blocks of a program ran."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from rtit import __version__
from rtit.cli import options, output
from rtit.cli.incomplete import EXIT_CODE
from rtit.cli.parser import CommandParser
from rtit.cli.progress import show_progress
from rtit.errors import UsageError

if TYPE_CHECKING:
    from rtit.coverage.file_coverage import Coverage, FileCoverage

_FORMATS = ("text", "html", "lcov", "cobertura", "drcov", "afl")

_EPILOG = """If a source line has code at several addresses, the count of the line is the highest
count of these addresses. Instances of a template, and inlined calls, are copies of the same line:
rtit adds up the counts of the copies. Branch coverage counts the two outcomes, taken and not taken,
of each conditional branch instruction.

Examples:
  rtit coverage
  rtit coverage --format lcov -o coverage.info first.data second.data
"""


def add_arguments(parser: CommandParser) -> None:
    """Declare the options."""
    parser.usage = "rtit coverage [options] [FILE...]"
    parser.description = "Show which lines, branches and blocks of the program ran."
    parser.epilog = _EPILOG
    parser.add_argument_group().add_argument(
        "files",
        nargs="*",
        metavar="FILE",
        help="Recordings to read; the report combines their coverage (default: perf.data)",
    )
    group = parser.add_argument_group("Output")
    group.add_argument(
        "--format",
        choices=_FORMATS,
        default="text",
        help="Format of the report. text: tables; html: one web page; lcov: input of genhtml; "
        "cobertura: Cobertura XML; drcov: block list of DynamoRIO; afl: edge bitmap of AFL "
        "(default: text)",
    )
    options.add_output_option(group)
    options.add_dso_option(group, "the program")
    options.add_list_option(
        group,
        "--diff-from",
        "BASE",
        "Show only code that did not run in the recording BASE; may be repeated",
    )
    options.add_stream_options(parser)
    options.add_max_edges_option(parser)
    options.add_common_reading_options(parser, jobs=options.MANY_JOBS)


def run(arguments: argparse.Namespace) -> int:
    """Write the coverage; return 3 if something could not be decoded."""
    raw = options.is_raw_requested(arguments)
    if raw and arguments.files:
        raise UsageError(f"two files given: {arguments.files[0]} and --raw {arguments.raw}")
    matched: set[str] = set()
    found = _gather_coverage(
        arguments, [None] if raw else arguments.files or ["perf.data"], matched
    )
    if arguments.diff_from:
        found = found.without_code_of(_gather_coverage(arguments, arguments.diff_from, matched))
    options.check_path_map(arguments, matched)
    found.files = _select_files_by_name(found, arguments.dso)
    output.write_file_or_stdout(arguments.output, _format_coverage(arguments.format, found))
    for line in found.losses:
        output.print_error("coverage", f"missing: {line}")
    return EXIT_CODE if found.has_gaps else 0


def _gather_coverage(
    arguments: argparse.Namespace, names: Iterable[str | None], matched: set[str]
) -> Coverage:
    from rtit.coverage import Coverage
    from rtit.profile.builder import build_profile

    result = Coverage()
    for name in names:
        arguments.file, arguments.input = name, None
        with ExitStack() as stack:
            trace = stack.enter_context(options.open_trace(arguments, matched))
            streams = trace.by_thread(options.parse_selection(arguments))
            stack.enter_context(show_progress("coverage", streams, prints=False))
            result.add(build_profile(trace, streams), trace.path)
    return result


def _select_files_by_name(found: Coverage, names: list[str]) -> list[FileCoverage]:
    if "all" in names:
        return found.files
    for name in names:
        if not any(name in (each.path, Path(each.path).name) for each in found.files):
            known = ", ".join(Path(each.path).name for each in found.files) or "none"
            raise UsageError(f"no code ran in a file named {name}; code ran in: {known}")
    wanted = {*names} or found.programs
    return [each for each in found.files if wanted & {each.path, Path(each.path).name}]


def _format_coverage(kind: str, found: Coverage) -> Iterable[bytes]:
    from rtit.coverage import source_files
    from rtit.coverage.formats.blocks import afl_map, drcov_log
    from rtit.coverage.formats.cobertura import cobertura_report
    from rtit.coverage.formats.html import html_report
    from rtit.coverage.formats.lines import lcov_report, no_lines_message, text_report
    from rtit.text_escaping import escape_control_characters

    if kind == "drcov":
        return [drcov_log(found.files)]
    if kind == "afl":
        return [afl_map(found.files)]
    files = source_files(found)
    if not files and kind != "text":
        output.print_error("coverage", no_lines_message(found))
    if kind == "cobertura":
        return _encode_lines(cobertura_report(files, f"rtit {__version__}"))
    writers = {"lcov": lcov_report, "html": html_report}
    lines = (
        writers[kind](files)
        if kind in writers
        else map(escape_control_characters, text_report(found, files))
    )
    return _encode_lines(lines)


def _encode_lines(lines: Iterable[str]) -> Iterator[bytes]:
    return (f"{line}\n".encode(errors="replace") for line in lines)
