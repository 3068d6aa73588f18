"""What a stream decodes to as tables, and which part of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sized
from typing import TYPE_CHECKING, Any, TypeVar

from rtit.image import KERNEL_PID
from rtit.image.mappings import KERNEL_START
from rtit.trace.tables.batch import Batch, EventKind, Table
from rtit.trace.tables.counts import EdgeTotals, RunTotals, Sums, Totals
from rtit.trace.tables.ledger import Ledger
from rtit.trace.tables.rows import Branches, Events, Instructions, Rows, SyncPoints
from rtit.trace.tables.selection import Filter
from rtit.trace.threads.address_spaces import COLUMNS, filled

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from rtit import _core


B = TypeVar("B", bound=Batch)
_WHOSE = ("tid", "pid")
ROWS = 1 << 16
"""Of a batch, about."""


def table(
    kind: type[B],
    batches: Callable[[], Iterator[B]],
    wanted: Filter | None,
    more: tuple[str, ...] = (),
) -> Table[B]:
    """What `wanted` takes of the batches, which have the columns `more`; None: nothing. Raises
    UsageError for what rows of this kind cannot be chosen by.
    """
    if wanted is None:
        return Table(kind, lambda: iter(()), more)
    wanted.check(kind)
    if wanted == Filter():
        return Table(kind, batches, more)
    if COLUMNS[0] in more or wanted.by_space is None:
        return Table(kind, lambda: wanted.apply(batches()), more)
    # rows were chosen by it
    return Table(kind, lambda: (each.without(COLUMNS) for each in wanted.apply(batches())), more)


def of_rows(rows: Iterator[Rows]) -> Iterator[Events]:
    """The events between rows."""
    return (each.events for each in rows if len(each.events))


def sync_points(rows: Iterator[Rows]) -> Iterator[SyncPoints]:
    """The PSBs among the events."""
    for events in of_rows(rows):
        here = events.kind == EventKind.PSB
        if here.any():
            chosen = events.take(here)
            yield SyncPoints(chosen.offset, chosen.ip, chosen.time, more=chosen.more)


Placed = Iterator[tuple[B, Sized]]
"""Batches, and for each row the offset of the packet that told of it, if the decoder has them: an
array of u64, or a buffer.
"""


def instructions(flow: _core.Flow, *, spaced: bool = False) -> Placed[Instructions]:
    """All of a decoder; `spaced`: with `space`."""
    while (columns := flow.instructions(ROWS)) is not None:
        ip, size, time, bits, in_tx, offset = columns[:6]
        more = {"space": filled(columns[6], len(ip))} if spaced else {}
        yield Instructions(ip, size, time, bits, in_tx, more=more), offset


def branches(flow: _core.Flow, *, spaced: bool = False) -> Placed[Branches]:
    """All of a decoder; `spaced`: with `space` and `target_space`."""
    while (columns := flow.branches(ROWS)) is not None:
        source, target, kind, time, offset = columns[:5]
        more = {}
        if spaced:
            space = filled(columns[5], len(source))
            other = filled(columns[6], len(source)) if len(columns[6]) else space
            more = {"space": space, "target_space": other}
        yield Branches(source, target, kind, time, more=more), offset


def totals(flow: _core.Flow) -> Totals:
    """All of a decoder."""
    import numpy as np

    columns = flow.totals()
    runs = RunTotals(
        np.frombuffer(columns["run_start"], np.uint64),
        np.frombuffer(columns["run_instructions"], np.uint32),
        np.frombuffer(columns["run_count"], np.uint64),
    ).replaced(others=columns["other_runs"])
    edges = EdgeTotals(
        np.frombuffer(columns["edge_from"], np.uint64),
        np.frombuffer(columns["edge_to"], np.uint64),
        np.frombuffer(columns["edge_kind"], np.uint8),
        np.frombuffer(columns["edge_count"], np.uint64),
    ).replaced(others_of=dict(enumerate(columns["other_edges"])))
    return Totals(runs, edges)


def edges_of(found: Table[Branches], most: int = 0, *, by_process: bool = False) -> EdgeTotals:
    """Branches added up: the first `most` edges in their order, as `Sums` has them; `by_process`:
    with `pid`.
    """
    names, dtypes = _of_spaces(found)
    if by_process:
        names, dtypes = [*names, "pid"], f"{dtypes} i4"
    sums = Sums(f"u8 u8 u1{dtypes}", most, kind=2)
    for each in found:
        more = {name: each.more[name] for name in names}
        if by_process:
            more["pid"] = _of_kernel(each, more["pid"])
        sums.add(each.source, each.target, each.kind, *more.values())
    source, target, kind, *columns, count = sums.columns()
    edges = EdgeTotals(source, target, kind, count, more=dict(zip(names, columns, strict=True)))
    return edges.replaced(others_of=sums.others_of)


def _of_kernel(found: Branches, pids: NDArray[Any]) -> NDArray[Any]:
    """The processes of branches, and KERNEL_PID for those that are in no process's half at all."""
    import numpy as np

    upper = np.minimum(found.source, found.target) >= np.uint64(KERNEL_START)
    return np.where(upper, np.int32(KERNEL_PID), pids)


