"""`rtit stat FILE` and `rtit stat -- PROGRAM`: exact counts, and their changes since a baseline."""

from __future__ import annotations

import argparse
import shlex
import signal
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING

from rtit.cli import options, output
from rtit.cli.incomplete import EXIT_CODE
from rtit.cli.many_recordings import ManyRecordings, progress_of_recording
from rtit.cli.parser import CommandParser
from rtit.errors import InputError, UsageError
from rtit.profile.stat import PARTS_OF_COUNTS, Region, Stat, StoredBaseline, function_label
from rtit.remote_files import display_name
from rtit.text_escaping import escape_control_characters, format_json, read_json_file

if TYPE_CHECKING:
    from rtit.counting.counted_run import CountedRun, RunVariation

_DATA_FORMATS = ("json", "github-benchmark")
"""Formats without the changes since a baseline, which go to standard error."""
_EPILOG = """rtit runs PROGRAM under QEMU and counts its instructions, without recording a trace. If
QEMU is not installed, rtit single-steps PROGRAM. The counts include all threads of PROGRAM, and all
programs that PROGRAM starts. A recording of the same run would have the same counts. rtit writes
the counts to standard error, or to the file that -o names. Standard output has only the output of
PROGRAM.

With --function, or --from and --to, rtit records PROGRAM into a temporary file and decodes the
recording, which takes longer than counting. Each thread has its own regions.

Examples:
  rtit stat perf.data
  rtit stat --per function recordings/
  rtit stat ls -l
  rtit stat --json -o stat.json -- ./program
  rtit stat --runs 3 --per function --baseline stat.json --fail-above 0.5% -- ./program
  rtit stat --function parse -- ./program
  rtit stat --per test -- cargo nextest run
  rtit stat --history counts.db -- ./program
  rtit stat --history counts.db --show

'rtit help exit-codes' lists the exit codes.
"""


