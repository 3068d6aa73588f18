"""Blocks, branches and edges as lines of text, or a JSON object each."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from rtit.readable import readable
from rtit.trace.categories import End
from rtit.trace.selection import LATEST, Selection
from rtit.views.places import lookup

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from rtit.trace import Batch, Stream, Trace

_NOT_TAKEN = "not taken"
_NAME = 32


def blocks(
    trace: Trace, stream: Stream, where: Selection, *, timing: bool = False, as_json: bool = False
) -> Iterator[str]:
    """Runs of instructions that follow each other in memory, and why each ended."""
    show = _Shown(trace, stream, End.CUT.label, timing=timing)
    columns = ("start", "name of start", "instructions", "end")
    return show.lines(stream.blocks(where, timing=timing), columns, as_json=as_json)


def branches(
    trace: Trace, stream: Stream, where: Selection, *, timing: bool = False, as_json: bool = False
) -> Iterator[str]:
    """Branches and other transfers, from where to where."""
    show = _Shown(trace, stream, _NOT_TAKEN, timing=timing)
    columns = ("source", "name of source", "target", "name of target", "kind")
    return show.lines(stream.branches(where, timing=timing), columns, as_json=as_json)


def edges(
    trace: Trace,
    stream: Stream,
    where: Selection,
    *,
    top: int | None = None,
    as_json: bool = False,
) -> Iterator[str]:
    """How often each transfer was taken, the most frequent first; of these `top`."""
    import numpy as np

    found = stream.edges(where)
    # of the same count in the order of their addresses
    found = found.take(np.argsort(found.count.max(initial=0) - found.count, kind="stable")[:top])
    show = _Shown(trace, stream, _NOT_TAKEN, timing=False)
    columns = ("count", "source", "name of source", "target", "name of target", "kind")
    return show.lines([found], columns, as_json=as_json)


class _Shown:
    """Columns of a stream as text."""

    def __init__(self, trace: Trace, stream: Stream, cut: str, *, timing: bool) -> None:
        self._trace = trace
        self._stream = stream
        self._timing = timing
        self._ends = [each.label for each in sorted(End)]
        self._ends[End.CUT] = cut
        # the code of several spaces has the same addresses with other names
        self._named = not stream.spaces and stream.guest is None
        clock = trace.clock
        self._nanoseconds: Callable[[int], int] = (
            clock.to_nanoseconds if clock is not None else lambda ticks: ticks
        )

    def lines(
        self, batches: Iterable[Batch], columns: tuple[str, ...], *, as_json: bool
    ) -> Iterator[str]:
        for batch in batches:
            if as_json:
                yield from self._objects(batch)
                continue
            texts = self._whose(batch)
            if self._timing:
                texts += [self._times(batch, name) for name in ("earliest", "latest")]
            texts += [self._column(batch, name) for name in columns]
            yield from (" ".join(each).rstrip() for each in zip(*texts, strict=True))

    def _whose(self, batch: Batch) -> list[list[str]]:
        tids = batch.columns().get("tid")
        if tids is not None:
            return [[f"{each:7}" for each in tids.tolist()]]
        one = self._stream.tid >= 0 and not self._stream.has_several
        return [[f"{self._stream.tid:7}"] * len(batch)] if one else []

    def _column(self, batch: Batch, name: str) -> list[str]:
        if name.startswith("name of "):
            return self._names(batch, getattr(batch, name.removeprefix("name of ")))
        values = getattr(batch, name).tolist()
        if name in ("end", "kind"):
            return [self._ends[each] for each in values]
        width = {"count": "12,", "instructions": "5"}.get(name, "16x")
        return [f"{each:{width}}" for each in values]

    def _names(self, batch: Batch, addresses: NDArray[Any]) -> list[str]:
        import numpy as np

        columns = batch.columns()
        if not self._named or (self._stream.has_several and "tid" not in columns):
            return [f"{'-':{_NAME}}"] * len(batch)
        times = columns.get("time", np.full(len(batch), LATEST - 1, np.uint64))
        symbols = self._trace.symbols
        numbers, offsets = lookup(self._trace, self._stream, columns, times, addresses)
        found = zip(numbers.tolist(), offsets.tolist(), strict=True)
        return [f"{readable(symbols.text(*each)) or '-':{_NAME}}" for each in found]

    def _times(self, batch: Batch, name: str) -> list[str]:
        ticks = getattr(batch, name).tolist()
        return [f"{'-' if each in (0, LATEST) else self._nanoseconds(each):>15}" for each in ticks]

    def _objects(self, batch: Batch) -> Iterator[str]:
        columns = {name: column.tolist() for name, column in batch.columns().items()}
        for name in ("end", "kind"):
            if name in columns:
                columns[name] = [self._ends[each] for each in columns[name]]
        if "frequency" in columns:
            told = columns["frequency"]
            columns["frequency"] = [None if math.isnan(each) else each for each in told]
        for row in zip(*columns.values(), strict=True):
            yield json.dumps({"stream": self._stream.title, **dict(zip(columns, row, strict=True))})
