"""`rtit calls FILE`: who called whom, as a tree."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from rtit.cli import options, output
from rtit.cli.incomplete import EXIT_CODE
from rtit.cli.parser import CommandParser
from rtit.errors import UsageError
from rtit.text_escaping import escape_control_characters

if TYPE_CHECKING:
    from rtit.trace import Trace
    from rtit.trace.tables.call_tree import CallTree
    from rtit.trace.tables.selection import Selection
    from rtit.views.call_tree import FunctionNode

_EPILOG = """Examples:
  rtit calls
  rtit calls --function main --max-depth 3
  rtit calls --function malloc --callers
  rtit calls --function malloc --durations
  rtit calls --folded > stacks.txt
"""


def add_arguments(parser: CommandParser) -> None:
    """Declare the options."""
    parser.description = (
        "Show which functions called which, how often, and for how many instructions."
    )
    parser.epilog = _EPILOG
    options.add_file_argument(parser)
    group = parser.add_argument_group("Output")
    options.add_value_option(
        group,
        "--function",
        "NAME",
        "Only the calls of this function and of what it called",
        dest="called_function",
    )
    options.add_flag_option(
        group, "--callers", "With --function: show its callers, and their callers"
    )
    options.add_flag_option(
        group,
        "--durations",
        "With --function: show how many instructions its calls took, and the longest calls",
    )
    options.add_value_option(
        group,
        "--max-depth",
        "N",
        "Show N levels (default: 100)",
        default=100,
        type=options.parse_count,
    )
    options.add_value_option(
        group,
        "--min-share",
        "PERCENT",
        "Leave out functions with a smaller share of the instructions (default: 1)",
        default="1",
    )
    options.add_flag_option(
        group, "--folded", "Print folded stacks, the input of flame graph tools"
    )
    options.add_json_option(group, "Print one JSON object with all nodes")
    options.add_stream_options(parser)
    options.add_common_reading_options(parser)


def run(arguments: argparse.Namespace) -> int:
    """Print the tree; return 3 if something could not be decoded."""
    from rtit.trace import RootKind
    from rtit.views import call_tree as view

    share = _parse_share(arguments.min_share)
    if arguments.callers and arguments.called_function is None:
        raise UsageError("--callers needs --function")
    if arguments.durations and arguments.called_function is None:
        raise UsageError("--durations needs --function")
    with options.open_trace(arguments) as trace:
        where = options.parse_selection(arguments)
        if arguments.durations:
            return _print_durations(trace, where, arguments)
        tree = trace.call_tree(where)
        if arguments.json:
            output.write_json(view.call_tree_json(tree))
        else:
            if arguments.callers:
                root = view.merge_callers(tree, arguments.called_function)
            else:
                threads = {each.tid: each.title for each in trace.by_thread(where)}
                titles = threads if len(threads) > 1 and arguments.called_function is None else {}
                root = view.merge_functions(tree, arguments.called_function, titles)
            if arguments.folded:
                for line in view.folded_stacks(root):
                    output.print_line(line)
            else:
                _print_tree(root, share, arguments.max_depth)
                _print_notes(tree)
        has_gaps = bool((tree.root == RootKind.AFTER_LOSS).any())
        return EXIT_CODE if has_gaps or trace.image_problems or trace.incomplete else 0


def _print_durations(trace: Trace, where: Selection, arguments: argparse.Namespace) -> int:
    from rtit.views.call_durations import duration_lines, durations_json, measure_calls

    found = measure_calls(trace, arguments.called_function, where)
    if arguments.json:
        output.write_json(durations_json(found))
    else:
        for line in duration_lines(found):
            output.print_line(escape_control_characters(line))
    has_gaps = any(each.counts().errors for each in trace.streams)
    return EXIT_CODE if has_gaps or trace.image_problems or trace.incomplete else 0


def _parse_share(text: str) -> float:
    try:
        share = float(text.removesuffix("%"))
    except ValueError:
        share = -1
    if not 0 <= share <= 100:
        raise UsageError(f"--min-share: not a percentage from 0 to 100: {text!r}")
    return share / 100


def _print_tree(root: FunctionNode, share: float, max_depth: int) -> None:
    from rtit.views.call_tree import walk_tree

    output.print_line(f"{'total':>14} {'share':>6} {'self':>14} {'calls':>10}  function")
    whole = root.total or 1
    for depth, node, left_out in walk_tree(root, root.total * share, max_depth):
        name = escape_control_characters(node.name)
        more = f"  (+{left_out:,})" if left_out else ""
        output.print_line(
            f"{node.total:14,} {node.total / whole:6.1%} {node.own:14,} {node.calls:10,}  "
            f"{'  ' * depth}{name}{more}"
        )


def _print_notes(tree: CallTree) -> None:
    statistics = tree.statistics
    output.print_line()
    output.print_line(
        "total: instructions of the function and its callees; (+N): N callees left out "
        "(--min-share, --max-depth)"
    )
    if statistics.unknown:
        output.print_line(
            f"{statistics.unknown:,} transfers led to a stack that the trace does not identify"
        )
    if statistics.calls_without_node:
        output.print_line(
            f"{statistics.calls_without_node:,} calls were beyond the memory limits; their "
            "instructions count for a caller"
        )
