"""`rtit calls FILE`: who called whom, as a tree or as a picture of it."""

from __future__ import annotations

import argparse
from dataclasses import asdict, dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any

from rtit.cli import options, output
from rtit.cli.incomplete import EXIT_CODE, IncompleteReport
from rtit.cli.many_recordings import ManyRecordings
from rtit.cli.parser import CommandParser
from rtit.cli.progress import show_progress
from rtit.errors import UsageError
from rtit.text_escaping import escape_control_characters, format_json

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence, Set

    from rtit.trace import StackStatistics, Trace
    from rtit.trace.tables.call_tree import CallTree
    from rtit.trace.tables.selection import Selection
    from rtit.views.call_durations import CallDurations
    from rtit.views.call_tree import FunctionNode

_EPILOG = """Examples:
  rtit calls
  rtit calls --function main --max-depth 3
  rtit calls --function malloc --callers
  rtit calls --function malloc --durations
  rtit calls --inlines
  rtit calls --flamegraph -o calls.svg
  rtit calls --flamegraph -o all.svg recordings/
"""
_JOBS = f"{options.ONE_JOB}. Several recordings are decoded in one process for each CPU, at most 8"
_MIN_SHARE = 0.01
_MAX_DEPTH, _MAX_FOLDED_DEPTH = 100, 1000
_MAX_GAPS = 10
"""Gaps of one of many recordings that are printed."""
_MAX_INDENT = 30
"""Levels of the tree that are indented; deeper ones show their level as a number."""


def add_arguments(parser: CommandParser) -> None:
    """Declare the options."""
    parser.description = (
        "Show which function called which, how often, and how many instructions the calls took."
    )
    parser.usage = "rtit calls [options] [FILE...]"
    parser.epilog = _EPILOG
    options.add_files_argument(parser)
    group = parser.add_argument_group("Output")
    options.add_value_option(
        group,
        "--function",
        "NAME[@FILE]",
        "Show only the function NAME (in FILE), and the functions that it called directly or "
        "indirectly",
        dest="called_function",
    )
    options.add_flag_option(
        group,
        "--callers",
        "Show the callers of the function named by --function, the callers of these callers, and "
        "so on",
    )
    options.add_flag_option(
        group,
        "--durations",
        "With --function: show how long its calls took, in instructions. List the longest calls, "
        "and compare the longest call with a call of median duration",
    )
    options.add_flag_option(
        group,
        "--inlines",
        "Show inlined functions, too, if the files have debug information (DWARF)",
    )
    options.add_value_option(
        group,
        "--max-depth",
        "N",
        "Show at most N levels of the tree, flame graph or folded stacks (default: 100; for folded "
        "stacks 1000)",
        type=options.parse_count,
    )
    options.add_value_option(
        group,
        "--min-share",
        "PERCENT",
        "Leave out functions whose calls took less than PERCENT %% of the instructions "
        "(default: 1 for the tree, 0.1 for a flame graph)",
    )
    formats = group.add_mutually_exclusive_group()
    for option, text in (
        ("--flamegraph", "Write a flame graph: one SVG file with zoom and search"),
        ("--folded", "Write folded stacks, which flame graph tools read"),
        (
            "--speedscope",
            "Write a file for https://www.speedscope.app, with a profile of each thread",
        ),
        ("--json", "Write one JSON object with all nodes"),
    ):
        options.add_flag_option(formats, option, text)
    options.add_output_option(group)
    options.add_stream_options(parser)
    options.add_common_reading_options(parser, jobs=_JOBS, dask=True)


def run(arguments: argparse.Namespace) -> int:
    """Write the tree; return 3 if something could not be decoded."""
    from rtit.views.call_durations import measure_calls
    from rtit.views.call_tree import entries_of_function, find_called_function

    if arguments.min_share is not None:
        arguments.min_share = _parse_share(arguments.min_share)
    if arguments.max_depth is None:
        arguments.max_depth = _MAX_FOLDED_DEPTH if arguments.folded else _MAX_DEPTH
    if arguments.callers and arguments.called_function is None:
        raise UsageError("--callers needs --function")
    if arguments.durations and arguments.called_function is None:
        raise UsageError("--durations needs --function")
    others = ("callers", "flamegraph", "folded", "speedscope")
    if arguments.durations and any(getattr(arguments, each) for each in others):
        raise UsageError("--durations goes with --json, but with no other form of output")
    if arguments.durations and arguments.inlines:
        raise UsageError("--durations measures calls: inlined functions are not called")
    names = options.recording_names(arguments)
    if len(names) > 1:
        return _add_up_recordings(arguments, names)
    arguments.file, arguments.input = names[0], None
    with options.open_trace(arguments) as trace:
        where = options.parse_selection(arguments)
        streams = trace.call_streams(where)
        gaps = IncompleteReport("calls", trace)
        if arguments.durations:
            with show_progress("calls", streams, prints=False):
                found = measure_calls(trace, arguments.called_function, where)
            # First, because a further decoding discards the gaps.
            code = gaps.print_all_gaps(streams)
            _note_equal_names(found.function, found.entries, trace)
            _print_durations(trace, where, found, arguments)
            return code
        with show_progress("calls", streams, prints=False):
            tree = trace.call_tree(where, inlines=arguments.inlines)
        if arguments.called_function is not None:
            function = find_called_function(tree, arguments.called_function, trace)
            _note_equal_names(function, entries_of_function(tree, function), trace)
            arguments.called_function = function
        threads = trace.threads_of_calls(streams, where)
        titles = {tid: each.title for tid, each in threads.items()}
        if arguments.flamegraph or arguments.speedscope or arguments.json:
            title = " ".join(trace.command_line) or trace.path
            output.write_file_or_stdout(
                arguments.output, _format_file(arguments, tree, titles, title)
            )
        else:
            _write_lines(arguments.output, _format_lines(arguments, tree, titles))
        return gaps.print_all_gaps(streams)


