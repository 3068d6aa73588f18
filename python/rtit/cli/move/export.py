"""`rtit export FILE... --to DIR`: the tables of recordings as a folder of Parquet files."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

from rtit.cli import options, output
from rtit.cli.incomplete import EXIT_CODE, IncompleteReport
from rtit.cli.many_recordings import ManyRecordings
from rtit.cli.parser import CommandParser
from rtit.cli.progress import show_progress
from rtit.errors import UsageError
from rtit.remote_files import display_name

if TYPE_CHECKING:
    from rtit.trace import Selection, Trace

_TABLES = "packets,blocks,branches,edges,calls,functions,events"

_CODE_COLUMNS = ("function", "file", "line")
_EXTRA_COLUMNS = {
    "blocks": _CODE_COLUMNS,
    "instructions": _CODE_COLUMNS,
    "branches": _CODE_COLUMNS,
    "edges": ("function", "target_function"),
}
"""Columns that a table has only on request."""

_UNFINISHED = ".unfinished"
"""Suffix of a file of one of many recordings until its number is known."""
_MAX_GAPS = 10
"""Gaps of one of many recordings that are printed."""
_JOBS = f"{options.ONE_JOB}. Several recordings are decoded in one process for each CPU, at most 8"

_EPILOG = """With several recordings, each table is a folder with a Parquet file for each recording,
whose first column has the name of the recording. The file recordings.parquet lists the recordings,
their files, and what is missing in them.

Examples:
  rtit export --to tables
  rtit export --to tables --tables calls,functions
  rtit export --to tables --tables edges recordings/
"""


def add_arguments(parser: CommandParser) -> None:
    """Declare the options."""
    parser.usage = "rtit export [options] --to DIR [FILE...]"
    parser.description = (
        "Write tables of recordings to a folder, one Parquet file for each table and recording.\n\n"
        "DuckDB, polars, pandas and Spark read these files."
    )
    parser.epilog = _EPILOG
    options.add_files_argument(parser)
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
    options.add_common_reading_options(parser, jobs=_JOBS, dask=True)


def run(arguments: argparse.Namespace) -> int:
    """Write the files; return 3 if something could not be decoded."""
    from rtit.query import TABLES

    arguments.tables = [*dict.fromkeys(each.strip() for each in arguments.tables.split(","))]
    for name in arguments.tables:
        if name not in TABLES:
            raise UsageError(
                f"--tables: unknown table {name!r}", hint=f"tables: {', '.join(TABLES)}"
            )
    recordings = options.recording_names(arguments)
    if len(recordings) > 1:
        return _export_many(arguments, recordings)
    arguments.file, arguments.input = recordings[0], None
    with options.open_trace(arguments) as trace:
        where = options.parse_selection(arguments)
        streams = trace.select(where)
        with (
            show_progress("export", streams, prints=False),
            output.atomic_folder(arguments.to, replaces=("*.parquet",)) as folder,
        ):
            paths = {name: str(folder / f"{name}.parquet") for name in arguments.tables}
            texts, decodes_code = _write_tables(trace, where, paths)
        gaps = IncompleteReport("export", trace)
        for text in texts:
            gaps.print_gap(text)
        return gaps.print_all_gaps(streams if decodes_code else [])


def _write_tables(
    trace: Trace, where: Selection, paths: Mapping[str, str], recording: str | None = None
) -> tuple[list[str], bool]:
    """Write tables to files; return sentences about gaps, and whether code was decoded.

    `recording`: the value of the column of this name.
    """
    from rtit.query import Database

    texts: list[str] = []
    with Database(trace, where, writable=[*paths.values()]) as database:
        for name, path in paths.items():
            columns = _EXTRA_COLUMNS.get(name, ())
            query = f"select * from {name}"
            database.write_parquet(query, path, columns, recording=recording)
            texts += database.gaps
        return texts, database.decodes_code


def _export_many(arguments: argparse.Namespace, recordings: Sequence[str | None]) -> int:
    """Write a folder for each table, with a file for each recording."""
    from rtit.query import write_parquet_table

    many = ManyRecordings("export", arguments, recordings)
    listed: list[tuple[str, str | None, str | None]] = []
    lines: list[str] = []
    has_gaps = False
    with output.atomic_folder(arguments.to, replaces=("*.parquet",)) as folder:
        for table in arguments.tables:
            (folder / table).mkdir()
        many.arguments.folder = str(folder)
        for name, (written, gaps, code) in many.results_by_name(_export_recording):
            file = f"{len(listed):06}.parquet"
            for table in arguments.tables:
                (folder / table / written).rename(folder / table / file)
            listed.append((display_name(name), file, "; ".join(gaps) or None))
            lines += gaps
            has_gaps |= code != 0
        options.check_path_map(arguments, many.matched_maps)
        for left in folder.glob(f"*/*{_UNFINISHED}"):  # of a process that died
            left.unlink()
        listed += [(name, None, reason) for name, reason in many.unreadable.items()]
        columns = zip(*listed, strict=True)
        texts = dict(zip(("recording", "file", "problem"), columns, strict=True))
        write_parquet_table(str(folder / "recordings.parquet"), texts)
    for line in [*lines, *many.unreadable.values()]:
        output.print_error("export", f"missing: {line}")
    return EXIT_CODE if has_gaps or many.unreadable else 0


def _export_recording(
    arguments: argparse.Namespace, matched: set[str]
) -> tuple[str, list[str], int]:
    """Write a file into the folder of each table; return its name, gaps, and the exit code."""
    file = f"{uuid4().hex}{_UNFINISHED}"
    paths = {name: str(Path(arguments.folder) / name / file) for name in arguments.tables}
    with options.open_trace(arguments, matched) as trace:
        where = options.parse_selection(arguments)
        streams = trace.select(where)
        gaps, decodes_code = _write_tables(trace, where, paths, trace.path)
        report = IncompleteReport("export", trace, gaps.append)
        code = report.print_all_gaps(streams if decodes_code else [])
        if len(gaps) > _MAX_GAPS:
            gaps[_MAX_GAPS:] = [f"{len(gaps) - _MAX_GAPS:,} more gaps"]
        lines = [line if trace.path in line else f"{trace.path}: {line}" for line in gaps]
    return file, lines, code
