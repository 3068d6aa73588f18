"""`rtit report FILE...`: summarizes a recording, or adds up many."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Sequence
from itertools import islice
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

from rtit.cli import options, output
from rtit.cli.incomplete import AMBIGUOUS, EXIT_CODE
from rtit.cli.many_recordings import ManyRecordings
from rtit.cli.parser import CommandParser
from rtit.cli.progress import show_progress
from rtit.errors import UsageError

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Mapping

    from rtit.trace import Call, FunctionTotals, Trace
    from rtit.views.report import ProcessNode
    from rtit.views.report_of_many import RecordingReport, ReportOfMany
    from rtit.views.statistics import RecordingStatistics, StreamStatistics
    from rtit.views.trace_tail import ProcessCrash

_CALLS = 5
_CALLERS = 20
_FAULTS = 10
_MOST = 20
_STREAMS = 40
_PROCESSES = 100
"""Most lines of each kind; --json has all."""
_PER_1000 = " per 1000 instructions"
"""PT bytes per 1000 instructions, beside the column `PT bytes`."""

_EPILOG = """Examples:
  rtit report
  rtit report --sort total
  rtit report --top 50 --comm worker crash.data
  rtit report --json crashes/
"""


def add_arguments(parser: CommandParser) -> None:
    """Declare the options."""
    parser.usage = "rtit report [options] [FILE...]"
    parser.description = (
        "Summarize a recording: processes, threads, hot functions, faults and lost data.\n\n"
        "Of several recordings, add up the threads, functions and faults."
    )
    parser.epilog = _EPILOG
    options.add_files_argument(parser)
    group = parser.add_argument_group("Output")
    options.add_value_option(
        group,
        "--top",
        "N",
        "Show the N functions that executed the most instructions (default: 15)",
        default=15,
        type=options.parse_count,
    )
    group.add_argument(
        "--sort",
        choices=("self", "total", "calls"),
        help="List the functions with three columns, sorted by the given column: the function's "
        "own instructions (self), the instructions including callees (total), and how often the "
        "function was called (calls). With --sort, the report takes about three times as long",
    )
    options.add_flag_option(
        group,
        "--inlines",
        "With --sort: count the instructions of inlined functions for these functions, not for "
        "their callers",
    )
    options.add_json_option(group, "Print one JSON object")
    options.add_stream_options(parser)
    options.add_common_reading_options(parser, jobs=options.MANY_RECORDINGS_JOBS, dask=True)


def run(arguments: argparse.Namespace) -> int:
    """Print the report; return 3 if something could not be decoded."""
    from rtit.views.report import process_tree
    from rtit.views.statistics import compute_statistics
    from rtit.views.trace_tail import find_crashes

    if arguments.inlines and arguments.sort is None:
        raise UsageError("--inlines needs --sort")
    names = options.recording_names(arguments)
    if len(names) > 1:
        return _add_up_recordings(arguments, names)
    arguments.file, arguments.input = names[0], None
    with options.open_trace(arguments) as trace:
        where = options.parse_selection(arguments)
        streams = trace.select(where)
        with show_progress("report", streams, prints=False):
            found = compute_statistics(trace, streams, None if arguments.json else _MOST)
        faults = find_crashes(trace, streams)
        roots = process_tree(trace, found.streams)
        tree = None if arguments.sort is None else trace.call_tree(where, inlines=arguments.inlines)
        if arguments.json:
            from rtit.views.report import calls_json, report_json

            report = report_json(trace, found, roots, faults[:_FAULTS], _CALLS)
            if tree is not None:
                report["calls"] = calls_json(tree.by_function(), arguments.sort)
            output.write_json(report, indent=2)
        else:
            _print_warnings(trace, found)
            _print_report_head(trace, roots, faults)
            _print_streams(found.streams)
            if tree is None:
                _print_functions(found.functions, found.instructions, arguments.top)
            else:
                _print_function_totals(tree.by_function(), arguments.sort, arguments.top)
            _print_missing_names(found.functions)
            _print_problems(trace, found)
        repeats = any(each.unknown_loops for each in found.streams)
        gaps = found.has_gaps or repeats or trace.image_problems or trace.incomplete
        return EXIT_CODE if gaps else 0


def _add_up_recordings(arguments: argparse.Namespace, names: Sequence[str | None]) -> int:
    """Print the sum of the reports of many recordings."""
    from rtit.views.report_of_many import ReportOfMany

    many = ManyRecordings("report", arguments, names)
    total = ReportOfMany()
    for found in many.results(_report_of_recording):
        total.add(found)
    options.check_path_map(arguments, many.matched_maps)
    if arguments.json:
        output.write_json(total.as_json(arguments.sort, many.unreadable), indent=2)
    else:
        _print_sum(total, arguments.sort, arguments.top)
    gaps = [f"{each['file']}: {text}" for each in total.recordings for text in each["gaps"]]
    for line in [*gaps, *many.unreadable.values()]:
        output.print_error("report", f"missing: {line}")
    return EXIT_CODE if total.has_gaps or many.unreadable else 0


def _report_of_recording(arguments: argparse.Namespace, matched: set[str]) -> RecordingReport:
    from rtit.views.report_of_many import report_of_recording

    with options.open_trace(arguments, matched) as trace:
        where = options.parse_selection(arguments)
        calls = arguments.sort is not None
        return report_of_recording(trace, where, calls=calls, inlines=arguments.inlines)


def _print_sum(total: ReportOfMany, sort: str | None, top: int) -> None:
    output.print_line(f"{len(total.recordings):,} recordings")
    for crash, paths in islice(total.crashes.items(), _FAULTS):
        output.print_line(f"  fault: {len(paths):,} times {crash}, first in {paths[0]}")
    _print_number_of_omitted_rows(len(total.crashes) - _FAULTS, "faults")
    output.print_line()
    output.print_line(f"{'instructions':>14} {'branches':>12} {'PT bytes':>12}  recording")
    largest = sorted(total.recordings, key=lambda each: -each["instructions"])
    columns = ("instructions", "branches", "pt_bytes")
    totals: dict[str, Any] = {name: total.total(name) for name in columns}
    totals["file"] = "in all recordings"
    for each in [*largest[:_STREAMS], totals]:
        if each is totals:
            _print_number_of_omitted_rows(len(largest) - _STREAMS, "smaller ones")
        output.print_line(
            f"{each['instructions']:14,} {each['branches']:12,} {each['pt_bytes']:12,}  "
            f"{each['file']}"
        )
    output.print_line()
    output.print_line(f"{'instructions':>14} {'recordings':>12}  thread")
    for name, count in total.threads.most_common(_STREAMS):
        number = total.recordings_with_thread[name]
        output.print_line(f"{count:14,} {number:12,}  {name or 'unknown'}")
    _print_number_of_omitted_rows(len(total.threads) - _STREAMS, "threads")
    if sort is None:
        _print_functions(total.functions, totals["instructions"], top)
    else:
        _print_function_totals(total.calls, sort, top)
    _print_missing_names(total.functions)
    exact = total.total("exact_bytes")
    whole = totals["pt_bytes"]
    if exact == whole:
        output.print_line(f"decoded: all {whole:,} bytes")
    else:
        output.print_line(f"decoded: {exact:,} of {whole:,} bytes exactly ({exact / whole:.1%})")


def _print_warnings(trace: Trace, found: RecordingStatistics) -> None:
    """Print, before all figures, what limits them, and the remedy."""
    if trace.incomplete:
        output.print_line(f"warning: the recording is incomplete: {trace.incomplete}")
        output.print_line(f"  rtit decodes the existing part (exit code {EXIT_CODE})")
    total = sum(each.pt_bytes for each in found.streams)
    lost = total - sum(each.exact_bytes for each in found.streams)
    problems = trace.image_problems
    if not (lost and problems):
        return
    share = f"{lost / total:.1%}" if lost >= total / 1000 else "less than 0.1%"
    path, reason = problems[0].path, problems[0].message
    if problems[0].kind == "missing":
        reason = "file not found"
    more = f" and {len(problems) - 1:,} more" if len(problems) > 1 else ""
    output.print_line(
        f"warning: {share} of the trace was not decoded: the code of {path}{more} is missing "
        f"({reason})"
    )
    command = f"rtit report --map {path}=PATH {shlex.quote(trace.path)}"
    output.print_line(f"  to name the file:  {command}")


def _print_report_head(
    trace: Trace, roots: Sequence[ProcessNode], faults: Sequence[ProcessCrash]
) -> None:
    from rtit.views.report import count_processes, format_tree

    command = " ".join(trace.command_line)
    output.print_line(f"{trace.path}: {command}" if command else trace.path)
    for name, value in trace.facts.items():
        label = "processor profile" if name == "profile" else name
        output.print_line(f"  {label}: {value}")
    count = count_processes(roots)
    if count == 1:
        for ended in trace.endings:
            output.print_line(f"  {ended}")
    for fault in faults[:_FAULTS]:
        _print_fault(fault)
    _print_number_of_omitted_rows(len(faults) - _FAULTS, "faults")
    if count > 1:
        output.print_line()
        tree = format_tree(roots)
        for line in islice(tree, _PROCESSES):
            output.print_line(line)
        rest = list(tree)
        _print_number_of_omitted_rows(len(rest) - 1, "lines of processes")
        for line in rest[-1:]:
            output.print_line(line)


def _print_streams(streams: Sequence[StreamStatistics]) -> None:
    output.print_line()
    output.print_line(f"{'instructions':>14} {'branches':>12} {'PT bytes':>12} {_PER_1000}  stream")
    largest = sorted(streams, key=lambda each: -each.instructions)[:_STREAMS]
    shown = set(map(id, largest))
    for each in streams:
        if id(each) in shown:
            output.print_line(
                f"{each.instructions:14,} {each.branches:12,} {each.pt_bytes:12,} "
                f"{each.bytes_per_1000:{len(_PER_1000)}.1f}  {each.title}"
            )
            for name, count in each.thread_instructions[:_STREAMS]:
                output.print_line(f"{count:14,} {'':{28 + len(_PER_1000)}}  {name}")
            _print_number_of_omitted_rows(
                len(each.thread_instructions) - _STREAMS, "threads of this CPU"
            )
    _print_number_of_omitted_rows(len(streams) - _STREAMS, "smaller ones")


def _print_functions(functions: Counter[tuple[str, str]], instructions: int, top: int) -> None:
    if functions:
        output.print_line()
        output.print_line(f"{'instructions':>14} {'share':>7}  function")
    whole = instructions or 1
    for function, number in functions.most_common(top):
        output.print_line(f"{number:14,} {number / whole:7.1%}  {_function_and_file(*function)}")
    _print_number_of_omitted_rows(len(functions) - top, "functions")
    output.print_line()


def _function_and_file(name: str, module: str) -> str:
    file = PurePath(module).name or "unknown"
    return f"{name} ({file})" if name else file


def _print_missing_names(functions: Counter[tuple[str, str]]) -> None:
    from rtit.cli.look.missing_names import describe_missing_names

    missing_names = describe_missing_names(functions)
    if missing_names is not None:
        output.print_line(f"names: {missing_names}")


def _print_function_totals(
    totals: Mapping[tuple[str, str], FunctionTotals], sort: str, top: int
) -> None:
    from rtit.views.report import sort_functions

    whole = sum(each.self_instructions for each in totals.values()) or 1
    functions = sort_functions(totals, sort)
    output.print_line()
    output.print_line(
        f"{'self':>14} {'share':>6} {'total':>14} {'share':>6} {'calls':>12}  function"
    )
    for function, row in functions[:top]:
        output.print_line(
            f"{row.self_instructions:14,} {row.self_instructions / whole:6.1%} "
            f"{row.total_instructions:14,} {row.total_instructions / whole:6.1%} "
            f"{f'{row.calls:,}' if row.calls else '-':>12}  {_function_and_file(*function)}"
        )
    _print_number_of_omitted_rows(len(functions) - top, "functions")
    output.print_line()


def _print_problems(trace: Trace, found: RecordingStatistics) -> None:
    for problem in trace.image_problems:
        output.print_line(f"image: {problem}")
    for each in found.streams:
        if each.ambiguous[0]:
            times, count = each.ambiguous
            output.print_line(f"{each.title}: {times:,} times {AMBIGUOUS}: {count:,} instructions")
        for text in each.unknown_loops:
            output.print_line(f"{each.title}: {text}")
        _print_number_of_omitted_rows(
            len(each.unknown_loops) - _MOST, "loops of unknown repetition"
        )
        if each.unattributed:
            output.print_line(
                f"{each.title}: {each.unattributed:,} instructions of further loop iterations are "
                "in the total, but in no function"
            )
    if found.streams and not found.has_gaps:
        whole = sum(each.pt_bytes for each in found.streams)
        output.print_line(f"decoded: all {whole:,} bytes")
        return
    exact = [each for each in found.streams if not each.losses]
    if len(exact) > 1:
        whole = sum(each.pt_bytes for each in exact)
        output.print_line(f"decoded: all {whole:,} bytes of {len(exact):,} streams")
    for each in found.streams:
        if not each.losses and len(exact) > 1:
            continue
        share = each.exact_bytes / each.pt_bytes if each.pt_bytes else 1.0
        part = f"{each.exact_bytes:,} of {each.pt_bytes:,} bytes exactly ({share:.1%})"
        output.print_line(f"decoded: {each.title}: {part}")
        for text in each.losses:
            output.print_line(f"  {text}")
        if len(each.losses) > _MOST:
            output.print_line(f"  ... and {len(each.losses) - _MOST} more")


def _print_number_of_omitted_rows(count: int, what: str) -> None:
    if count > 0:
        output.print_line(f"{'':22}  ... and {count:,} more {what}")


def _print_fault(fault: ProcessCrash) -> None:
    location = (
        f"{fault.symbol_with_offset} ({fault.source_line_text})"
        if fault.source_line_text
        else fault.symbol_with_offset
    )
    instruction = fault.disassembled_instruction
    output.print_line(f"  fault: thread {fault.tid}: {fault.ending} in {location}: {instruction}")
    calls = fault.calls_at_end(_CALLS)
    callers = [call for call in calls.running if call.call_site]
    stack = [fault.callee(call) for call in calls.running[:1]]
    stack += [f"{fault.call_site(call)}{_note(call)}" for call in callers[:_CALLERS]]
    for number, function in enumerate(stack):
        output.print_line(f"    {'' if number else 'call stack:':11} {function}")
    _print_number_of_omitted_rows(len(callers) - _CALLERS, "callers")
    for number, call in enumerate(calls.last):
        caller, callee = fault.call_site(call) or "unknown", fault.callee(call)
        output.print_line(
            f"    {'' if number else 'last calls:':11} {caller} -> {callee}{_note(call)}"
        )


def _note(call: Call) -> str:
    return "" if call.kind.label == "call" else f" [{call.kind.label}]"