@dataclass(frozen=True, slots=True)
class _SumOfCalls:
    """The call tree of a recording, and the sentences about its gaps."""

    rows: list[tuple[Any, ...]]
    names: dict[str, str]
    statistics: StackStatistics
    gaps: list[str]
    has_gaps: bool


def _add_up_recordings(arguments: argparse.Namespace, names: Sequence[str | None]) -> int:
    """Write the tree, flame graph or folded stacks of all recordings together."""
    from rtit.trace import StackStatistics
    from rtit.views.call_tree import FunctionNode, add_tree_rows, shorten_labels

    for option in ("durations", "json", "speedscope"):
        if getattr(arguments, option):
            raise UsageError(f"--{option} takes one recording, not {len(names):,}")
    many = ManyRecordings("calls", arguments, names)
    root, statistics = FunctionNode(""), StackStatistics()
    names_by_label: dict[str, str] = {}
    gaps: list[str] = []
    has_gaps = False
    for found in many.results(_sum_calls):
        add_tree_rows(root, found.rows)
        names_by_label |= found.names
        statistics += found.statistics
        gaps += found.gaps
        has_gaps |= found.has_gaps
    shorten_labels(root, names_by_label)
    options.check_path_map(arguments, many.matched_maps)
    if arguments.flamegraph:
        title = f"{len(names):,} recordings"
        output.write_file_or_stdout(arguments.output, _draw_flame_graph(arguments, root, title))
    else:
        _write_lines(arguments.output, _format_root(arguments, root, statistics))
    for line in [*gaps, *many.unreadable.values()]:
        output.print_error("calls", f"missing: {line}")
    return EXIT_CODE if has_gaps or many.unreadable else 0


def _sum_calls(arguments: argparse.Namespace, matched: set[str]) -> _SumOfCalls:
    from rtit.views.call_tree import find_called_function, functions_by_label, tree_rows

    with options.open_trace(arguments, matched) as trace:
        where = options.parse_selection(arguments)
        streams = trace.call_streams(where)
        tree = trace.call_tree(where, inlines=arguments.inlines)
        if arguments.called_function is not None:
            arguments.called_function = find_called_function(tree, arguments.called_function, trace)
        rows = tree_rows(_merge_tree(arguments, tree, {}, with_file=True))
        gaps: list[str] = []
        report = IncompleteReport("calls", trace, gaps.append)
        code = report.print_all_gaps(streams)
        if len(gaps) > _MAX_GAPS:
            gaps[_MAX_GAPS:] = [f"{len(gaps) - _MAX_GAPS:,} more gaps"]
        lines = [line if trace.path in line else f"{trace.path}: {line}" for line in gaps]
        return _SumOfCalls(rows, functions_by_label(tree), tree.statistics, lines, code != 0)


def _note_equal_names(function: str, entries: Set[int], trace: Trace) -> None:
    from rtit.views.call_tree import count_functions_of_name

    count = count_functions_of_name(function, entries, trace)
    if count > 1:
        output.print_error(
            "calls",
            f"{count} functions have the name {function!r}: the output adds up their calls",
        )


def _print_durations(
    trace: Trace, where: Selection, found: CallDurations, arguments: argparse.Namespace
) -> None:
    from rtit.diff.compare_calls import call_comparison_json, call_comparison_lines, compare_calls
    from rtit.views.call_durations import duration_lines, durations_json, find_median_call

    comparison, median = None, find_median_call(found, trace, where)
    if median is not None:
        calls = found.slowest[0], median
        comparison = compare_calls(trace, found.function, calls, ("slowest", "median"), where)
    if arguments.json:
        value = durations_json(found)
        value["median_call"] = asdict(median) if median is not None else None
        value["slowest_against_median"] = comparison and call_comparison_json(comparison)
        text = f"{format_json(value)}\n"
        output.write_file_or_stdout(arguments.output, [text.encode()])
        return
    lines = duration_lines(found)
    if comparison is not None:
        heading = ["", "Slowest call against a call of median duration:"]
        lines = chain(lines, heading, call_comparison_lines(comparison))
    _write_lines(arguments.output, lines)


