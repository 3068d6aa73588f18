"""SQL queries over the tables of a trace, by DuckDB (`pip install 'rtit[query]'`).

DuckDB reads each table one batch of rows at a time, while rtit decodes it. A table that a query
does not name is not decoded. The tables are those of `TABLES`.
"""

from __future__ import annotations

from rtit.query.database import Database, Result, write_parquet_table
from rtit.query.tables import TABLES

__all__ = ["TABLES", "Database", "Result", "write_parquet_table"]
