"""A DuckDB database in memory with the tables of one trace.

The SQL of a query may come from anybody: it can read the tables and nothing else. DuckDB has no
access to files, network, extensions and variables of Python, and its settings are locked.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cached_property
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Self

from rtit.errors import UnsupportedError, UsageError
from rtit.query.tables import TABLES, QueryTable, Request
from rtit.text_escaping import escape_control_characters, name_to_text
from rtit.trace.tables.batch import arrow_fields
from rtit.trace.tables.selection import Selection

if TYPE_CHECKING:
    import duckdb

    from rtit.trace.trace import Trace

MEMORY_LIMIT = "1GB"
"""Memory of DuckDB. Larger results of sorting and grouping are moved to a temporary folder."""
_PARQUET = "FORMAT parquet, COMPRESSION zstd, USE_TMP_FILE false"
_NAME = re.compile(r"[a-z_][a-z0-9_]*")


class Database:
    """A DuckDB database with the tables of a trace, `TABLES`. A context manager.

    `where` selects rows of each table. `writable` are the only files that statements of rtit itself
    may write. The trace must stay open; each query decodes it again. Raises UnsupportedError
    without DuckDB.
    """

    def __init__(
        self, trace: Trace, where: Selection | None = None, *, writable: Sequence[str] = ()
    ) -> None:
        duckdb = _import_duckdb()
        self._trace = trace
        self._where = where or Selection()
        self._spill = TemporaryDirectory(prefix="rtit-query-")
        self._errors: list[BaseException] = []
        self.gaps: list[str] = []
        """Sentences about what is missing in the tables of the last query."""
        self.decodes_code = False
        """Whether a query has named a table other than `packets`."""
        self._connection = duckdb.connect(
            config={
                "temp_directory": self._spill.name,
                "memory_limit": MEMORY_LIMIT,
                "autoinstall_known_extensions": "false",
                "autoload_known_extensions": "false",
            }
        )
        self._connection.execute("SET allowed_paths = $1", [list(writable)])
        self._connection.execute("SET enable_external_access = false")
        self._connection.execute("SET lock_configuration = true")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the database. Results that were not read are lost."""
        self._connection.close()
        self._spill.cleanup()

    def sql(self, query: str) -> duckdb.DuckDBPyRelation:
        """Return the result of one SELECT statement, as DuckDB has it: with `df()`, `pl()`,
        `fetchall()` and others, each of which runs the query.

        Raises UsageError for other statements and for invalid ones.
        """
        connection = self._with_tables(query)
        with self._own_errors():
            return connection.sql(query)

    def execute(self, query: str) -> Result:
        """Run one SELECT statement, and return its rows. Raises as `sql`."""
        connection = self._with_tables(query)
        with self._own_errors():
            return Result(self, connection.execute(query))

    def write_parquet(
        self, query: str, path: str, columns: Collection[str] = (), *, recording: str | None = None
    ) -> None:
        """Write the rows of one SELECT statement to a `writable` file. Raises as `sql`.

        `columns`: tables have these columns although the query does not name them. `recording`: the
        value of a first column of this name.
        """
        connection = self._with_tables(query, columns)
        with self._own_errors():
            # A view, because the query may end with a semicolon or a comment.
            connection.execute(f"CREATE TEMP VIEW rtit_result AS {query}")
            rows = "rtit_result"
            if recording is not None:
                text = _printable_name(recording).replace("'", "''")
                rows = f"(SELECT '{text}' AS recording, * FROM rtit_result)"
            connection.execute(f"COPY {rows} TO $1 ({_PARQUET})", [path])

    def _with_tables(self, query: str, columns: Collection[str] = ()) -> duckdb.DuckDBPyConnection:
        """Return a connection that has the tables that a query names."""
        engine = _import_duckdb()
        connection: duckdb.DuckDBPyConnection = self._connection.cursor()
        with self._own_errors():
            statements = connection.extract_statements(query)
            if [each.type for each in statements] != [engine.StatementType.SELECT]:
                raise UsageError("a query is one SELECT statement")
            names = frozenset(_NAME.findall(query.lower())).union(columns)
            self.gaps.clear()
            request = Request(self._trace, self._where, names, self.gaps.append)
            for name in TABLES.keys() & names:
                self.decodes_code |= name != "packets"
                connection.register(name, _Source(name, request, self._errors))
        return connection

    @contextmanager
    def _own_errors(self) -> Iterator[None]:
        """Raise errors of decoding as they were, and errors of DuckDB as UsageError."""
        duckdb = _import_duckdb()
        self._errors.clear()
        try:
            yield
        except duckdb.Error as error:
            if self._errors:
                raise self._errors[0] from None
            message, _, position = str(error).partition("\n\n")
            message = " ".join(message.partition("\nDid you mean")[0].split())
            hint = position
            if isinstance(error, duckdb.CatalogException):
                hint = f"tables: {', '.join(TABLES)}"
            elif isinstance(error, duckdb.PermissionException):
                hint = "a query reads the tables of the recording, and no files"
            raise UsageError(escape_control_characters(message), hint=hint) from None


