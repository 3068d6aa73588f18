"""The fields of a line of `rtit branches`. The help lists them and must not load the decoder.

Blocks, branches and edges as lines of text, or a JSON object each: whole lines of UTF-8, a batch
at a time.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator
from os.path import basename
from typing import TYPE_CHECKING, Any

from rtit.readable import json_text, readable
from rtit.trace.tables.batch import End
from rtit.trace.tables.build_tables import ROWS
from rtit.trace.tables.counts import BEYOND
from rtit.trace.tables.selection import LATEST, Selection
from rtit.views.instructions import lookup

BRANCH_FIELDS = {
    "time": ("time",),
    "perf_time": ("perf_time",),
    "source": ("source", "name of source"),
    "target": ("target", "name of target"),
    "kind": ("kind",),
}


if TYPE_CHECKING:
    from numpy.typing import NDArray

    from rtit.trace import Batch, Stream, Trace

    _Column = (
        tuple[str, NDArray[Any], int]
        | tuple[str, NDArray[Any], list[str]]
        | tuple[str, NDArray[Any], NDArray[Any], list[tuple[str, bool]]]
    )

_NOT_TAKEN = "not taken"
_NAME = 32


def blocks(
    trace: Trace, stream: Stream, where: Selection, *, timing: bool = False, as_json: bool = False
) -> Iterator[bytes]:
    """Runs of instructions that follow each other in memory, and why each ended."""
    show = _Shown(trace, stream, End.CUT.label, timing=timing)
    columns = ("start", "name of start", "instructions", "end")
    return show.parts(stream.blocks(where, timing=timing), columns, as_json=as_json)


"""What a line about a branch may have, and the columns of each."""


def branches(
    trace: Trace,
    stream: Stream,
    where: Selection,
    *,
    timing: bool = False,
    as_json: bool = False,
    fields: Iterable[str] = ("source", "target", "kind"),
) -> Iterator[bytes]:
    """Branches and other transfers, from where to where; `fields`: of `BRANCH_FIELDS`."""
    show = _Shown(trace, stream, _NOT_TAKEN, timing=timing)
    columns = tuple(name for field in fields for name in BRANCH_FIELDS[field])
    found = stream.branches(where, timing=timing, perf_time="perf_time" in columns)
    return show.parts(found, columns, as_json=as_json)


def edges(
    trace: Trace,
    stream: Stream,
    where: Selection,
    *,
    top: int | None = None,
    as_json: bool = False,
    tell: Callable[[str], object] = str,
) -> Iterator[bytes]:
    """How often each transfer was taken, the most frequent first; of these `top`. Of threads of
    several processes the process is told instead of the thread, KERNEL for what is in none. `tell`
    is told of others than those that are counted.
    """
    import numpy as np

    found = stream.edges_by_process(where)
    if found.others:
        tell(f"{stream.title}: {found.others:,} transfers are {BEYOND}")
    # of the same count in the order of their addresses
    order = np.argsort(found.count.max(initial=0) - found.count, kind="stable")[:top]
    parts = (found.take(order[at : at + ROWS]) for at in range(0, len(order), ROWS))
    show = _Shown(trace, stream, _NOT_TAKEN, timing=False)
    columns = ("count", "source", "name of source", "target", "name of target", "kind")
    return show.parts(parts, columns, as_json=as_json)


class _Shown:
    """Columns of a stream as text."""

    def __init__(self, trace: Trace, stream: Stream, cut: str, *, timing: bool) -> None:
        self._trace = trace
        self._stream = stream
        self._timing = timing
        self._ends = [each.label for each in sorted(End)]
        self._ends[End.CUT] = cut

    def parts(
        self, batches: Iterable[Batch], columns: tuple[str, ...], *, as_json: bool
    ) -> Iterator[bytes]:
        from rtit._core import table_lines

        for batch in batches:
            if as_json:
                yield self._objects(batch)
                continue
            found = self._whose(batch)
            if self._timing:
                found += [self._times(batch, name) for name in ("earliest", "latest")]
            yield table_lines(found + [self._column(batch, name) for name in columns])

    def _whose(self, batch: Batch) -> list[_Column]:
        import numpy as np

        columns = batch.columns()
        tids = columns.get("tid", columns.get("pid"))
        if tids is None and self._stream.tid >= 0 and not self._stream.has_several:
            tids = np.full(len(batch), self._stream.tid, np.int32)
        return [("signed", tids.astype(np.int64).view(np.uint64), 7)] if tids is not None else []

    def _column(self, batch: Batch, name: str) -> _Column:
        import numpy as np

        if name.startswith("name of "):
            return self._names(batch, name.removeprefix("name of "))
        if name in ("time", "perf_time"):
            return self._times(batch, name)
        values = getattr(batch, name).astype(np.uint64, copy=False)
        if name in ("end", "kind"):
            return "words", values, self._ends
        form, width = {"count": ("commas", 12), "instructions": ("decimal", 5)}.get(
            name, ("hexadecimal", 16)
        )
        return form, values, width

    def _names(self, batch: Batch, name: str) -> _Column:
        import numpy as np

        columns = batch.columns()
        addresses, space = columns[name], "target_space" if name == "target" else "space"
        times = columns.get("time", np.full(len(batch), LATEST - 1, np.uint64))
        numbers, offsets = lookup(self._trace, self._stream, columns, times, addresses, space)
        used = np.flatnonzero(np.bincount(numbers))
        names = [_name(*self._trace.symbols.table[each]) for each in used.tolist()]
        return "places", np.searchsorted(used, numbers).astype(np.uint64), offsets, names

    def _times(self, batch: Batch, name: str) -> _Column:
        import numpy as np

        ticks, clock = getattr(batch, name), self._trace.clock
        times = ticks if clock is None else clock.nanoseconds(ticks)
        known = (ticks != 0) & (ticks != np.uint64(LATEST))
        return "decimal", np.where(known, times, np.uint64(LATEST)), 15

    def _objects(self, batch: Batch) -> bytes:
        own = zip((name for name, _, _ in batch.FIELDS), batch.lists(), strict=True)
        texts = dict(own) | {name: column.tolist() for name, column in batch.more.items()}
        forms = dict.fromkeys(texts, "%d")
        for name in texts.keys() & {"end", "kind"}:
            words = [json.dumps(each) for each in self._ends]
            texts[name], forms[name] = [words[each] for each in texts[name]], "%s"
        for name in texts.keys() & {"frequency", "ipc"}:
            texts[name], forms[name] = [_real(each) for each in texts[name]], "%s"
        title = json_text(self._stream.title).replace("%", "%%")
        fields = "".join(f', "{name}": {form}' for name, form in forms.items())
        line = f'{{"stream": {title}{fields}}}\n'
        return "".join(line % row for row in zip(*texts.values(), strict=True)).encode()


def _name(function: str, module: str) -> tuple[str, bool]:
    """As `Location` has it: what is printed, and whether it is a file."""
    return readable(function or basename(module)), not function  # noqa: PTH119 - a name


def _real(number: float) -> str:
    return "null" if math.isnan(number) else json.dumps(number)