def add_arguments(parser: CommandParser) -> None:
    """Declare the options."""
    parser.usage = (
        "rtit stat [options] [FILE...]\n       rtit stat [options] [--] PROGRAM [ARGS...]"
    )
    parser.description = "Count the instructions, branches and calls of recordings or of a program."
    parser.epilog = _EPILOG
    group = parser.add_argument_group()
    group.add_argument(
        "words",
        nargs=argparse.REMAINDER,
        metavar="FILE",
        help="Recordings to read, whose counts are added up: files, folders with recordings below "
        "them, or patterns; - for standard input (default: perf.data). If FILE is an "
        "executable program, rtit runs this program, and all words after FILE are its arguments",
    )
    group.add_argument(
        "-i",
        "--input",
        metavar="FILE",
        help="Recording to read; the same as the argument FILE",
        dest="input",
    )
    group = parser.add_argument_group("Part of the run")
    options.add_value_option(
        group,
        "--function",
        "NAME[@FILE]",
        "Count only what this function and its callees execute. A recursive call is part of the "
        "outermost call. Also show the minimum, median and maximum of a call",
        dest="region_function",
        default="",
    )
    options.add_value_option(
        group,
        "--from",
        "A",
        "Count only from each execution of A up to the next execution of B (--to) in the same "
        "thread. A and B are addresses of instructions (0x401136) or functions (NAME[@FILE]). A "
        "function stands for its first instruction",
        dest="region_start",
        default="",
    )
    options.add_value_option(
        group,
        "--to",
        "B",
        "The end of --from; B itself is not counted",
        dest="region_stop",
        default="",
    )
    group = parser.add_argument_group("Output")
    group.add_argument(
        "--per",
        choices=("function", "dso", "thread", "process", "test"),
        help="Also count the instructions of each function, file (dso), thread, process or test. A "
        "test is a process that runs one test of a Rust test binary, as cargo-nextest starts them. "
        "process and test need a program and QEMU",
    )
    options.add_value_option(
        group,
        "--top",
        "N",
        "With --per and --show, show at most N rows (default: 15)",
        default=15,
        type=int,
    )
    options.add_json_option(group, "Write all counts as one JSON object")
    group.add_argument(
        "--format",
        choices=("text", "json", "markdown", "github-benchmark"),
        default="text",
        help="Format of the counts: text, json (the same as --json), markdown (tables for a pull "
        "request), or github-benchmark (JSON that the GitHub action github-action-benchmark reads "
        "as customSmallerIsBetter) (default: text)",
    )
    group.add_argument(
        "-o",
        "--output",
        metavar="FILE",
        help="File to write (default: standard output for a recording, standard error for a "
        "program)",
    )
    group = parser.add_argument_group("Comparison")
    options.add_value_option(
        group,
        "--baseline",
        "FILE",
        "Compare the counts with the counts in FILE, which 'rtit stat --json' wrote earlier",
    )
    options.add_value_option(
        group,
        "--fail-above",
        "N%",
        "Return exit code 1 if the number of instructions exceeds the baseline by more than N "
        "percent. With --per test, return exit code 1 if any test exceeds its own baseline",
        type=_parse_percentage,
    )
    group = parser.add_argument_group("History")
    options.add_value_option(
        group,
        "--history",
        "FILE",
        "Append the counts to FILE, an SQLite database, with the time and the commit of git",
    )
    options.add_list_option(
        group,
        "--label",
        "NAME=VALUE",
        "Store this label with the counts; may be repeated. rtit compares only runs "
        "with equal labels",
    )
    options.add_flag_option(
        group,
        "--show",
        "Count nothing, but list the series in the file of --history, and where their levels "
        "changed",
    )
    group = parser.add_argument_group("Running a program")
    options.add_value_option(
        group,
        "--runs",
        "N",
        "Run the program N times, show the counts of the run with the fewest instructions, and "
        "show which counts differ between the runs",
        default=1,
        type=_parse_run_count,
    )
    group.add_argument(
        "--backend",
        choices=("auto", "qemu", "ptrace"),
        default="auto",
        help="Method of counting, as for rtit record --backend (default: auto)",
    )
    options.add_qemu_env_option(parser.add_rare_group("Running a program with QEMU"))
    options.add_max_edges_option(parser)
    others = {*parser._actions}
    options.add_stream_options(parser)
    options.add_image_options(parser)
    options.add_raw_code_options(options.add_raw_options(parser))
    recording_only = [each for each in parser._actions if each not in others]
    parser.add_general_options(
        jobs=options.MANY_RECORDINGS_JOBS,
        dask=True,
        rare="the options for QEMU, JIT code, kernels, virtual machines and raw PT",
    )
    parser.set_defaults(recording_only=recording_only)


