"""`rtit branches`, `blocks`, `edges` and `events`: lists rows of each stream of a recording."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from functools import partial

from rtit.cli import options, output
from rtit.cli.incomplete import IncompleteReport
from rtit.cli.parser import CommandParser
from rtit.cli.progress import show_progress
from rtit.views.field_names import BLOCK_FIELDS, BRANCH_FIELDS, CODE_FIELDS, STATE_FIELDS

_DESCRIPTIONS = {
    "branches": "List all branches and other control transfers, one per line.",
    "blocks": "List every contiguous sequence of executed instructions, one per line.",
    "edges": "Count how often each branch went to each target, one line per branch and target.",
    "events": "List interrupts, transactions, PTWRITEs and power events, one per line.",
}
_EPILOGS = {
    "branches": """Examples:
  rtit branches --function main | less
  rtit branches --fields time,source,target --head 100 --json
""",
    "blocks": """Examples:
  rtit blocks --function main | less
  rtit blocks --tail 20 --timing crash.data
  rtit blocks --fields index,start,file,line --function main
""",
    "edges": """Examples:
  rtit edges --top 20
  rtit edges --function main --json
""",
    "events": """Examples:
  rtit events
  rtit events --function main --json
""",
}

_FIELDS = {
    "branches": (BRANCH_FIELDS, "source,target,kind"),
    "blocks": (BLOCK_FIELDS, "start,instructions,end"),
}
"""The fields of a command, and those that it prints by default."""


def add_arguments(parser: CommandParser) -> None:
    """Declare the options."""
    command = parser.get_default("command")
    parser.description, parser.epilog = _DESCRIPTIONS[command], _EPILOGS[command]
    options.add_file_argument(parser)
    group = parser.add_argument_group("Output")
    if command != "edges":
        options.add_head_and_tail_options(group, "events" if command == "events" else "rows")
    if command == "branches":
        options.add_timing_option(group, "branch")
    if command == "blocks":
        options.add_timing_option(group, "block", "cycles, frequency and instructions per cycle")
    options.add_json_option(group)
    if command in _FIELDS:
        fields, default = _FIELDS[command]
        *names, last = (each for each in fields if each in (*STATE_FIELDS, *CODE_FIELDS))
        requested = f"{', '.join(names)} and {last}"
        help_text = (
            f"Comma-separated list of columns: {' '.join(fields)} (default: %(default)s). With "
            f"--json, an object has {requested} only if LIST contains them; it always has all "
            "other fields. 'rtit help fields' explains the fields"
        )
        options.add_value_option(group, "--fields", "LIST", help_text, default=default)
    if command == "edges":
        help_text = "Only the N most frequent pairs of branch and target in each thread or CPU"
        options.add_value_option(group, "--top", "N", help_text, type=options.parse_count)
    options.add_code_selection_options(options.add_stream_options(parser))
    if command == "edges":
        options.add_max_edges_option(parser)
    options.add_common_reading_options(
        parser, jobs=options.MANY_JOBS if command == "edges" else options.ONE_JOB
    )


def run(arguments: argparse.Namespace) -> int:
    """Print the rows; return 3 if something could not be decoded."""
    from rtit.trace.tables.selection import SelectedRanges

    uncounted: list[str] = []
    lines = _row_formatter(arguments, uncounted.append)
    with options.open_trace(arguments) as trace:
        gaps = IncompleteReport(arguments.command, trace)
        wanted = options.parse_selection(arguments)
        streams = trace.select(wanted)
        SelectedRanges(wanted, trace.images).check_functions_exist(
            pid for stream in streams for pid in stream.space_pids
        )
        with show_progress(arguments.command, streams, prints=True):
            for stream in streams:
                for part in lines(trace, stream, wanted):
                    output.write_lines(part)
                gaps.collect_undecoded_spans(stream)
        output.flush_output()
        gaps.print_undecoded_spans()
        gaps.print_image_problems()
        for text in uncounted:
            gaps.print_gap(text)
        return gaps.exit_code()


def _row_formatter(
    arguments: argparse.Namespace, warn: Callable[[str], None]
) -> Callable[..., Iterator[bytes]]:
    """Return the function that formats the rows of a stream, with the options of its command."""
    from rtit.views import row_formatting

    as_json = arguments.json
    if arguments.command == "events":
        return partial(row_formatting.format_events, as_json=as_json)
    if arguments.command == "edges":
        return partial(row_formatting.format_edges, as_json=as_json, top=arguments.top, warn=warn)
    known, _ = _FIELDS[arguments.command]
    fields = options.parse_fields(arguments.fields, known)
    formats = {"branches": row_formatting.format_branches, "blocks": row_formatting.format_blocks}
    return partial(
        formats[arguments.command], as_json=as_json, timing=arguments.timing, fields=fields
    )
