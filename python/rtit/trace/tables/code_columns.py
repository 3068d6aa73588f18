"""Columns that tables have on request: `index`, `function`, `file` and `line` of a row's code, and
the `cpl` and `cr3` with which it ran.

Functions and lines are looked up in the code of each row's process at the time of the row.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from rtit.errors import UsageError
from rtit.image import KERNEL_START
from rtit.trace.tables.batch import FunctionBatch
from rtit.trace.tables.rows import Rows
from rtit.trace.threads.address_spaces import has_no_process

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from rtit.image import Symbols
    from rtit.trace.tables.batch import Batch

F = TypeVar("F", bound=FunctionBatch)

INDEX_COLUMN = "index"
CPL_COLUMN = "cpl"
CR3_COLUMN = "cr3"
STATE_COLUMNS = (CPL_COLUMN, CR3_COLUMN)
"""Columns of blocks and instructions only."""
CODE_COLUMNS = (INDEX_COLUMN, "function", "file", "line", *STATE_COLUMNS)


class StreamOfCode(Protocol):
    """The processes of a stream, as `Stream` has them."""

    @property
    def tid(self) -> int: ...  # noqa: D102 - see `Stream`
    @property
    def space_pids(self) -> tuple[int, ...]: ...  # noqa: D102


def parse_code_columns(names: Collection[str]) -> tuple[str, ...]:
    """Return the columns in the order of `CODE_COLUMNS`. Raises UsageError for other names."""
    if isinstance(names, str):
        raise UsageError(f"`extra_columns` is not a list of names: {names!r}")
    for name in names:
        if name not in CODE_COLUMNS:
            raise UsageError(f"unknown column {name!r}; extra columns: {', '.join(CODE_COLUMNS)}")
    return tuple(name for name in CODE_COLUMNS if name in names)


def add_indexes(batches: Iterator[F]) -> Iterator[F]:
    """Add the column `index` to all blocks or instructions of a stream."""
    import numpy as np

    first = 0
    for batch in batches:
        counts = instruction_counts(batch)
        ends = first + np.cumsum(counts, dtype=np.uint64)
        yield batch.with_columns(index=ends - counts)
        first = int(ends[-1]) if len(ends) else first


def add_cpl(batches: Iterator[F], tid: int, *, has_user_code_only: bool) -> Iterator[F]:
    """Add the column `cpl` to all blocks or instructions of a stream. `tid`: its thread, if it has
    no column for it.

    No packet has the CPL. Linux runs programs at CPL 3 below the addresses of the kernel. Kernel
    code runs there only while a processor starts, in thread 0, which never runs a program.
    """
    import numpy as np

    for batch in batches:
        assert batch.ADDRESS_COLUMNS is not None
        columns = batch.columns()
        tids = columns.get("tid", np.full(len(batch), tid, np.int32))
        is_user = (columns[batch.ADDRESS_COLUMNS[0]] < np.uint64(KERNEL_START)) & (tids != 0)
        if has_user_code_only:
            is_user[:] = True
        yield batch.with_columns(cpl=np.where(is_user, np.uint8(3), np.uint8(0)))


def instruction_counts(batch: Batch) -> NDArray[np.uint64]:
    """Return the number of instructions of each row: of blocks, else 1."""
    import numpy as np

    if isinstance(batch, Rows):
        return batch.instructions.astype(np.uint64)
    return np.ones(len(batch), np.uint64)


def add_source_columns(
    batches: Iterator[F], wanted: Collection[str], stream: StreamOfCode, symbols: Symbols
) -> Iterator[F]:
    """Add the `wanted` columns of `function`, `file` and `line` to the batches of a stream."""
    import numpy as np

    functions, files = _DistinctTexts(), _DistinctTexts()
    for batch in batches:
        assert batch.ADDRESS_COLUMNS is not None
        rows = batch.columns()
        addresses = rows[batch.ADDRESS_COLUMNS[0]]
        added: dict[str, NDArray[Any]] = {}
        if "function" in wanted:
            numbers, _ = lookup_symbols(symbols, stream, rows, rows["time"], addresses)
            names = {
                number: function_or_module(*symbols.table[number])
                for number in np.unique(numbers).tolist()
            }
            added["function"] = functions.encode(numbers, names)
        if "file" in wanted or "line" in wanted:
            numbers, lines = np.zeros((2, len(batch)), np.uint32)
            for owner, here in _rows_by_owner(stream, rows, len(batch)):
                numbers[here], lines[here] = symbols.source_lines(
                    owner, rows["time"][here], addresses[here]
                )
            paths = {number: symbols.source_files[number] for number in np.unique(numbers).tolist()}
            found = {"file": files.encode(numbers, paths), "line": lines}
            added |= {name: found[name] for name in ("file", "line") if name in wanted}
        yield batch.with_columns(**added).replace(functions=functions.texts, files=files.texts)


def function_or_module(function: str, module: str) -> str:
    """Return the name of the function, or of the file if there is no function."""
    return function or module.rpartition("/")[2]


class _DistinctTexts:
    """Texts, each once, in the order of their first use."""

    def __init__(self) -> None:
        self._codes: dict[str, int] = {}
        self.texts: tuple[str, ...] = ()

    def encode(self, numbers: NDArray[Any], texts: Mapping[int, str]) -> NDArray[np.uint32]:
        """Return the index in `texts` of each number's text."""
        import numpy as np

        known, rows = np.unique(numbers, return_inverse=True)
        codes = [self._codes.setdefault(texts[each], len(self._codes)) for each in known.tolist()]
        if len(self.texts) < len(self._codes):
            self.texts = tuple(self._codes)
        return np.array(codes, np.uint32)[rows]


def lookup_symbols(
    symbols: Symbols,
    stream: StreamOfCode,
    columns: Mapping[str, NDArray[Any]],
    times: NDArray[Any],
    addresses: NDArray[Any],
    space_column: str = "space",
) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return the module number and the offset of each address, as `Symbols.lookup_many` does.

    Each row is looked up in the process that the column `space_column` names, if it names the
    kernel or a guest; otherwise in that of its thread (column `tid`), its process (column `pid`),
    or the stream.
    """
    import numpy as np

    numbers, offsets = np.zeros(len(addresses), np.uint32), addresses.copy()
    for owner, rows in _rows_by_owner(stream, columns, len(addresses), space_column):
        numbers[rows], offsets[rows] = symbols.lookup_many(owner, times[rows], addresses[rows])
    return numbers, offsets


def _rows_by_owner(
    stream: StreamOfCode,
    columns: Mapping[str, NDArray[Any]],
    count: int,
    space_column: str = "space",
) -> Iterator[tuple[int, NDArray[np.bool_]]]:
    """Yield each thread or process with rows, and the mask of its rows."""
    import numpy as np

    owners = columns.get("tid", columns.get("pid", np.full(count, stream.tid))).astype(np.int64)
    if space_column in columns:
        pids = np.array(stream.space_pids, np.int64)[columns[space_column]]
        owners = np.where(has_no_process(pids), pids, owners)
    for owner in np.unique(owners).tolist():
        yield owner, owners == owner