def run(arguments: argparse.Namespace) -> int:
    """Print the counts; return the exit code of the program, if there is one."""
    if arguments.json:
        if arguments.format not in ("text", "json"):
            raise UsageError(f"--json cannot be combined with --format {arguments.format}")
        arguments.format = "json"
    if arguments.per not in (None, "test") and arguments.format in (
        "markdown",
        "github-benchmark",
    ):
        raise UsageError(f"--per cannot be combined with --format {arguments.format}")
    if arguments.fail_above is not None and arguments.baseline is None:
        raise UsageError("--fail-above needs --baseline")
    if arguments.history is None and (arguments.show or arguments.label):
        raise UsageError("--show and --label need --history")
    arguments.labels = _parse_labels(arguments.label)
    if arguments.show:
        return _show_history(arguments)
    arguments.region = None
    if arguments.region_function or arguments.region_start or arguments.region_stop:
        arguments.region = Region(
            arguments.region_function, arguments.region_start, arguments.region_stop
        )
    by_process = arguments.per in ("process", "test")
    if by_process and arguments.region is not None:
        raise UsageError(f"--per {arguments.per} counts whole processes, not parts of them")
    if arguments.history is not None:
        from rtit.profile.history import create_history

        create_history(arguments.history)
    baseline = None
    if arguments.baseline is not None:
        baseline = _read_baseline(arguments.baseline)
        counted = "" if arguments.region is None else str(arguments.region)
        if baseline.region != counted:
            raise UsageError(
                f"{arguments.baseline} has the counts of {baseline.region or 'the whole run'}, not "
                f"of {counted or 'the whole run'}"
            )
    if arguments.program is not None:
        return _run_program(arguments, baseline)
    if arguments.runs != 1 or arguments.backend != "auto" or arguments.qemu_env:
        raise UsageError(
            "--runs, --backend and --qemu-env need a program: rtit stat [options] -- PROGRAM"
        )
    if by_process:
        raise UsageError(f"--per {arguments.per} needs a program: rtit stat [options] -- PROGRAM")
    found = _count_recordings(arguments)
    if arguments.output is not None:
        output.write_file_or_stdout(
            arguments.output, _encode_escaped_lines(_format_counts(arguments, found, baseline))
        )
    elif arguments.format == "json":
        output.write_json(found.as_json(), indent=2)
    else:
        for line in _format_counts(arguments, found, baseline):
            output.print_line(line)
    if arguments.format in _DATA_FORMATS and baseline is not None:
        _print_changes(arguments, found, baseline)
    _print_uncounted_code(arguments, found)
    _append_to_history(arguments, found, is_complete=not found.losses.has_gaps)
    limit = arguments.fail_above
    if limit is not None and baseline is not None and _exceeds_limit(found, baseline, arguments):
        return 1
    return EXIT_CODE if found.losses.has_gaps else 0


def _count_recordings(arguments: argparse.Namespace) -> Stat:
    from rtit.profile.stat import add_stats

    names = options.recording_names(arguments)
    if len(names) > 1 and arguments.region is not None:
        raise UsageError("--function, --from and --to count a part of one recording, not of many")
    del arguments.recording_only  # it refers to the parser, which is not sent to workers
    many = ManyRecordings("stat", arguments, names)
    counted = many.results(_count_recording)
    if len(names) == 1:
        [(_, found)] = counted
    else:
        found = add_stats(counted)
        found.losses.problems += many.unreadable.values()
    options.check_path_map(arguments, many.matched_maps)
    return found


def _count_recording(arguments: argparse.Namespace, matched: set[str]) -> tuple[str, Stat]:
    from rtit.profile.regions import check_region, stat_region
    from rtit.profile.stat import stat

    with options.open_trace(arguments, matched) as trace:
        region = arguments.region
        if region is not None:
            check_region(trace, region)
        where = options.parse_selection(arguments)
        streams = trace.by_thread(where, always_split=region is not None)
        with progress_of_recording("stat", arguments, streams):
            if region is not None:
                return trace.path, stat_region(trace, streams, region)
            return trace.path, stat(trace, streams)


def _run_program(arguments: argparse.Namespace, baseline: StoredBaseline | None) -> int:
    """Run the program as often as --runs says, and print its counts; return the exit code."""
    from rtit.capture.output_files import ReservedOutput
    from rtit.counting.counted_run import RunVariation

    if not arguments.program:
        raise UsageError("no program given", hint="example:  rtit stat -- ls -l")
    if any(each is not None for each in (arguments.file, arguments.input, arguments.raw)):
        raise UsageError("give a recording or a program, not both")
    for each in arguments.recording_only:
        if getattr(arguments, each.dest) != each.default:
            option = arguments.code[0][0] if each.dest == "code" else each.option_strings[0]
            raise UsageError(f"{option} works only with a recording, not with a program")
    with ExitStack() as files:
        path = None if arguments.output in (None, "-") else arguments.output
        # A path that cannot be written is an error before the program runs.
        reserved = files.enter_context(ReservedOutput(path)) if path else None
        runs = _count_runs(arguments)
        variation = RunVariation([each.stat for each in runs])
        found = variation.run_with_fewest_instructions
        lines = [*_format_counts(arguments, found, baseline, variation)]
        if reserved is not None:
            with reserved.open_for_writing() as file:
                file.writelines(_encode_escaped_lines(lines))
        else:
            # Standard output is the program's own.
            stream = sys.stdout if arguments.output == "-" else sys.stderr
            for line in lines:
                output.print_line(line, to=stream)
        is_data = arguments.format in _DATA_FORMATS
        if is_data and baseline is not None and arguments.output is not None:
            _print_changes(arguments, found, baseline)
    for warning in dict.fromkeys(text for each in runs for text in each.warnings):
        output.print_error("stat", warning)
    _print_uncounted_code(arguments, found)
    failed = next((each.exit_code for each in runs if each.exit_code), 0)
    is_complete = all(each.whole for each in runs)
    _append_to_history(arguments, found, is_complete=is_complete and not failed)
    limit = arguments.fail_above
    if failed or limit is None or baseline is None:
        return failed
    if not is_complete:
        output.print_error("stat", "some counts are missing, so rtit cannot check --fail-above")
        return 1
    return int(_exceeds_limit(found, baseline, arguments))