def runs_of(found: Table[Rows], most: int = 0) -> RunTotals:
    """Rows added up: the first `most` runs in their order, as `Sums` has them."""
    spaces, dtypes = _of_spaces(found)
    sums = Sums(f"u8 u4{dtypes}", most)
    for each in found:
        sums.add(each.start, each.instructions, *(each.more[name] for name in spaces))
    start, instructions, *more, count = sums.columns()
    runs = RunTotals(start, instructions, count, more=dict(zip(spaces, more, strict=True)))
    return runs.replaced(others=sums.others)


def _of_spaces(found: Table[B]) -> tuple[list[str], str]:
    """The columns that say in which space its rows are, and their dtypes."""
    spaces = [name for name in COLUMNS if name in found.more]
    return spaces, " u4" * len(spaces)


def one_after_the_other(parts: list[tuple[Table[B], int, int]], kind: type[B]) -> Table[B]:
    """Tables of several streams as one, with `tid` and `cpu` of each stream as columns."""
    import numpy as np

    every = parts[0][0].more if parts else ()
    # a space is not told of where one stream has several and another has not
    every = tuple(name for name in every if all(name in part.more for part, _, _ in parts))
    dropped = (*_WHOSE, *(name for name in COLUMNS if name not in every))

    def batches() -> Iterator[B]:
        for part, tid, cpu in parts:
            for batch in part:
                shape = len(batch)
                whose = batch.more.get("tid", np.full(shape, tid, np.int32))
                yield batch.without(dropped).with_columns(
                    tid=whose, cpu=np.full(shape, cpu, np.int32)
                )

    more = [name for name in every if name not in _WHOSE]
    return Table(kind, batches, (*more, "tid", "cpu"))


def ledgers(parts: list[tuple[Ledger, int, int]]) -> Ledger:
    """Those of several streams as one, with `tid` and `cpu` of each stream as columns."""
    import numpy as np

    texts: dict[str, int] = {"": 0}
    numbers = [
        np.array([texts.setdefault(text, len(texts)) for text in part.texts], np.uint32)[part.error]
        for part, _, _ in parts
    ]
    columns = [
        part.columns() | {"error": error}
        for (part, _, _), error in zip(parts, numbers, strict=True)
    ]
    own = {
        name: np.concatenate([np.zeros(0, dtype), *(each[name] for each in columns)])
        for name, dtype, _ in Ledger.FIELDS
    }
    more = {
        name: np.concatenate(
            [np.zeros(0, np.int32), *(np.full(len(each[0]), each[at], np.int32) for each in parts)]
        )
        for at, name in ((1, "tid"), (2, "cpu"))
    }
    return Ledger(**own, texts=tuple(texts), more=more)
