"""A fixture that queries Parquet files by DuckDB."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import pytest


class ParquetQuery(Protocol):
    """Returns the rows of a query."""

    def __call__(self, query: str, parameters: Sequence[str] = ()) -> list[tuple[Any, ...]]: ...


@pytest.fixture
def query_parquet() -> ParquetQuery:
    """Return a function that queries Parquet files.

    Each query has its own connection. DuckDB refuses to use a connection while it has a result
    that is not read to its end, so a shared one would let one test fail another.
    """
    duckdb = pytest.importorskip("duckdb", minversion="2", reason="duckdb 2 is not installed")

    def run(query: str, parameters: Sequence[str] = ()) -> list[tuple[Any, ...]]:
        with duckdb.connect() as connection:
            rows: list[tuple[Any, ...]] = connection.execute(query, parameters).fetchall()
        return rows

    return run