def _count_runs(arguments: argparse.Namespace) -> list[CountedRun]:
    from rtit.capture.request import RecordRequest
    from rtit.cli.signals import ending_signals, wait_for_program
    from rtit.counting.counted_run import CountingRun, choose_counting_backend

    wanted = ending_signals()
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, wanted)
    asked = (arguments.per, arguments.baseline, arguments.history)
    where = arguments.format == "json" or arguments.runs > 1 or asked != (None, None, None)
    request = RecordRequest(
        arguments.program, backend=arguments.backend, blocked=blocked, qemu_env=arguments.qemu_env
    )
    choice = choose_counting_backend(request)
    if arguments.per in ("process", "test") and choice.backend != "qemu":
        raise UsageError(f"--per {arguments.per} needs QEMU")
    runs = []
    for _ in range(arguments.runs):
        with CountingRun(
            request,
            choice,
            where=where,
            max_counters=arguments.max_edges,
            region=arguments.region,
        ) as counting:
            was_interrupted = wait_for_program(counting.session, wanted, forward_first=True)
            runs.append(counting.finish())
        if was_interrupted:
            break
    return runs


def _format_counts(
    arguments: argparse.Namespace,
    found: Stat,
    baseline: StoredBaseline | None,
    variation: RunVariation | None = None,
) -> Iterator[str]:
    """Return the counts as lines, in the format of --format."""
    from rtit.profile.stat_formats import github_benchmark, markdown_lines

    if arguments.format == "markdown":
        limit, verdict = arguments.fail_above, ""
        if limit is not None and baseline is not None:
            if arguments.per == "test" and (slower := _slower_tests(found, baseline, limit)):
                verdict = f"Tests that exceed the limit of {limit:.4%}: {len(slower):,}."
            elif arguments.per != "test" and _instruction_growth(found, baseline) > limit:
                growth = _instruction_growth(found, baseline)
                verdict = (
                    f"The number of instructions grew by {growth:.4%}, which is more than "
                    f"the limit of {limit:.4%}."
                )
        yield from markdown_lines(found, baseline, arguments.top, verdict)
        return
    if arguments.format == "github-benchmark":
        recordings = map(display_name, arguments.files or [arguments.file or ""])
        name = shlex.join(arguments.program or recordings)
        if arguments.region is not None:
            name = f"{name}: {arguments.region}" if name else str(arguments.region)
        yield from format_json(github_benchmark(found, name), indent=2).split("\n")
        return
    if variation is not None and len(variation.runs) < 2:
        variation = None
    if arguments.format == "json":
        value = found.as_json()
        if variation is not None:
            value["runs"] = variation.as_json()
        yield from format_json(value, indent=2).split("\n")
        return
    yield from _format_count_lines(found, arguments.per, arguments.top)
    if variation is not None:
        yield ""
        yield from _format_run_differences(variation, arguments.top)
    if baseline is not None:
        yield ""
        yield from _format_changes_since_baseline(found, baseline, arguments)


