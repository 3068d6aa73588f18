"""`rtit query FILE SQL`: the result of a SELECT statement over the tables of a recording."""

from __future__ import annotations

import argparse
import csv
import io
import math
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any

from rtit.cli import options, output
from rtit.cli.incomplete import IncompleteReport
from rtit.cli.parser import CommandParser
from rtit.cli.progress import show_progress
from rtit.errors import UsageError
from rtit.text_escaping import escape_control_characters, format_json

if TYPE_CHECKING:
    from rtit.query import Database
    from rtit.trace import Selection, Trace

_EPILOG = """Examples:
  rtit query "select kind, count(*) from branches group by kind"
  rtit query "select function, count(*) from calls group by all order by 2 desc limit 10"
  rtit query --function main "select hex(ip), file, line from instructions" --format csv
  rtit query "select * from blocks" --format parquet -o blocks.parquet
"""

_Formatter = Callable[[Sequence[str], Iterator[list[tuple[Any, ...]]]], Iterator[str]]


def add_arguments(parser: CommandParser) -> None:
    """Declare the options."""
    parser.usage = "rtit query [options] [FILE] SQL"
    parser.description = (
        "Print the result of a SELECT statement. DuckDB runs the statement while rtit decodes.\n\n"
        "Tables: packets, blocks, instructions, branches, edges, calls, functions, events."
    )
    parser.epilog = _EPILOG
    parser.has_intermixed_arguments = True
    options.add_file_argument(parser)
    parser.add_argument_group().add_argument(
        "sql", metavar="SQL", help="One SELECT statement, in DuckDB's SQL"
    )
    group = parser.add_argument_group("Output")
    group.add_argument(
        "--format",
        choices=("table", "csv", "json", "parquet"),
        default="table",
        help="Print a table for people, CSV, or one JSON object per line; or write a Parquet file, "
        "which needs -o (default: table)",
    )
    options.add_output_option(group)
    selection = options.add_stream_options(parser)
    options.add_code_selection_options(selection)
    options.add_head_and_tail_options(selection, "rows")
    options.add_max_edges_option(parser)
    options.add_common_reading_options(parser)


def run(arguments: argparse.Namespace) -> int:
    """Print the result; return 3 if something could not be decoded."""
    if arguments.format == "parquet" and arguments.output in (None, "-"):
        raise UsageError("--format parquet needs a file: -o FILE")
    with options.open_trace(arguments) as trace:
        where = options.parse_selection(arguments)
        streams = trace.select(where)
        with show_progress("query", streams, prints=arguments.output is None):
            database = _run_query(arguments, trace, where)
        output.flush_output()
        gaps = IncompleteReport("query", trace)
        for text in database.gaps:
            gaps.print_gap(text)
        return gaps.print_all_gaps(streams if database.decodes_code else [])


def _run_query(arguments: argparse.Namespace, trace: Trace, where: Selection) -> Database:
    from rtit.query import Database

    if arguments.format == "parquet":
        with output.atomic_file(arguments.output) as file:
            path = f"/proc/self/fd/{file.fileno()}"
            with Database(trace, where, writable=[path]) as database:
                database.write_parquet(arguments.sql, path)
        return database
    with Database(trace, where) as database:
        result = database.execute(arguments.sql)
        lines = _FORMATTERS[arguments.format](result.columns, result.parts())
        encoded = (f"{line}\n".encode("utf-8", "backslashreplace") for line in lines)
        output.write_file_or_stdout(arguments.output, encoded)
    return database


def _table_lines(columns: Sequence[str], parts: Iterator[list[tuple[Any, ...]]]) -> Iterator[str]:
    """Return lines with the widths of the first rows."""
    first = next(parts, [])
    names = [*map(escape_control_characters, columns)]
    is_number = [all(_is_number(row[at]) for row in first) for at in range(len(names))]
    shown = [[_cell(value) for value in row] for row in first]
    widths = [max(map(len, (name, *(row[at] for row in shown)))) for at, name in enumerate(names)]

    def line(cells: Sequence[str]) -> str:
        aligned = (
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(cells, widths, is_number, strict=True)
        )
        return "  ".join(aligned).rstrip()

    yield line(names)
    yield "  ".join("-" * width for width in widths)
    yield from map(line, shown)
    yield from (line([_cell(value) for value in row]) for part in parts for row in part)


def _is_number(value: object) -> bool:
    return value is None or (isinstance(value, int | float) and not isinstance(value, bool))


def _cell(value: object) -> str:
    return "" if value is None else escape_control_characters(str(value))


def _csv_lines(columns: Sequence[str], parts: Iterator[list[tuple[Any, ...]]]) -> Iterator[str]:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="")
    for row in chain([columns], chain.from_iterable(parts)):
        writer.writerow([_cell(value) for value in row])
        yield text.getvalue()
        text.seek(0)
        text.truncate()


def _json_lines(columns: Sequence[str], parts: Iterator[list[tuple[Any, ...]]]) -> Iterator[str]:
    for row in chain.from_iterable(parts):
        yield format_json(dict(zip(columns, map(_json_value, row), strict=True)))


def _json_value(value: object) -> object:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(key): _json_value(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [*map(_json_value, value)]
    return value if value is None or isinstance(value, int | str) else str(value)


_FORMATTERS: dict[str, _Formatter] = {
    "table": _table_lines,
    "csv": _csv_lines,
    "json": _json_lines,
}