class Result:
    """The rows of a query, read one part at a time."""

    def __init__(self, database: Database, connection: duckdb.DuckDBPyConnection) -> None:
        self._database = database
        self._connection = connection
        self.columns = [name for name, *_ in connection.description or ()]
        """Names of the columns."""

    def parts(self, rows: int = 1 << 12) -> Iterator[list[tuple[Any, ...]]]:
        """Iterate over parts of at most `rows` rows. Raises what decoding raises."""
        with self._database._own_errors():
            while part := self._connection.fetchmany(rows):
                yield part


class _Source:
    """A table that DuckDB reads through Arrow's stream interface."""

    def __init__(self, name: str, request: Request, errors: list[BaseException]) -> None:
        self._name = name
        self._request = request
        self._errors = errors

    @cached_property
    def _table(self) -> QueryTable:
        return TABLES[self._name](self._request)

    def __arrow_c_schema__(self) -> object:
        from rtit import _core

        with self._kept_errors():
            return _core.arrow_schema(arrow_fields(tuple(self._table.fields)))

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        from rtit import _core

        with self._kept_errors():
            return _core.arrow_stream(arrow_fields(tuple(self._table.fields)), self._batches())

    def _batches(self) -> Iterator[tuple[list[tuple[str, str, list[str]]], list[Any]]]:
        with self._kept_errors():
            for fields, columns in self._table.batches():
                yield arrow_fields(tuple(fields)), columns

    @contextmanager
    def _kept_errors(self) -> Iterator[None]:
        """Keep an error, of which DuckDB passes on the text alone."""
        try:
            yield
        except GeneratorExit:
            raise
        except BaseException as error:
            self._errors.append(error)
            raise


def write_parquet_table(
    path: str, texts: Mapping[str, Sequence[str | None]], table: object = None
) -> None:
    """Write a Parquet file: columns of texts, and beside them those of an Arrow table.

    All have the same number of rows. Raises OSError, and UnsupportedError without DuckDB.
    """
    duckdb = _import_duckdb()
    with duckdb.connect() as connection:
        sources = []
        if texts:
            columns = ", ".join(f"{name} VARCHAR" for name in texts)
            connection.execute(f"CREATE TEMP TABLE texts ({columns})")
            lists = [[each and _printable_name(each) for each in texts[name]] for name in texts]
            values = ", ".join(f"unnest(${at}::VARCHAR[])" for at in range(1, len(lists) + 1))
            connection.execute(f"INSERT INTO texts SELECT {values}", lists)
            sources.append("texts")
        if table is not None:
            connection.register("arrow_table", table)
            sources.append("arrow_table")
        try:
            rows = f"(SELECT * FROM {' POSITIONAL JOIN '.join(sources)})"
            connection.execute(f"COPY {rows} TO $1 ({_PARQUET})", [path])
        except duckdb.IOException as error:
            raise OSError(str(error)) from None


def _printable_name(name: str) -> str:
    return name_to_text(name).encode("utf-8", "backslashreplace").decode()


def _import_duckdb() -> Any:
    with suppress(ImportError):
        import duckdb

        if int(duckdb.__version__.partition(".")[0]) >= 2:  # 1 reads Arrow streams by pyarrow
            return duckdb
    raise UnsupportedError("queries need DuckDB 2: pip install 'rtit[query]'")