def _format_count_lines(found: Stat, per: str | None, top: int) -> Iterator[str]:
    """Return the counts, and the `top` functions, files or threads, as `per` says."""
    for name, count in found.counts.items():
        yield f"{count:18,}  {'  ' * (name in PARTS_OF_COUNTS)}{name}"
    if per is None:
        return
    yield ""
    if per == "function":
        rows = [(function_label(each), count) for each, count in found.functions.most_common()]
    else:
        counters = {
            "dso": found.files,
            "thread": found.threads,
            "process": found.processes,
            "test": found.tests,
        }
        rows = [(name or "in no file", count) for name, count in counters[per].most_common()]
    whole = found.counts["instructions"] or 1
    for name, count in rows[:top]:
        yield f"{count:18,} {count / whole:7.1%}  {name}"
    if len(rows) > top:
        yield f"{'':26}  ... and {len(rows) - top:,} more"


def _format_run_differences(variation: RunVariation, top: int) -> Iterator[str]:
    """Return the differences between runs of one program."""
    runs = len(variation.runs)
    if not variation.differing_counts and not variation.differing_functions:
        yield f"all counts are the same in all {runs} runs"
        return
    yield f"differences between {runs} runs (the run with the fewest instructions is shown above):"
    for name, least, most in [*variation.differing_counts, *variation.differing_functions[:top]]:
        yield f"{f'+{most - least:,}':>18}  {name}: {least:,} to {most:,}"
    if len(variation.differing_functions) > top:
        yield f"{'':18}  ... and {len(variation.differing_functions) - top:,} more functions"
    yield from (f"  {text}" for text in variation.explain_differences())


def _format_changes_since_baseline(
    found: Stat, baseline: StoredBaseline, arguments: argparse.Namespace
) -> Iterator[str]:
    """Return the changes since the baseline: all instructions, and --top functions or tests."""
    limit, top = arguments.fail_above, arguments.top
    if arguments.per == "test":
        limit = None  # it is for each test
    more = found.counts["instructions"] - baseline.counts["instructions"]
    part = _instruction_growth(found, baseline)
    verdict = f": more than {limit:.4%} above" if limit is not None and part > limit else ""
    yield f"{more:+18,}  instructions since the baseline ({part:+.4%}){verdict}"
    if (renamed := baseline.renamed_file(found)) is not None:
        yield f"{'':18}  functions of {renamed[1]} are compared with those of {renamed[0]}"
    by_test = arguments.per == "test"
    changed = baseline.changed_tests(found) if by_test else baseline.changed_functions(found)
    for name, old, new in changed[:top]:
        yield f"{new - old:+18,}  {name}: {old:,}, now {new:,}"
    if len(changed) > top:
        yield f"{'':18}  ... and {len(changed) - top:,} more"


def _print_changes(arguments: argparse.Namespace, found: Stat, baseline: StoredBaseline) -> None:
    """Print the changes since the baseline to standard error, beside JSON that goes elsewhere."""
    for line in _format_changes_since_baseline(found, baseline, arguments):
        output.print_line(line, to=sys.stderr)


def _exceeds_limit(found: Stat, baseline: StoredBaseline, arguments: argparse.Namespace) -> bool:
    """Return whether the instructions, or with --per test those of a test, exceed the limit."""
    limit: float = arguments.fail_above
    if arguments.per != "test":
        return _instruction_growth(found, baseline) > limit
    slower = _slower_tests(found, baseline, limit)
    for name in slower:
        before, now = baseline.tests[name], found.tests[name]
        output.print_error("stat", f"{name}: {now:,} instructions, the baseline has {before:,}")
    return bool(slower)


def _slower_tests(found: Stat, baseline: StoredBaseline, limit: float) -> list[str]:
    return [
        name for name, before in baseline.tests.items() if found.tests[name] > before * (1 + limit)
    ]


