"""`rtit coverage FILE...`: which lines, branches and blocks of a program ran."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rtit import __version__
from rtit.cli import options, output
from rtit.cli.incomplete import EXIT_CODE
from rtit.cli.many_recordings import ManyRecordings
from rtit.cli.parser import CommandParser
from rtit.errors import UsageError
from rtit.remote_files import display_name
from rtit.text_escaping import escape_control_characters, format_json

if TYPE_CHECKING:
    from rtit.coverage.by_test import CoverageOfTest
    from rtit.coverage.file_coverage import Coverage

_FORMATS = ("text", "html", "lcov", "cobertura", "drcov", "afl", "json")

_TESTS_FOLDER = "rtit-coverage"

_EPILOG = """If a source line has code at several addresses, the count of the line is the highest
count of these addresses. Instances of a template, and inlined calls, are copies of the same line:
rtit adds up the counts of the copies. Branch coverage counts the two outcomes, taken and not taken,
of each conditional branch instruction.

Examples:
  rtit coverage
  rtit coverage --format lcov -o coverage.info first.data second.data
  rtit coverage --jobs 4 recordings/
  rtit coverage --by-test --line sort.c:120
"""


def add_arguments(parser: CommandParser) -> None:
    """Declare the options."""
    parser.usage = "rtit coverage [options] [FILE...]"
    parser.description = "Show which lines, branches and blocks of the program ran."
    parser.epilog = _EPILOG
    options.add_files_argument(parser)
    group = parser.add_argument_group("Output")
    group.add_argument(
        "--format",
        choices=_FORMATS,
        default="text",
        help="Format of the report. text: tables; html: one web page; lcov: input of genhtml; "
        "cobertura: Cobertura XML; drcov: block list of DynamoRIO; afl: edge bitmap of AFL; json: "
        "the tests that ran each line (only with --by-test) (default: text)",
    )
    options.add_output_option(group)
    options.add_dso_option(group, "the program")
    options.add_list_option(
        group,
        "--diff-from",
        "BASE",
        "Show only code that did not run in the recording BASE, or in the recordings of the folder "
        "or pattern BASE; may be repeated",
    )
    group = parser.add_argument_group("Tests")
    options.add_flag_option(
        group,
        "--by-test",
        "Show what each test ran. FILE is a folder that pytest --rtit-coverage has written "
        f"(default: {_TESTS_FOLDER}), or the recording of a test",
    )
    options.add_value_option(
        group,
        "--function",
        "NAME",
        "With --by-test: list the tests that ran this function, of any binary without --dso",
        dest="ran_function",
    )
    options.add_value_option(
        group, "--line", "FILE:LINE", "With --by-test: list the tests that ran this source line"
    )
    options.add_stream_options(parser)
    options.add_max_edges_option(parser)
    options.add_common_reading_options(parser, jobs=options.MANY_RECORDINGS_JOBS, dask=True)


def run(arguments: argparse.Namespace) -> int:
    """Write the coverage; return 3 if something could not be decoded."""
    if arguments.by_test:
        return _run_by_test(arguments)
    if arguments.ran_function or arguments.line or arguments.format == "json":
        raise UsageError("--function, --line and --format json need --by-test")
    matched: set[str] = set()
    found = _gather_coverage(arguments, options.recording_names(arguments), matched)
    if arguments.diff_from:
        base = options.find_named_recordings(arguments.diff_from)
        found = found.without_code_of(_gather_coverage(arguments, base, matched))
    options.check_path_map(arguments, matched)
    found.files = found.select_files(arguments.dso)
    output.write_file_or_stdout(arguments.output, _format_coverage(arguments.format, found))
    for line in found.losses:
        output.print_error("coverage", f"missing: {line}")
    return EXIT_CODE if found.has_gaps else 0


def _run_by_test(arguments: argparse.Namespace) -> int:
    """Write the coverage by test; return 3 if something could not be decoded."""
    from rtit.coverage.by_test import tests_of_function, tests_of_line
    from rtit.coverage.formats.by_test import by_test_json, by_test_text

    if arguments.format not in ("text", "json") or arguments.diff_from:
        raise UsageError("--by-test goes with --format text or json, and without --diff-from")
    if arguments.ran_function and arguments.line:
        raise UsageError("--function and --line cannot be combined")
    tests = _gather_tests(arguments)
    asks = arguments.ran_function or arguments.line
    if "all" not in arguments.dso and (arguments.dso or not asks):
        tests = [test.with_files(arguments.dso or test.programs) for test in tests]
    found: Mapping[str, object]
    if arguments.ran_function:
        names = tests_of_function(tests, arguments.ran_function)
        found, lines = {"function": arguments.ran_function, "tests": names}, iter(names)
    elif arguments.line:
        counts = tests_of_line(tests, arguments.line)
        if not counts:
            output.print_error("coverage", f"no test ran {arguments.line}")
        found = {"line": arguments.line, "tests": counts}
        lines = (f"{count:14,}  {test}" for test, count in counts.items())
    else:
        found, lines = by_test_json(tests), by_test_text(tests)
    if arguments.format == "json":
        lines = iter([format_json(found, indent=2)])
    else:
        lines = map(escape_control_characters, lines)
    output.write_file_or_stdout(arguments.output, _encode_lines(lines))
    for line in (line for test in tests for line in test.losses):
        output.print_error("coverage", f"missing: {line}")
    return EXIT_CODE if any(test.has_gaps for test in tests) else 0


def _gather_tests(arguments: argparse.Namespace) -> list[CoverageOfTest]:
    """Return the tests in the files and folders of the command line."""
    from rtit.coverage.by_test import coverage_files, coverage_of_test, read_coverage_of_test

    tests: list[CoverageOfTest] = []
    matched: set[str] = set()
    decodes = False
    if not arguments.files and not coverage_files(Path(_TESTS_FOLDER)):
        raise UsageError(
            f"no coverage by test in {_TESTS_FOLDER}", hint="pytest --rtit-coverage writes it"
        )
    for name in arguments.files or [_TESTS_FOLDER]:
        stored = coverage_files(Path(name))
        tests += map(read_coverage_of_test, stored)
        if not stored:
            decodes = True
            covered = _gather_coverage(arguments, [name], matched)
            tests.append(coverage_of_test(display_name(name), covered))
    if decodes:
        options.check_path_map(arguments, matched)
    return tests


def _gather_coverage(
    arguments: argparse.Namespace, names: Sequence[str | None], matched: set[str]
) -> Coverage:
    from rtit.coverage import Coverage

    result = Coverage()
    many = ManyRecordings("coverage", arguments, names, matched)
    where = options.parse_selection(arguments)
    for path, found in many.profiles(where):
        result.add(found, path)
    result.losses += many.unreadable.values()
    result.has_gaps |= bool(many.unreadable)
    return result


def _format_coverage(kind: str, found: Coverage) -> Iterable[bytes]:
    from rtit.coverage import source_files
    from rtit.coverage.formats.blocks import afl_map, drcov_log
    from rtit.coverage.formats.cobertura import cobertura_report
    from rtit.coverage.formats.html import html_report
    from rtit.coverage.formats.lines import lcov_report, no_lines_message, text_report

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
