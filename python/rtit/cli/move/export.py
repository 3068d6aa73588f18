"""`rtit export FILE --to DIR`: the tables of a recording as a folder of Parquet files."""

from __future__ import annotations

import argparse

from rtit.cli import options, output
from rtit.cli.incomplete import IncompleteReport
from rtit.cli.parser import CommandParser
from rtit.cli.progress import show_progress
from rtit.errors import UsageError

_TABLES = "packets,blocks,branches,edges,calls,functions,events"

_CODE_COLUMNS = ("function", "file", "line")
_EXTRA_COLUMNS = {
    "blocks": _CODE_COLUMNS,
    "instructions": _CODE_COLUMNS,
    "branches": _CODE_COLUMNS,
    "edges": ("function", "target_function"),
}
"""Columns that a table has only on request."""

_EPILOG = """Examples:
  rtit export --to tables
  rtit export --to tables --tables calls,functions
"""


def add_arguments(parser: CommandParser) -> None:
    """Declare the options."""
    parser.usage = "rtit export [options] --to DIR [FILE]"
    parser.description = (
        "Write tables of a recording to a folder, one Parquet file for each table.\n\n"
        "DuckDB, polars, pandas and Spark read these files."
    )
    parser.epilog = _EPILOG
    options.add_file_argument(parser)
    group = parser.add_argument_group("Output")
    group.add_argument(
        "--to",
        metavar="DIR",
        required=True,
        help="Folder to write; a folder with only Parquet files is replaced",
    )
    options.add_value_option(
        group,
        "--tables",
        "LIST",
        "Comma-separated list of tables: packets blocks instructions branches edges calls "
        "functions events (default: all but instructions)",
        default=_TABLES,
    )
    options.add_stream_options(parser)
    options.add_max_edges_option(parser)
    options.add_common_reading_options(parser)


def run(arguments: argparse.Namespace) -> int:
    """Write the files; return 3 if something could not be decoded."""
    from rtit.query import TABLES, Database

    names = dict.fromkeys(each.strip() for each in arguments.tables.split(","))
    for name in names:
        if name not in TABLES:
            raise UsageError(
                f"--tables: unknown table {name!r}", hint=f"tables: {', '.join(TABLES)}"
            )
    with options.open_trace(arguments) as trace:
        where = options.parse_selection(arguments)
        streams = trace.select(where)
        texts: list[str] = []
        with (
            show_progress("export", streams, prints=False),
            output.atomic_folder(arguments.to, replaces=("*.parquet",)) as folder,
        ):
            paths = {name: str(folder / f"{name}.parquet") for name in names}
            with Database(trace, where, writable=[*paths.values()]) as database:
                for name, path in paths.items():
                    columns = _EXTRA_COLUMNS.get(name, ())
                    database.write_parquet(f"select * from {name}", path, columns)
                    texts += database.gaps
        gaps = IncompleteReport("export", trace)
        for text in texts:
            gaps.print_gap(text)
        return gaps.print_all_gaps(streams if database.decodes_code else [])
