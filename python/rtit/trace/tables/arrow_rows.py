"""Conversions of tables and batches for other libraries, which read them through Arrow."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from rtit.errors import UnsupportedError
from rtit.trace.notebook_display import NotebookDisplay

if TYPE_CHECKING:
    import pandas
    import polars
    import pyarrow


class ArrowRows(NotebookDisplay):
    """Base of `Table` and `Batch`, which implement the Arrow PyCapsule interface.

    Categories and names of functions become columns of categories. A table is decoded from the
    start. Each method raises UnsupportedError if the library is not installed.
    """

    __slots__ = ()

    def to_arrow(self) -> pyarrow.Table:
        """Return all rows as a table of pyarrow."""
        return _import_library("to_arrow", "pyarrow").table(self)

    def to_polars(self) -> polars.DataFrame:
        """Return all rows as a data frame of polars."""
        frame: polars.DataFrame = _import_library("to_polars", "polars").DataFrame(self)
        return frame

    def to_pandas(self) -> pandas.DataFrame:
        """Return all rows as a data frame of pandas, which needs pandas 3 and pyarrow."""
        return _import_library("to_pandas", "pandas", "pyarrow").DataFrame.from_arrow(self)


def _import_library(method: str, *names: str) -> Any:
    """Import the libraries that a method needs, and return the first."""
    try:
        first, *_ = map(import_module, names)
    except ImportError:
        raise UnsupportedError(
            f"{method} needs {' and '.join(names)}: pip install {' '.join(names)}"
        ) from None
    return first