def _format_file(
    arguments: argparse.Namespace, tree: CallTree, titles: Mapping[int, str], title: str
) -> Iterable[bytes]:
    from rtit.views.call_tree import call_tree_json
    from rtit.views.speedscope import speedscope_json

    function = arguments.called_function
    if arguments.flamegraph:
        root = _merge_tree(arguments, tree, titles if len(titles) > 1 else {})
        return _draw_flame_graph(arguments, root, title)
    if arguments.json:
        return (part.encode() for part in call_tree_json(tree))
    root = _merge_tree(arguments, tree, titles)
    threads = {node.name: node for node in root.children.values()}
    value = speedscope_json(threads if function is None else {function: root}, title)
    return [f"{format_json(value)}\n".encode()]


def _draw_flame_graph(
    arguments: argparse.Namespace, root: FunctionNode, title: str
) -> Iterable[bytes]:
    from rtit.views.flame_graph import MIN_SHARE, flame_graph

    if (function := arguments.called_function) is not None:
        title = f"{'callers of ' if arguments.callers else ''}{function}: {title}"
    return flame_graph(
        root,
        title,
        min_share=MIN_SHARE if arguments.min_share is None else arguments.min_share,
        max_depth=arguments.max_depth,
        shows_self=not arguments.callers,
    )


def _format_lines(
    arguments: argparse.Namespace, tree: CallTree, titles: Mapping[int, str]
) -> Iterator[str]:
    root = _merge_tree(arguments, tree, titles if len(titles) > 1 else {})
    return _format_root(arguments, root, tree.statistics)


def _format_root(
    arguments: argparse.Namespace, root: FunctionNode, statistics: StackStatistics
) -> Iterator[str]:
    from rtit.views.call_tree import folded_stacks

    if arguments.folded:
        deeper = yield from folded_stacks(root, arguments.max_depth)
        if deeper:
            output.print_error(
                "calls",
                f"{deeper:,} functions are more than {arguments.max_depth:,} levels deep; their "
                "instructions count as instructions of their callers",
            )
    else:
        share = _MIN_SHARE if arguments.min_share is None else arguments.min_share
        yield from _tree_lines(root, share, arguments.max_depth)
        yield from _note_lines(statistics, arguments.called_function if arguments.callers else None)


def _merge_tree(
    arguments: argparse.Namespace,
    tree: CallTree,
    titles: Mapping[int, str],
    *,
    with_file: bool = False,
) -> FunctionNode:
    from rtit.views import call_tree as view

    if not arguments.callers:
        function = arguments.called_function
        threads = titles if function is None else {}
        return view.merge_functions(tree, function, threads, with_file=with_file)
    root = view.merge_callers(tree, arguments.called_function, with_file=with_file)
    if arguments.flamegraph or arguments.folded or arguments.speedscope:
        view.count_each_path_once(root)
    return root


def _write_lines(name: str | None, lines: Iterable[str]) -> None:
    if name is None:
        for line in lines:
            output.print_line(line)
    else:
        encoded = (f"{escape_control_characters(line)}\n".encode() for line in lines)
        output.write_file_or_stdout(name, encoded)


def _parse_share(text: str) -> float:
    try:
        share = float(text.removesuffix("%"))
    except ValueError:
        share = -1
    if not 0 <= share <= 100:
        raise UsageError(f"--min-share {text}: expected a percentage from 0 to 100")
    return share / 100


def _tree_lines(root: FunctionNode, share: float, max_depth: int) -> Iterator[str]:
    from rtit.views.call_tree import walk_tree

    yield f"{'total':>14} {'share':>6} {'self':>14} {'calls':>10}  function"
    whole = root.total or 1
    for depth, node, left_out in walk_tree(root, root.total * share, max_depth):
        more = f"  (+{left_out:,})" if left_out else ""
        level = f"[{depth}] " if depth > _MAX_INDENT else ""
        calls = f"{node.calls:,}" if node.calls or not node.is_inlined else "-"
        yield (
            f"{node.total:14,} {node.total / whole:6.1%} {node.own:14,} {calls:>10}  "
            f"{'  ' * min(depth, _MAX_INDENT)}{level}{node.name}{more}"
        )


def _note_lines(statistics: StackStatistics, callee: str | None) -> Iterator[str]:
    """Iterate over the lines below the tree. `callee`: the tree shows the callers of this one."""
    yield ""
    if callee is None:
        counts, left_out = "total: instructions of the function and its callees", "callees"
    else:
        counts, left_out = f"all numbers are those of {callee}, by caller", "callers"
    yield f"{counts}; (+N): N {left_out} left out (--min-share, --max-depth)"
    if statistics.unknown:
        yield f"{statistics.unknown:,} branches led to a call stack that rtit cannot identify"
    if statistics.calls_without_node:
        yield (
            f"{statistics.calls_without_node:,} calls were beyond the memory limits; their "
            "instructions count as instructions of a caller"
        )