def _append_to_history(arguments: argparse.Namespace, found: Stat, *, is_complete: bool) -> None:
    """Append the counts to the file of --history, if they are those of a whole successful run."""
    if arguments.history is None:
        return
    if not is_complete:
        output.print_error("stat", "the run failed or has gaps, so the history does not get it")
        return
    from rtit.counting.process_labels import process_label
    from rtit.profile.history import append_run

    names = map(display_name, arguments.files or [arguments.file or "perf.data"])
    if arguments.per != "process":
        found = replace(found, processes=Counter())
    append_run(
        arguments.history,
        found,
        process_label(arguments.program) if arguments.program else " ".join(names),
        str(arguments.region or ""),
        arguments.labels,
    )


def _show_history(arguments: argparse.Namespace) -> int:
    from rtit.profile.history import history_json, history_lines, read_series

    if arguments.program is not None or arguments.file or arguments.input:
        raise UsageError("--show reads only the file of --history")
    if arguments.format not in ("text", "json"):
        raise UsageError(f"--show cannot be combined with --format {arguments.format}")
    series = read_series(arguments.history)
    wanted = arguments.labels.items()
    series = [each for each in series if wanted <= each.labels.items()]
    if arguments.format == "json":
        lines = iter(format_json(history_json(series), indent=2).split("\n"))
    else:
        lines = history_lines(series, arguments.top)
    if arguments.output is not None:
        output.write_file_or_stdout(arguments.output, _encode_escaped_lines(lines))
    else:
        for line in lines:
            output.print_line(line)
    return 0


def _parse_labels(texts: Iterable[str]) -> dict[str, str]:
    found = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not name or not equals:
            raise UsageError(f"--label {text}: expected NAME=VALUE")
        found[name] = value
    return found


def _instruction_growth(found: Stat, baseline: StoredBaseline) -> float:
    """Return the additional instructions as a share of those of the baseline."""
    before, now = baseline.counts["instructions"], found.counts["instructions"]
    return (now - before) / before if before else float(now > 0)


def _read_baseline(path: str) -> StoredBaseline:
    """Return what --json has written before. Raises InputError, OSError."""
    try:
        value = read_json_file(path)
    except ValueError as error:
        raise InputError(f"not JSON: {error}", source=path) from None
    return StoredBaseline.from_json(value, path)


def _files_without_symbols(found: Stat) -> list[str]:
    from rtit.image import is_named_by_address

    named_files = {
        file for name, file in found.functions if name and not is_named_by_address(name, file)
    }
    return [
        f"{file} has no symbols, so the names of its functions are unknown"
        for file in found.files
        if file and file not in named_files
    ]


def _print_uncounted_code(arguments: argparse.Namespace, found: Stat) -> None:
    """Print which files have no symbols, if functions are wanted, and what is not counted."""
    lines = _files_without_symbols(found) if arguments.per == "function" else []
    for line in [*lines, *found.describe_uncounted_code]:
        output.print_error("stat", f"missing: {line}")
    if arguments.per == "test" and not found.tests:
        output.print_error("stat", "no process ran one test, as BINARY --exact TEST does")
    for line in found.notes:
        output.print_error("stat", line)


def _encode_escaped_lines(lines: Iterable[str]) -> Iterator[bytes]:
    """Return lines as the bytes of a file, with control characters escaped."""
    for line in lines:
        yield f"{escape_control_characters(line)}\n".encode()


def _parse_run_count(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and 0 < int(text) < 1 << 16):
        raise argparse.ArgumentTypeError(f"expected a number of runs, got {text!r}")
    return int(text)


def _parse_percentage(text: str) -> float:
    number = text.removesuffix("%")
    try:
        share = float(number) / 100
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected a percentage, got {text!r}") from None
    if not 0 <= share < 1e9:
        raise argparse.ArgumentTypeError(f"expected a percentage of 0 or more, got {text!r}")
    return share
