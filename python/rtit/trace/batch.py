"""Columns with names, in batches: for NumPy, for Arrow, and one by one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Self, TypeVar

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from rtit.trace.categories import Category

Field = tuple[str, str, "type[Category] | tuple[str, ...] | None"]
"""The name of a column, its dtype (u1, u4, u8), and what its numbers stand for, or their names."""


class Batch:
    """Columns of one length, NumPy arrays with the names in `FIELDS`. Whatever takes Arrow's C data
    interface (pyarrow, polars, DuckDB, pandas) takes it as it is, without a copy; categories are
    dictionaries of their labels there.
    """

    FIELDS: ClassVar[tuple[Field, ...]]
    __slots__ = ()

    def __len__(self) -> int:
        return len(getattr(self, self.FIELDS[0][0]))

    def columns(self) -> dict[str, NDArray[Any]]:
        """The columns by name."""
        return {name: getattr(self, name) for name, _, _ in self.FIELDS}

    @classmethod
    def joined(cls, batches: Iterator[Self]) -> dict[str, NDArray[Any]]:
        """The columns of all batches, each in one piece."""
        import numpy as np

        parts: dict[str, list[NDArray[Any]]] = {name: [] for name, _, _ in cls.FIELDS}
        for batch in batches:
            for name, column in batch.columns().items():
                parts[name].append(column)
        return {
            name: np.concatenate([np.zeros(0, dtype), *parts[name]])
            for name, dtype, _ in cls.FIELDS
        }

    def __arrow_c_schema__(self) -> object:
        """A struct of the columns (Arrow PyCapsule interface)."""
        from rtit import _core

        return _core.arrow_schema(native_fields(type(self)))

    def __arrow_c_array__(self, requested_schema: object = None) -> tuple[object, object]:
        """The schema and the columns; another schema is not heeded (Arrow PyCapsule interface)."""
        from rtit import _core

        fields = native_fields(type(self))
        return _core.arrow_schema(fields), _core.arrow_array(fields, list(self.columns().values()))


B = TypeVar("B", bound=Batch)


class Table(Generic[B]):
    """Batches of a stream, made as they are taken: iterated it decodes from the start each time.

    `columns` has all in memory. Whatever takes an Arrow stream takes the table as it is, a batch at
    a time.
    """

    def __init__(self, kind: type[B], batches: Callable[[], Iterator[B]]) -> None:
        self.kind = kind
        self._batches = batches

    def __iter__(self) -> Iterator[B]:
        return self._batches()

    def __repr__(self) -> str:
        names = ", ".join(name for name, _, _ in self.kind.FIELDS)
        return f"<Table of {self.kind.__name__}: {names}>"

    def columns(self) -> dict[str, NDArray[Any]]:
        """Each column in one piece."""
        return self.kind.joined(iter(self))

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """All batches; another schema is not heeded (Arrow PyCapsule interface)."""
        from rtit import _core

        parts = (list(batch.columns().values()) for batch in self)
        return _core.arrow_stream(native_fields(self.kind), parts)


def native_fields(kind: type[Batch]) -> list[tuple[str, str, list[str]]]:
    """As native code has them: labels instead of a category."""
    return [(name, dtype, labels(words)) for name, dtype, words in kind.FIELDS]


def labels(category: type[Category] | tuple[str, ...] | None) -> list[str]:
    """The label of each number from 0 on; of a number that stands for nothing it is empty."""
    if category is None or isinstance(category, tuple):
        return list(category or ())
    known = {each.value: each.label for each in category}
    return [known.get(number, "") for number in range(max(known) + 1)]
